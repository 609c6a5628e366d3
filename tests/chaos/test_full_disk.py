"""A full disk, simulated by a file size limit: events wait, and are stored once there is room."""

import resource
from pathlib import Path

import pytest

from tests.chaos.installation import limit_files
from tests.running_system import eventually, rows, running_parts
from turnfold.client import connect


@pytest.mark.proves("L1", "W5")
async def test_events_that_come_while_the_disk_is_full_are_stored_once_there_is_room(
    tmp_path: Path,
) -> None:
    async with (
        running_parts(tmp_path) as parts,
        parts.running("worker") as worker,
        parts.running("query"),
        connect(parts.server.url, environ={}) as client,
    ):
        session = client.session("support", "user-42")
        # The log of the worker is on the same disk.
        limit_files(worker.pid, 1)
        await session.turn_completed([{"role": "user", "content": "Where is order 7341?"}])

        window = await session.context(max_tokens=8_000, wait_ms=1_500)

        assert not window.fresh
        assert not rows(parts.database, "SELECT * FROM events")
        limit_files(worker.pid, resource.RLIM_INFINITY)

        async def is_stored() -> bool:
            return (await session.context(max_tokens=8_000, wait_ms=2_000)).fresh

        await eventually(is_stored, told=parts.words)
        assert [
            row["state"] for row in rows(parts.database, "SELECT state FROM messages_view")
        ] == ["live"]
        assert worker.is_alive
