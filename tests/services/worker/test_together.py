"""Events that come while SQLite is busy are stored together: the disk takes as long for one as for many."""

import re
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import nats
import pytest

from tests.running_system import Parts, eventually, running_parts, wait_until
from turnfold.client import session_key, turn_event
from turnfold.contracts.subjects import EVENTS_CONSUMER, EVENTS_STREAM

KEY = session_key("support", "user-42")
LOGGED = {"TURNFOLD_LOG_LEVEL": "debug"}
ROUNDS = 20


def stored(parts: Parts) -> list[int]:
    """The events of each transaction of the intake, in order."""
    return [
        int(re.search(r'"?events"?[=:] ?(\d+)', line)[1])  # type: ignore[index]
        for line in parts.words().splitlines()
        if "batch.stored" in line
    ]


@pytest.mark.proves("L4", "I3")
async def test_events_that_come_while_one_is_stored_share_a_transaction(tmp_path: Path) -> None:
    async with (
        running_parts(tmp_path, environ=LOGGED) as parts,
        parts.running("worker"),
        parts.client() as client,
        await nats.connect(parts.server.url) as bus,
    ):

        async def holds(number: int) -> bool:
            info = await bus.jetstream().consumer_info(EVENTS_STREAM, EVENTS_CONSUMER)
            return bool(info.num_ack_pending == number)

        async def received(number: int) -> None:
            """Publish one, and wait until the receiver holds so many."""
            await client.publish(turn_event(KEY, [{"role": "user", "content": f"{number}?"}]))
            await eventually(partial(holds, number), told=parts.words)

        async def transactions() -> list[int]:
            """The events of each transaction after three came one by one while nobody could write."""
            before = len(stored(parts))
            with closing(sqlite3.connect(parts.database, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                for number in range(1, 4):
                    await received(number)
                other.execute("ROLLBACK")
            await wait_until(lambda: sum(stored(parts)[before:]) == 3, told=parts.words)
            await eventually(partial(holds, 0), told=parts.words)
            return stored(parts)[before:]

        # The receiver may join them before, or pass the last one on too late.
        seen: list[list[int]] = []
        while [1, 2] not in seen and len(seen) < ROUNDS:
            seen.append(await transactions())

        assert [1, 2] in seen, seen
