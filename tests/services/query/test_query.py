"""The query service on a real bus and a real file: what it answers while the others are slow, away or wrong."""

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import nats
import pytest
from nats.aio.client import Client as Bus

from tests.postgres import Postgres
from tests.running_system import Parts, eventually, running_parts, serving_parts, wait_until
from turnfold.client import Client
from turnfold.errors import Unavailable, UnknownSession

Json = dict[str, Any]
USER = {"role": "user", "content": "Where is order 7341?"}
PATH = "/v1/agents/support/sessions/user-42"


async def asked(bus: Bus, subject: str, body: bytes = b"") -> Json:
    """The answer to one request as it travels."""
    answer: Json = json.loads((await bus.request(subject, body, timeout=10)).data)
    return answer


async def http_of(parts: Parts, path: str, **query: object) -> tuple[int, Json]:
    """Status and body over HTTP."""
    async with parts.http() as http:
        answer = await http.get(path, params={name: str(value) for name, value in query.items()})
        return answer.status_code, answer.json()


async def published(client: Client, count: int) -> int:
    """Publish so many turns; the freshness token of the last."""
    session = client.session("support", "user-42")
    receipts = [
        await session.turn_completed([USER | {"content": f"Question {number}?"}])
        for number in range(count)
    ]
    return receipts[-1].seq


@pytest.mark.proves("W5", "L4")
async def test_a_window_without_the_newest_event_says_so_after_waiting_as_long_as_it_may(
    tmp_path: Path,
) -> None:
    async with (
        running_parts(tmp_path) as parts,
        parts.running("query"),
        parts.client() as client,
    ):
        await published(client, 1)
        began = time.monotonic()
        stale = await client.session("support", "user-42").context(wait_ms=400)
        waited = time.monotonic() - began

        # A worker comes: the same question, asked before, is answered as soon as the event is stored.
        waiting = asyncio.create_task(client.session("support", "user-42").context(wait_ms=5_000))
        async with parts.running("worker"):
            fresh = await waiting
            if not fresh.fresh:
                fresh = await client.session("support", "user-42").context(wait_ms=5_000)

    assert not stale.fresh
    assert stale.messages == []
    assert waited >= 0.4
    assert fresh.fresh
    assert fresh.messages == [USER | {"content": "Question 0?"}]


@pytest.mark.proves("L4", "O2")
async def test_windows_are_answered_while_the_worker_is_dead_and_what_needs_it_is_told_unavailable(
    tmp_path: Path,
) -> None:
    async with (
        running_parts(tmp_path) as parts,
        parts.running("query"),
        parts.client() as client,
    ):
        session = client.session("support", "user-42")
        async with parts.running("worker"):
            await published(client, 3)
            await session.context(wait_ms=5_000)

        window = await session.context()
        with pytest.raises(Unavailable, match="`turnfold doctor` says"):
            await session.compact()

    assert window.account.total == 3


@pytest.mark.proves("I5", "O4")
async def test_events_that_can_never_be_stored_are_counted(tmp_path: Path) -> None:
    async with (
        running_parts(tmp_path) as parts,
        parts.running("query"),
        parts.running("worker"),
        await nats.connect(parts.server.url) as bus,
        parts.http() as http,
    ):
        for payload in (b"}{", b"{]", b'{"event_id": "e"}'):
            await bus.jetstream().publish("turn.completed", payload)

        async def counted() -> list[str]:
            lines = (await http.get("/metrics")).text.splitlines()
            return sorted(line for line in lines if line.startswith("turnfold_dead_letters{"))

        wanted = [
            'turnfold_dead_letters{reason="not_json"} 2.0',
            'turnfold_dead_letters{reason="wrong_shape"} 1.0',
        ]
        async with asyncio.timeout(20):
            while await counted() != wanted:  # noqa: ASYNC110 - another process is waited for
                await asyncio.sleep(0.05)


@pytest.mark.proves("L4", "R3", "O4")
async def test_http_goes_on_answering_while_the_bus_is_away_and_both_do_afterwards(
    tmp_path: Path,
) -> None:
    async with (
        running_parts(tmp_path) as parts,
        parts.running("worker"),
        parts.running("query"),
        parts.client(attempts=60, timeout_seconds=2) as client,
    ):
        await published(client, 3)
        await client.session("support", "user-42").context(wait_ms=5_000)
        parts.server.kill()

        status, window = await http_of(parts, f"{PATH}/context")
        unready, _ = await http_of(parts, "/readyz")
        parts.server.start()
        seq = await published(client, 1)
        again = await client.session("support", "user-42").context(after=seq, wait_ms=5_000)

        async def is_ready() -> bool:
            return (await http_of(parts, "/readyz"))[0] == 200

        await eventually(is_ready)

    assert (status, window["account"]["total"]) == (200, 3)
    assert unready == 503
    assert again.account.total == 4


@pytest.mark.proves("O4")
async def test_a_database_that_hangs_delays_neither_readiness_nor_metrics_for_long(
    tmp_path: Path, postgres: Postgres
) -> None:
    async with (
        running_parts(tmp_path, postgres=postgres) as parts,
        parts.running("query"),
        parts.http(timeout=20) as http,
    ):
        before = await http.get("/metrics")
        with postgres.frozen():
            ready, metrics = await asyncio.gather(http.get("/readyz"), http.get("/metrics"))

    assert "turnfold_ready 1.0" in before.text
    assert (ready.status_code, ready.json()["missing"]) == (503, ["the database cannot be read"])
    assert metrics.status_code == 200
    assert "turnfold_ready 0.0" in metrics.text


@pytest.mark.proves("X2", "W5")
async def test_what_cannot_be_asked_is_refused_in_the_words_of_the_contract_on_both_ways(
    tmp_path: Path,
) -> None:
    async with running_parts(tmp_path) as parts, parts.running("query"):
        bus = await nats.connect(parts.server.url)
        refused = [
            (await asked(bus, "context.get.support.user-42", body))["error"]["code"]
            for body in (
                b"not JSON",
                b"[]",
                b'{"max_tokens": "many"}',
                b'{"max_tokens": -1}',
                b'{"mode": "panic"}',
                b'{"max_tokens": true}',
            )
        ]
        badly_named = (await asked(bus, "context.get.sup%port.user-42"))["error"]["code"]
        unknown = (await asked(bus, "session.get.support.user-42"))["error"]["code"]
        empty = await asked(bus, "context.get.support.user-42")
        await bus.close()
        over_http = [
            await http_of(parts, f"{PATH}/context", max_tokens="many"),
            await http_of(parts, PATH),
        ]
        async with parts.client() as client:
            with pytest.raises(UnknownSession):
                await client.session("support", "user-42").status()

    assert refused == ["bad_request"] * 6
    assert badly_named == "bad_request"
    assert unknown == "unknown_session"
    assert (empty["messages"], empty["account"]["total"]) == ([], 0)
    assert [(status, body["error"]["code"]) for status, body in over_http] == [
        (400, "bad_request"),
        (404, "unknown_session"),
    ]


MISSPELT = {"session_id": "user-41", "max_token": 9}
REQUIRED = {"q": "order", "before": "2100-01-01T00:00:00Z"}
NOT_ASKED = ("{version}", "{dead_letter_id}", "{campaign_id}", "/changes")
"""Parts of paths that name what is not there, and a stream."""


def reads(paths: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
    """The path of each described read, and its parameters: those that it requires, and unknown ones."""
    for path, operations in paths.items():
        if not path.startswith("/v1/") or any(part in path for part in NOT_ASKED):
            continue
        if described := operations.get("get"):
            names = {one["name"] for one in described.get("parameters", ()) if one["required"]}
            required = {name: REQUIRED[name] for name in REQUIRED.keys() & names}
            yield path.format(agent_id="support", session_id="user-42"), required | MISSPELT


@pytest.mark.proves("X2")
async def test_an_answer_names_the_fields_that_its_request_misspells(tmp_path: Path) -> None:
    long = "x" * 200
    misspelt: Json = {"max_token": 9, "agent_id": "support", "session_id": "user-41", "recall": {"token": 9}, long: [{}]}  # fmt: skip
    async with (
        running_parts(tmp_path) as parts,
        parts.running("worker"),
        parts.running("query"),
        parts.client() as client,
    ):
        after = await published(client, 1)
        await client.session("support", "user-42").context(after=after, wait_ms=5_000)
        bus = await nats.connect(parts.server.url)
        subject = "context.get.support.user-42"
        window = await asked(bus, subject, json.dumps(misspelt).encode())
        again = json.dumps({"etag": window["etag"], "wait": 1}).encode()
        answers = [await asked(bus, subject, again), await asked(bus, subject, b'{"after": 0}')]
        await bus.close()
        async with parts.http(timeout=60) as http:
            paths = (await http.get("/openapi.json")).json()["paths"]
            over_http = {
                path: (await http.get(path, params=fields)).json() for path, fields in reads(paths)
            }
            body = {"arguments": {"query": "a"}, "argument": {}}
            tool = await http.post(f"{PATH}/tools/search_history", json=body)
            asked_known = {"event_ids": ["e1"], "event_id": "e1"}
            known = await http.post("/v1/agents/support/events/known", json=asked_known)

    assert window["ignored"] == ["max_token", "session_id", "x" * 100, "recall.token"]
    assert [answer.get("ignored") for answer in answers] == [["wait"], None]
    assert len(over_http) > 20
    assert {
        path: answer for path, answer in over_http.items() if answer.get("ignored") != [*MISSPELT]
    } == {}
    assert tool.json()["ignored"] == ["argument"]
    assert known.json()["ignored"] == ["event_id"]


@pytest.mark.proves("X2")
async def test_a_wrong_method_is_told_the_methods_that_the_path_has(tmp_path: Path) -> None:
    async with (
        running_parts(tmp_path) as parts,
        parts.running("query"),
        parts.http() as http,
    ):
        answers = [
            await http.request(method, path)
            for method, path in (
                ("DELETE", f"{PATH}/context"),
                ("PATCH", f"{PATH}/events"),
                ("POST", "/v1/agents"),
                ("POST", "/v1/agents/support/policy"),
            )
        ]

    assert [(answer.status_code, answer.headers.get("Allow")) for answer in answers] == [
        (405, "GET"),
        (405, "POST"),
        (405, "GET"),
        (405, "GET, PATCH"),
    ]
    assert [answer.json()["error"]["code"] for answer in answers] == ["bad_request"] * 4


@pytest.mark.proves("O4")
async def test_head_is_answered_as_get_without_the_body(tmp_path: Path) -> None:
    """Also of a stream, which ends then; the connection is used again."""
    paths = ("/healthz", "/readyz", f"{PATH}/context", f"{PATH}/history", "/console", "/docs")
    async with serving_parts(tmp_path) as (parts, client), parts.http() as http:
        await client.session("support", "user-42").turn_completed([USER])
        await client.session("support", "user-42").context(wait_ms=5_000)
        pairs = [(await http.head(path), await http.get(path)) for path in paths]
        stream = await http.head(f"{PATH}/changes", params={"seconds": 60}, timeout=20)
        after = await http.get("/healthz", timeout=20)
        wrong = await http.head(f"{PATH}/events")

    for head, whole in pairs:
        assert (head.status_code, head.content) == (whole.status_code, b"")
        assert head.headers["content-type"] == whole.headers["content-type"]
    assert pairs[2][0].headers["content-length"] == str(len(pairs[2][1].content))
    assert (stream.status_code, stream.content, after.status_code) == (200, b"", 200)
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")


@pytest.mark.proves("X2", "V3")
async def test_a_path_with_a_slash_too_many_is_an_error_and_no_redirect(tmp_path: Path) -> None:
    async with (
        running_parts(tmp_path) as parts,
        parts.running("query"),
        httpx.AsyncClient(base_url=parts.http_url, trust_env=False) as http,
    ):
        answers = [
            await http.request(method, path)
            for method, path in (
                ("GET", "/v1/sessions/"),
                ("POST", f"{PATH}/events/"),
                # Of a program whose id of a session is empty: no way to erase the whole agent.
                ("DELETE", "/v1/agents/support/"),
            )
        ]

    assert [answer.status_code for answer in answers] == [404] * 3
    assert [answer.json()["error"]["code"] for answer in answers] == ["bad_request"] * 3
    assert not any("location" in answer.headers for answer in answers)


@pytest.mark.proves("L4", "W5")
async def test_a_request_that_waits_holds_up_no_other(tmp_path: Path) -> None:
    async with running_parts(tmp_path) as parts, parts.running("query"):
        bus = await nats.connect(parts.server.url)
        waiting = [
            asyncio.create_task(
                asked(bus, f"context.get.support.s{number}", b'{"after": 1000, "wait_ms": 4000}')
            )
            for number in range(100)
        ]
        await asyncio.sleep(0.2)
        for _ in range(5):
            await asked(bus, "context.get.support.user-42")
        are_waiting = not any(one.done() for one in waiting)
        answers = await asyncio.gather(*waiting)
        await bus.close()

    assert are_waiting
    assert not any(answer["fresh"] for answer in answers)


@pytest.mark.proves("O2")
async def test_a_query_service_waits_for_tables_and_stops_when_told(tmp_path: Path) -> None:
    async with running_parts(tmp_path) as parts:
        hidden = parts.database.rename(tmp_path / "hidden.db")
        async with parts.running("query", is_awaited=False) as query:
            await asyncio.sleep(1.5)
            assert query.is_alive
            assert not query.is_ready
            hidden.rename(parts.database)
            await wait_until(lambda: query.is_ready, told=parts.words)

            assert await query.stop() == 0
