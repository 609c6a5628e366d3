"""A rolling upgrade: services of two versions on one database and one stream."""

import contextlib
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from signal import SIGKILL

import pytest

from tests.crowd.worker_crowd import Crowd, crowd
from tests.postgres import Postgres
from tests.previous_release import PREVIOUS, NoHistory, code_of
from tests.running_system import eventually
from turnfold.client import session_key
from turnfold.errors import Unavailable

Environ = Mapping[str, str]


def unpacked(commit: str, directory: Path) -> Environ:
    try:
        return code_of(commit, directory)
    except NoHistory as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Environ:
    return unpacked(PREVIOUS, tmp_path_factory.mktemp("previous"))


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


@pytest.mark.proves("C82", "L1", "L2", "L3", "L10", "O2", "O6", "C54")
async def test_older_code_works_and_dies_beside_newer_code(
    tmp_path: Path, postgres: Postgres, previous: Environ
) -> None:
    async with crowd(tmp_path, postgres, TURNFOLD_SUMMARY_LEASE_SECONDS="1") as agents:
        parts = agents.parts
        async with parts.running("query", environ=previous), AsyncExitStack() as today:
            async with agents.at_work(), parts.running("worker", environ=previous) as worker:
                await a_session_comes_and_one_goes(agents, "old")
                await today.enter_async_context(parts.running("worker"))
                await agents.goes_on()
                worker.signal(SIGKILL)
                await a_session_comes_and_one_goes(agents, "new")

            await parts.settled()
            await agents.ends_well()
