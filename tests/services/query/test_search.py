"""Search with the whole system behind it: a worker that indexes and may be killed, and a query server that answers meanwhile."""

from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any

import httpx
import pytest

from tests.running_system import Parts, rows, running_parts, serving_parts, wait_until

PATH = "/v1/agents/support/sessions/user-42"
TURNS = 1_500


def waiting(parts: Parts) -> int:
    """How many sessions have messages that are not indexed yet."""
    return int(
        rows(parts.database, "SELECT count(*) FROM sessions WHERE unindexed_from IS NOT NULL")[0][0]
    )


def stored(parts: Parts) -> int:
    """How many messages the database holds."""
    return int(rows(parts.database, "SELECT count(*) FROM messages")[0][0])


def indexed(parts: Parts) -> int:
    """How many messages are."""
    return int(rows(parts.database, "SELECT count(*) FROM word_index_docsize")[0][0])


async def asked(http: httpx.AsyncClient, path: str, **query: object) -> tuple[int, Any]:
    """Status and body of one question."""
    answer = await http.get(
        f"{PATH}{path}", params={name: str(value) for name, value in query.items()}
    )
    return answer.status_code, answer.json()


async def found(http: httpx.AsyncClient, q: str, **scope: object) -> list[str]:
    """The ids of the messages that answer, best first."""
    status, body = await asked(http, "/search", q=q, **scope)
    assert status == 200, body
    return [hit["message_id"] for hit in body["hits"]]


@pytest.mark.proves("F1", "L2", "L4", "O2")
async def test_a_worker_that_is_killed_while_it_indexes_leaves_nothing_unfound_and_the_next_goes_on(
    tmp_path: Path,
) -> None:
    async with (
        running_parts(tmp_path) as parts,
        parts.running("query"),
        parts.client() as client,
        parts.http(timeout=30) as http,
    ):
        session = client.session("support", "user-42")
        # All of it waits before anybody stores it, so that there is much to index at once.
        for number in range(TURNS):
            await session.turn_completed(
                [{"role": "user", "content": f"Ticket TF-{number}, 第{number}号。"}],
                event_id=f"e{number}",
            )
        async with parts.running("worker") as worker:

            def is_indexing() -> bool:
                # It is stopped for the look, or it might be done before it is killed.
                worker.signal(SIGSTOP)
                if 0 < indexed(parts) < stored(parts):
                    return True
                worker.signal(SIGCONT)
                return False

            await wait_until(is_indexing, every=0.002)
            worker.signal(SIGKILL)
            await worker.ended()
        left, numbers = waiting(parts), (0, stored(parts) // 2, stored(parts) - 1)
        between = [await found(http, f"TF-{number}", limit=1) for number in numbers]

        async with parts.running("worker"):
            await wait_until(lambda: stored(parts) == TURNS and waiting(parts) == 0)
            afterwards = [await found(http, f"TF-{number}", limit=1) for number in numbers]

    assert left == 1
    assert between == afterwards == [[f"e{number}#0"] for number in numbers]
    assert indexed(parts) == TURNS


@pytest.mark.proves("F1", "F3", "O4")
async def test_a_search_is_narrowed_and_an_entry_is_expanded_over_http(tmp_path: Path) -> None:
    async with serving_parts(tmp_path) as (parts, client), parts.http(timeout=30) as http:
        session = client.session("support", "user-42")
        for number in range(60):
            said = [
                {"role": "user", "content": f"Use port {9_000 + number}."},
                {"role": "assistant", "content": f"Port {9_000 + number} it is."},
            ]
            await session.turn_completed(said, event_id=f"e{number}")
        await wait_until(
            lambda: rows(parts.database, "SELECT version FROM sessions WHERE version > 0")
        )
        await session.context(wait_ms=5_000)

        by_role = await found(http, "9007", role="assistant")
        by_state = await found(http, "port", state="covered", limit=100)
        live = await found(http, "port", state="live", limit=100)
        summary = (await asked(http, "/summaries/1"))[1]
        place = next(place for place, entry in enumerate(summary["ledger"]) if "9007" in entry)
        status, sources = await asked(http, "/summaries/1/sources", entry=place)
        refused = [
            (await asked(http, "/summaries/1/sources", **wrong))[0]
            for wrong in ({}, {"entry": "x"}, {"line": 100_000})
        ]
        unknown = (await asked(http, "/search", q="port", state="gone"))[0]

    assert by_role == ["e7#1"]
    assert "e0#0" in by_state
    assert "e59#1" in live
    assert not set(by_state) & set(live)
    assert (status, sources["how"]) == (200, "recorded")
    assert "e7#0" in [one["message_id"] for one in sources["messages"]]
    assert refused == [400, 400, 400]
    assert unknown == 400
