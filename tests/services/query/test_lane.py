"""The process that does what computes for long beside a query server: it answers the same, and may die or hang at any time."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any

import httpx
import pytest

from tests.postgres import Postgres
from tests.process_table import parts_of, state_of
from tests.running_system import Parts, Service, running_parts, wait_until
from turnfold.contracts.history_requests import SearchRequest
from turnfold.contracts.requests import (
    ContextRequest,
)
from turnfold.errors import CannotFit
from turnfold.messages import AgentId, Json, SessionId, SessionKey
from turnfold.model_info.context_windows import installed_windows
from turnfold.operations.query import context as query
from turnfold.operations.query import search
from turnfold.settings import read_settings
from turnfold.store.database.engine import Database
from turnfold.store.query.recall import SqlRecallStore
from turnfold.store.query.search import SqlSearchStore
from turnfold.store.query.window import AT_ONCE, SqlWindowStore
from turnfold_query.environment import query_environment
from turnfold_query.posted_events import LANE_BYTES, LANE_VALUES

KEY = SessionKey(AgentId("a"), SessionId("large"))
SESSION = "/v1/agents/a/sessions/large"
MANY = AT_ONCE.messages + 100


async def no_wait(seq: int, seconds: float) -> None:
    """Go on at once."""


@asynccontextmanager
async def installation(
    directory: Path, postgres: Postgres | None = None
) -> AsyncGenerator[tuple[Parts, Service, httpx.AsyncClient]]:
    """A worker and a query server with one large session."""
    async with (
        running_parts(directory, postgres=postgres) as parts,
        parts.running("worker"),
        parts.running("query") as server,
        parts.client() as client,
        parts.http(timeout=60) as browser,
    ):
        session = client.session(KEY.agent_id, KEY.session_id)
        await session.policy(mode="off")
        seq = 0
        for start in range(0, MANY, 500):
            numbers = range(start, min(start + 500, MANY))
            seq = (
                await session.turn_completed(
                    [{"role": "user", "content": f"Where is order {number}?"} for number in numbers]
                )
            ).seq
        async with asyncio.timeout(60):
            while (
                not (
                    await browser.get(f"{SESSION}/context", params={"after": seq, "wait_ms": 5_000})
                )
                .json()
                .get("fresh")
            ):
                pass
        yield parts, server, browser


def lane_of(server: Service) -> int | None:
    """The lane of a query server, while it has one."""
    return parts_of(server.pid).get("lane")


async def another(server: Service, than: int | None, parts: Parts) -> int:
    """The next lane of a query server."""
    await wait_until(lambda: lane_of(server) not in (None, than), told=parts.words)
    pid = lane_of(server)
    assert pid is not None
    return pid


async def answered(browser: httpx.AsyncClient, path: str, **params: Any) -> dict[str, Any]:
    """Ask as a client does, again while the service is unavailable: a lane loads for long on a starved machine."""
    response = await browser.get(f"{SESSION}/{path}", params=params)
    for _ in range(300):
        if response.status_code != 503:
            break
        await asyncio.sleep(0.2)
        response = await browser.get(f"{SESSION}/{path}", params=params)
    return dict(response.json())


async def same_as_here(url: str, browser: httpx.AsyncClient) -> None:
    """Compare what the lane answers with what the same code answers in this process."""
    database = Database(url, writes=False)
    try:
        windows, environment = (
            SqlWindowStore(database),
            query_environment(read_settings({}), SqlRecallStore(database), installed_windows()),
        )
        asked_for: tuple[dict[str, int | str], ...] = (
            {"max_tokens": 90_000},
            {"max_tokens": 90_000, "format": "anthropic"},
            {"as_of": "2100-01-01T00:00:00Z"},
        )
        for given in asked_for:
            asked = await browser.get(f"{SESSION}/context", params=given)
            request = ContextRequest.model_validate(given)
            here = await query.context(
                KEY, request, store=windows, environment=environment, ingest_signal=no_wait
            )
            assert (asked.status_code, asked.headers["etag"]) == (200, f'"{here.etag}"')
            assert asked.content == here.body
            etag = asked.headers["etag"]
            # A cache names each answer that it keeps, and may have made a tag weak.
            for lines in ([etag], [f'"older", W/{etag}'], ['"older"', etag]):
                again = await browser.get(
                    f"{SESSION}/context",
                    params=given,
                    headers=[("If-None-Match", tags) for tags in lines],
                )
                assert (again.status_code, again.headers["etag"], again.content) == (304, etag, b"")
        refused = await browser.get(f"{SESSION}/context", params={"max_tokens": 10})
        with pytest.raises(CannotFit) as told:
            await query.context(
                KEY,
                ContextRequest(max_tokens=10),
                store=windows,
                environment=environment,
                ingest_signal=no_wait,
            )
        assert (refused.status_code, refused.json()) == (CannotFit.status, told.value.as_json())
        found = await browser.get(f"{SESSION}/search", params={"q": "order 77"})
        assert found.text == await search.search(
            KEY, SearchRequest(q="order 77"), store=SqlSearchStore(database)
        )
        assert found.json()["hits"]
    finally:
        await database.close()


@pytest.mark.proves("X6")
async def test_the_lane_answers_what_the_same_code_answers_here(tmp_path: Path) -> None:
    async with installation(tmp_path) as (parts, _, browser):
        await same_as_here(parts.database_url, browser)


@pytest.mark.proves("X6")
async def test_the_lane_answers_what_the_same_code_answers_here_from_postgresql(
    tmp_path: Path, postgres: Postgres
) -> None:
    async with installation(tmp_path, postgres) as (parts, _, browser):
        await same_as_here(parts.database_url, browser)


@pytest.mark.proves("X6", "O2")
async def test_a_lane_that_is_killed_costs_a_request_and_is_followed_by_another(
    tmp_path: Path,
) -> None:
    async with installation(tmp_path) as (parts, server, browser), parts.client() as client:
        pid = await another(server, None, parts)
        small_session = client.session("b", "s")
        receipt = await small_session.turn_completed([{"role": "user", "content": "Hello."}])
        await small_session.context(after=receipt.seq, wait_ms=5_000)
        os.kill(pid, SIGSTOP)
        path = "/v1/agents/b/sessions/s/context"
        waiting = asyncio.gather(
            browser.get(f"{SESSION}/search", params={"q": "order 77"}),
            browser.get(f"{path}/difference", params={"before": "2100-01-01T00:00:00Z"}),
        )
        small = await browser.get(path)
        os.kill(pid, SIGKILL)
        refused, not_compared = await waiting
        await another(server, pid, parts)
        found = await answered(browser, "search", q="order 77")
        figures = (await browser.get("/metrics")).text
    assert (small.status_code, not_compared.status_code) == (200, 503)
    assert (
        refused.status_code,
        refused.json()["error"]["code"],
        refused.json()["error"]["retry_after_ms"],
    ) == (503, "unavailable", 1_000)
    assert found["hits"]
    assert "turnfold_lane_deaths_total 1.0" in figures


@pytest.mark.timeout(90)
@pytest.mark.proves("X6", "O2")
async def test_a_lane_that_hangs_after_its_asker_hung_up_is_followed_by_another(
    tmp_path: Path,
) -> None:
    async with installation(tmp_path) as (parts, server, browser):
        pid = await another(server, None, parts)
        os.kill(pid, SIGSTOP)
        with pytest.raises(httpx.ReadTimeout):
            await browser.get(f"{SESSION}/context", params={"max_tokens": 90_001}, timeout=0.5)
        await another(server, pid, parts)
        window = await answered(browser, "context", max_tokens=90_002)
    assert not state_of(pid)
    assert window["window"]["messages"] == MANY


@pytest.mark.proves("X6")
async def test_an_asker_that_hangs_up_leaves_its_turn_to_its_next_request(tmp_path: Path) -> None:
    async with installation(tmp_path) as (parts, server, browser):
        pid = await another(server, None, parts)
        # Some are cancelled before the lane begins with them. They must end too, or the lane counts as hung.
        # Only reading has a short timeout: a connection that is given up half-open is collected late.
        impatient = httpx.Timeout(30, read=0.001)
        given_up = 0
        for number in range(20):
            try:
                await browser.get(
                    f"{SESSION}/context", params={"max_tokens": 91_000 + number}, timeout=impatient
                )
            except httpx.ReadTimeout:
                given_up += 1
        found = await answered(browser, "search", q="order 77")
        assert lane_of(server) == pid
    assert found["hits"]
    # On a busy machine, an answer may be there before its asker looks at the clock.
    assert given_up


@pytest.mark.proves("X6")
async def test_an_event_that_takes_long_to_read_holds_up_nobody(tmp_path: Path) -> None:
    """X6: with hundreds of thousands of values, it held up the windows of all for a second."""
    small = {
        "type": "turn.completed",
        "event_id": "e",
        "agent_id": "a",
        "session_id": "large",
        "messages": [{"role": "user", "content": "hello"}],
    }
    many = small | {"metadata": {str(number): 0 for number in range(LANE_VALUES + 2)}}
    async with installation(tmp_path) as (parts, server, browser):
        pid = await another(server, None, parts)
        os.kill(pid, SIGSTOP)
        reading = asyncio.create_task(browser.post(f"{SESSION}/events", json=many))
        window = await browser.get("/v1/agents/b/sessions/s/context")
        event = await browser.post(f"{SESSION}/events", json=small | {"event_id": "small"})
        _, waiting = await asyncio.wait({reading}, timeout=1)
        os.kill(pid, SIGCONT)
        stored = await reading
        copy = await browser.post(f"{SESSION}/events", content=json.dumps(many, indent=1))
        other = await browser.post(f"{SESSION}/events", json=many | {"is_meta": True})
        changed = many | {"messages": [{"role": "user", "content": "x" * LANE_BYTES}]}
        conflict = await browser.post(f"{SESSION}/events", json=changed)
        elsewhere = await browser.post("/v1/agents/b/sessions/s/events", json=many)
        untyped = await browser.post(f"{SESSION}/events", json=many | {"type": "turn"})

    assert waiting
    assert (window.status_code, event.status_code) == (200, 200)
    assert stored.json()["seq"] == copy.json()["seq"] == other.json()["seq"]
    assert [answer.status_code for answer in (conflict, elsewhere, untyped)] == [409, 400, 400]


def posted(agent_id: str, number: int, content: Any) -> tuple[str, Json]:
    """The path of an event of this agent, and its body."""
    event = {
        "type": "turn.completed",
        "event_id": f"e{number}",
        "agent_id": agent_id,
        "session_id": "s",
        "messages": [{"role": "user", "content": content}],
    }
    return f"/v1/agents/{agent_id}/sessions/s/events", event


@pytest.mark.proves("X6")
async def test_many_large_events_of_one_agent_wait_for_the_lane(tmp_path: Path) -> None:
    """Only searches have as few places as `max_searches` allows."""
    events = [posted("a", number, "x" * LANE_BYTES) for number in range(12)]
    async with (
        running_parts(tmp_path) as parts,
        parts.running("query") as server,
        parts.http(timeout=60) as browser,
    ):
        await another(server, None, parts)
        answers = await asyncio.gather(*[browser.post(path, json=body) for path, body in events])

    assert sorted(answer.json()["seq"] for answer in answers) == list(range(1, 13))


@pytest.mark.timeout(90)
@pytest.mark.proves("X6", "O2")
async def test_a_lane_that_hangs_while_it_reads_events_is_followed_by_another(
    tmp_path: Path,
) -> None:
    """X6: two events held both turns of the lane for good, and all searches failed."""
    nested: list[Any] = [[[[]]]] * (LANE_VALUES // 4)
    async with (
        running_parts(tmp_path, environ={"TURNFOLD_REQUEST_SECONDS": "1"}) as parts,
        parts.running("query") as server,
        parts.http(timeout=30) as browser,
    ):
        pid = await another(server, None, parts)
        os.kill(pid, SIGSTOP)
        refused = await asyncio.gather(
            *[
                browser.post(path, json=body)
                for path, body in (posted("a", 1, "x" * LANE_BYTES), posted("b", 2, nested))
            ]
        )
        await another(server, pid, parts)

    assert [answer.status_code for answer in refused] == [503, 503]
    assert all("publish it again" in answer.text for answer in refused)


@pytest.mark.proves("O2")
async def test_a_lane_ends_with_a_query_server_that_is_killed(tmp_path: Path) -> None:
    async with installation(tmp_path) as (parts, server, _):
        pid = await another(server, None, parts)
        server.signal(SIGKILL)
        await wait_until(lambda: not state_of(pid), told=parts.words)
