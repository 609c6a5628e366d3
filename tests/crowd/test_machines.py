"""Many workers and query servers on one PostgreSQL: they and the database are killed."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

import pytest

from tests.crowd.worker_crowd import KEYS, crowd, elsewhere
from tests.model_server import running_model_server
from tests.postgres import Postgres, running_postgres
from tests.running_system import Parts, eventually, wait_until


async def deadlocks(parts: Parts) -> int:
    """How many transactions the server ended because they waited for each other."""
    (row,) = await parts.rows(
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    )
    return int(row["deadlocks"])


@pytest.mark.timeout(240)
@pytest.mark.proves("L1", "L2", "L3", "L10", "L12", "O2", "C49", "C52")
async def test_workers_and_query_servers_come_go_and_die_while_agents_publish(
    tmp_path: Path, postgres: Postgres
) -> None:
    async with crowd(tmp_path, postgres) as agents:
        parts = agents.parts
        async with (
            AsyncExitStack() as stack,
            parts.running("worker") as first,
            parts.running("query"),
        ):
            async with agents.at_work():
                await eventually(agents.are_summarised, told=parts.words)
                async with (
                    parts.running("worker") as second,
                    parts.running("query", environ=elsewhere()) as other,
                ):
                    await agents.goes_on()
                    first.signal(SIGKILL)
                    other.signal(SIGKILL)
                    await agents.goes_on()
                    third = await stack.enter_async_context(parts.running("worker"))
                    second.signal(SIGTERM)
                    assert await second.ended() == 0
                await agents.goes_on()
            await agents.ends_well()
            assert third.is_alive

        assert await deadlocks(parts) == 0


@pytest.mark.proves("C48", "O2")
async def test_of_two_workers_one_asks_the_model_for_a_version(
    tmp_path: Path, postgres: Postgres
) -> None:
    async with (
        running_model_server() as model,
        crowd(tmp_path, postgres, **model.settings) as agents,
        agents.parts.running("worker", is_awaited=False),
    ):
        async with agents.parts.running("worker"), agents.parts.running("query"):
            async with agents.at_work():
                for _ in range(4):
                    await agents.goes_on()
            await agents.parts.settled()
            seen = await agents.ends_well()

        written = [
            version.kind for session in seen.sessions.values() for version in session.versions
        ]
        assert set(written) == {"llm"}
        assert len(model.requests) == len(written) >= len(KEYS)


@pytest.mark.proves("S1", "O2")
async def test_what_a_stopped_worker_was_writing_another_one_writes_at_once(
    tmp_path: Path, postgres: Postgres
) -> None:
    async with running_model_server() as model:
        model.script = ["hang"]
        async with crowd(
            tmp_path, postgres, **model.settings, TURNFOLD_SUMMARY_LEASE_SECONDS="3600"
        ) as agents:
            async with agents.parts.running("worker") as first:
                for _ in range(20):
                    await agents.says(KEYS[0])
                await wait_until(model.is_hanging.is_set, told=agents.parts.words)
                async with agents.parts.running("worker"):
                    assert await first.stop() == 0
                    seen = await agents.parts.settled()

            (session,) = seen.sessions.values()
            assert [version.kind for version in session.versions] == ["llm"]


@pytest.fixture
def own_postgres() -> Any:
    """A server of the test's own, to be ended."""
    with running_postgres() as server:
        yield server


@pytest.mark.proves("L1", "L2", "L3", "L10", "O2")
async def test_a_database_that_stops_or_crashes_is_waited_for_and_nothing_is_missing_then(
    tmp_path: Path, own_postgres: Postgres
) -> None:
    ends: list[Callable[[], None]] = [own_postgres.stop, own_postgres.crash]
    async with crowd(tmp_path, own_postgres) as agents:
        parts = agents.parts
        async with parts.running("query") as query:
            async with parts.running("worker") as worker:
                async with agents.at_work():
                    for end in ends:
                        await agents.goes_on()
                        end()
                        agents.refused.clear()
                        await wait_until(lambda: agents.refused, told=parts.words)
                        assert agents.refused == {"unavailable"}
                        own_postgres.start()
                    await agents.goes_on()
                await agents.ends_well()
                assert (worker.is_alive, query.is_alive) == (True, True)
            told = await agents.windows_now()

        async with parts.running("query"):
            assert await agents.windows_now() == told
