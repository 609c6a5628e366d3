"""Agents that publish and query continuously while services start, stop and are killed."""

import asyncio
import contextlib
import json
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from tests.invariants import StoreSnapshot
from tests.ports import free_port
from tests.postgres import Postgres
from tests.published import Published, messages_of
from tests.running_system import Parts, eventually, running_parts, streamed, wait_until
from turnfold.client import Client, OutgoingEvent, connect, session_key, turn_event
from turnfold.core.history.validation import validation_errors
from turnfold.errors import RequestError, Unavailable
from turnfold.messages import SessionKey

ENVIRON = {"TURNFOLD_POLICY__MAX_LIVE_MESSAGES": "20", "TURNFOLD_LOG_LEVEL": "info"}
KEYS = [
    session_key(agent, f"user-{number}") for agent in ("support", "billing") for number in range(2)
]
"""The same session ids under two agents, and so are the ids of their events."""


class Crowd:
    """Publishers and readers that never rest, and what they were told."""

    def __init__(self, parts: Parts, client: Client) -> None:
        self.parts = parts
        self.client = client
        self.published = Published()
        self.windows = 0
        self.refused: set[str] = set()
        self._numbers: defaultdict[SessionKey, count[int]] = defaultdict(count)

    @asynccontextmanager
    async def at_work(self) -> AsyncGenerator[None]:
        """Publish and ask while the body runs."""
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(work)
                for key in KEYS
                for work in (self._publish(key), self._read(key))
            ]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()

    async def _publish(self, key: SessionKey) -> None:
        while True:
            await self.says(key)
            await asyncio.sleep(0.02)

    async def says(self, key: SessionKey) -> None:
        """Publish one turn more of a session."""
        number = next(self._numbers[key])
        said = [
            {"role": "user", "content": f"Question {number}?"},
            {"role": "assistant", "content": f"Answer {number}."},
        ]
        event = turn_event(key, said, event_id=f"{key.session_id}-{number}")
        self.published.trying(event)
        await self._until_taken(event)

    async def _until_taken(self, event: OutgoingEvent) -> None:
        while True:
            with contextlib.suppress(Unavailable):
                self.published.took(event, (await self.client.publish(event)).seq)
                return

    async def _read(self, key: SessionKey) -> None:
        while True:
            try:
                window = await self.client.session(*key).context(max_tokens=20_000, wait_ms=200)
            except RequestError as error:
                self.refused.add(error.code)
            else:
                self.windows += 1
                assert validation_errors(window.messages) == []
            await asyncio.sleep(0.05)

    async def goes_on(self) -> None:
        """Wait until more is stored and read than now."""
        stored, windows = await self._stored(), self.windows
        await wait_until(lambda: self.windows > windows + 4, told=self.parts.words)

        async def is_more() -> bool:
            return await self._stored() > stored + 20

        await eventually(is_more, told=self.parts.words)

    async def _stored(self) -> int:
        (row,) = await self.parts.rows("SELECT count(*) AS events FROM events")
        return int(row["events"])

    async def ends_well(self) -> StoreSnapshot:
        """Nothing lost, nothing doubled, all in the stream's order, versions without a gap; everything that is stored."""
        seen = await self.parts.caught_up()
        found: dict[tuple[str, str], tuple[int, list[Any]]] = {}
        for key, session in seen.sessions.items():
            for event_id, seq in session.events.items():
                found[key.agent_id, event_id] = (seq, [])
            for one in session.messages:
                found[key.agent_id, one.message.event_id][1].append(json.loads(one.body))
        first: dict[bytes, int] = {}
        for entry in await streamed(self.parts.server.url):
            first.setdefault(entry.payload, entry.seq)
        attempted = self.published.attempted
        expected = {
            name: (first[event.payload], messages_of(event))
            for name, event in attempted.items()
            if event.payload in first
        }
        assert found == expected
        assert set(self.published.acknowledged) <= set(expected)
        assert seen.dead_letters == ()
        return seen

    async def are_summarised(self) -> bool:
        """Whether each session has a version."""
        (row,) = await self.parts.rows("SELECT count(DISTINCT sid) AS sessions FROM summaries")
        return bool(row["sessions"] == len(KEYS))

    async def windows_now(self) -> list[Any]:
        """What each session's window says."""
        asked = [
            await self.client.session(*key).context(max_tokens=20_000, wait_ms=5_000)
            for key in KEYS
        ]
        assert all(window.fresh for window in asked)
        return [(window.messages, window.message_ids, window.summary) for window in asked]


@asynccontextmanager
async def crowd(directory: Path, postgres: Postgres, **environ: str) -> AsyncGenerator[Crowd]:
    """A bus, a database, and a client that never gives up; nobody is at work yet."""
    async with (
        running_parts(directory, environ=ENVIRON | environ, postgres=postgres) as parts,
        connect(parts.server.url, timeout_seconds=2, attempts=100, environ={}) as client,
    ):
        yield Crowd(parts, client)


def elsewhere() -> dict[str, str]:
    """What makes a second query server listen beside the first."""
    return {"TURNFOLD_HTTP_PORT": str(free_port())}
