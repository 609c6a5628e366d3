"""A rolling upgrade: services of two versions on one database and one stream."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from signal import SIGKILL
from subprocess import PIPE
from typing import Any

import httpx
import pytest

from tests.chaos.worker_crowd import ENVIRON, KEYS, Crowd, crowd, elsewhere
from tests.nats_server import nats_server
from tests.postgres import Postgres
from tests.previous_release import EXACT, TOLERANT, NoHistory, code_of
from tests.running_system import TURNFOLD, Parts, eventually
from tests.store_fixtures import new_sqlite
from turnfold.client import connect, session_key
from turnfold.errors import Unavailable

Environ = Mapping[str, str]


def unpacked(commit: str, directory: Path) -> Environ:
    try:
        return code_of(commit, directory)
    except NoHistory as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Environ:
    return unpacked(EXACT, tmp_path_factory.mktemp("exact"))


@pytest.fixture(scope="module")
def tolerant(tmp_path_factory: pytest.TempPathFactory) -> Environ:
    return unpacked(TOLERANT, tmp_path_factory.mktemp("tolerant"))


@asynccontextmanager
async def made_by(
    yesterday: Environ, directory: Path, sql: Postgres | None
) -> AsyncGenerator[Crowd]:
    """A bus and a database as older code leaves them."""
    name = await sql.create_database() if sql else ""
    try:
        with nats_server(directory) as server:
            parts = Parts(
                directory,
                server,
                ENVIRON | ({"TURNFOLD_DATABASE_URL": sql.url(name)} if sql else {}),
            )
            # Commands of tests run today's code, whatever their environment says.
            migration = await asyncio.create_subprocess_exec(
                *TURNFOLD, "migrate", env=parts.environ | dict(yesterday)
            )
            assert await migration.wait() == 0
            async with connect(server.url, timeout_seconds=2, attempts=100, environ={}) as client:
                yield Crowd(parts, client)
    finally:
        if sql:
            await sql.drop_database(name)


async def a_session_comes_and_one_goes(agents: Crowd, name: str) -> None:
    """Whoever works just now makes two sessions, and erases one of them."""
    await agents.says(session_key("late", name))
    gone = agents.client.session("late", f"{name}-gone")
    await gone.turn_completed([{"role": "user", "content": "Forget me."}])

    async def are_made() -> bool:
        return (
            len(await agents.parts.rows(f"SELECT 1 FROM sessions WHERE session_id LIKE '{name}%%'"))
            == 2
        )

    async def is_erased() -> bool:
        with contextlib.suppress(Unavailable):
            return bool(await gone.erase())
        return False

    await eventually(are_made, told=agents.parts.words)
    await eventually(is_erased, told=agents.parts.words)


async def windows(url: str) -> list[Any]:
    """What one query server shows of each session."""
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        answers = [
            await http.get(
                f"/v1/agents/{agent}/sessions/{session}/context", params={"max_tokens": 2_000}
            )
            for agent, session in KEYS
        ]
    return [
        (one["messages"], one["message_ids"], one["summary"], one["account"])
        for one in (answer.json() for answer in answers)
    ]


@pytest.mark.timeout(240)
@pytest.mark.proves("C82", "L1", "L2", "L3", "L10", "O2", "O6", "C54")
async def test_the_tables_are_migrated_under_services_that_run_on_beside_new_ones(
    tmp_path: Path, sql: Postgres | None, exact: Environ
) -> None:
    port = elsewhere()
    async with (
        made_by(exact, tmp_path, sql) as agents,
        agents.parts.running("query", environ=exact),
        AsyncExitStack() as today,
    ):
        parts = agents.parts
        async with agents.at_work():
            async with parts.running("worker", environ=exact) as worker:
                await agents.goes_on()
                await parts.migrate()
                await a_session_comes_and_one_goes(agents, "old")
                # On SQLite it stands by.
                await today.enter_async_context(parts.running("worker", is_awaited=sql is not None))
                await today.enter_async_context(parts.running("query", environ=port))
                await agents.goes_on()
                assert await worker.stop() == 0
            await a_session_comes_and_one_goes(agents, "new")
            # What the older worker was writing when it stopped waits for its lease of 60 s.
            await eventually(agents.are_summarised, seconds=90, told=parts.words)

        await parts.settled()
        await agents.ends_well()
        assert await windows(parts.http_url) == await windows(
            f"http://127.0.0.1:{port['TURNFOLD_HTTP_PORT']}"
        )


@pytest.mark.proves("L1", "L2", "L3", "L10", "O2")
async def test_older_code_that_is_started_on_newer_tables_works_and_dies_beside_new_one(
    tmp_path: Path, postgres: Postgres, tolerant: Environ
) -> None:
    async with crowd(tmp_path, postgres, TURNFOLD_SUMMARY_LEASE_SECONDS="1") as agents:
        parts = agents.parts
        async with parts.running("query", environ=tolerant), AsyncExitStack() as today:
            async with agents.at_work(), parts.running("worker", environ=tolerant) as worker:
                await a_session_comes_and_one_goes(agents, "old")
                await today.enter_async_context(parts.running("worker"))
                await agents.goes_on()
                worker.signal(SIGKILL)
                await a_session_comes_and_one_goes(agents, "new")

            await parts.settled()
            await agents.ends_well()


@pytest.mark.proves("O6")
async def test_code_that_wants_its_own_tables_refuses_to_start_on_newer_ones_and_says_so(
    tmp_path: Path, exact: Environ
) -> None:
    waits = "import asyncio, sys; from turnfold.store.belonging import *; asyncio.run(wait_for_schema(Database(sys.argv[1], writes=False), seconds=0))"
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-c",
        waits,
        new_sqlite(tmp_path),
        env=os.environ | exact,
        stdout=PIPE,
        stderr=PIPE,
    )
    _, told = await child.communicate()

    assert b"StartError: the tables are not there after 0 s" in told
