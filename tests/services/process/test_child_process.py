"""A child process, and what is sent to it when it ends."""

import asyncio
import sys

import pytest

from turnfold.process.child_process import ChildProcess


@pytest.mark.proves("O7")
async def test_what_is_sent_to_a_process_that_is_being_closed_is_dropped() -> None:
    """A batch that ended while its receiver was closed raised this, and nobody was told of its commit."""
    child = ChildProcess([sys.executable, "-c", "import sys; sys.stdin.read()"])
    await child.open()
    child.send(b"in time")

    closing = asyncio.create_task(child.close(seconds=5.0))
    await asyncio.sleep(0)
    child.send(b"late")

    assert not child.can_send
    await closing
    assert not child.is_running
