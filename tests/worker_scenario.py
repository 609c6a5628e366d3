"""A day of one worker on a real bus and a real file: somebody publishes, things happen, and at its end nothing is lost."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.history_checker import Checker
from tests.published import Published
from tests.running_system import Parts, Service, rows, running_parts, streamed, wait_until
from turnfold.client import Client, OutgoingEvent, connect, session_key, turn_event
from turnfold.errors import Unavailable

KEY = session_key("support", "user-42")
SMALL = {"TURNFOLD_POLICY__MAX_LIVE_MESSAGES": "20", "TURNFOLD_LOG_LEVEL": "info"}


def turn(number: int, *, size: int = 40) -> OutgoingEvent:
    """A question and its answer."""
    said = [
        {"role": "user", "content": f"Question {number}? {'why ' * size}"},
        {"role": "assistant", "content": f"Answer {number}."},
    ]
    return turn_event(KEY, said, event_id=f"e{number:05d}")


class Day:
    """A worker at work, somebody who publishes all day, and the proof at its end."""

    def __init__(self, parts: Parts, worker: Service, client: Client) -> None:
        self.parts = parts
        self.worker = worker
        self.client = client
        self.published = Published()
        self._numbers = iter(range(100_000))

    async def publish(self, event: OutgoingEvent | None = None) -> int:
        """Publish an event until it is acknowledged; its sequence."""
        event = event or turn(next(self._numbers))
        self.published.trying(event)
        while True:
            with contextlib.suppress(Unavailable):
                seq = (await self.client.publish(event)).seq
                self.published.took(event, seq)
                return seq

    @asynccontextmanager
    async def publishing(self, *, every: float = 0.02) -> AsyncGenerator[None]:
        """Publish turn after turn while the body runs."""

        async def publish() -> None:
            while True:
                await self.publish()
                await asyncio.sleep(every)

        task = asyncio.create_task(publish())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def goes_on(self) -> None:
        """Wait until more was stored than is stored now."""
        before = self.stored()
        await wait_until(lambda: self.stored() > before + 20, told=self.parts.words)

    def stored(self) -> int:
        """How many events the database holds."""
        return int(rows(self.parts.database, "SELECT count(*) FROM events")[0][0])

    async def settled(self) -> None:
        """Wait until all is stored and summarised."""
        statement = (
            "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM compactions WHERE status IN ('pending', 'running')),"
            " (SELECT count(*) FROM outbox), (SELECT count(*) FROM ingested_ranges WHERE first_seq != 1),"
            " (SELECT last_seq FROM ingested_ranges WHERE first_seq = 1)"
        )
        last = len(await streamed(self.parts.server.url))
        # What was cut off in the middle of publishing may be in the stream or not.
        await wait_until(
            lambda: tuple(rows(self.parts.database, statement)[0])[1:] == (0, 0, 0, last),
            seconds=90,
            told=self.parts.words,
        )

    async def ends_well(self) -> None:
        """Nothing lost, nothing doubled, in order, by the same process that began the day."""
        await self.settled()
        faults_found = Checker(
            self.parts.database, self.published, await streamed(self.parts.server.url)
        ).faults()
        assert not faults_found, "\n".join(faults_found)
        assert self.worker.is_alive, self.parts.words()


@asynccontextmanager
async def day(directory: Path, **environ: str) -> AsyncGenerator[Day, None]:
    """A bus, a database, a worker, and a client that never gives up."""
    async with (
        running_parts(directory, environ=SMALL | environ) as parts,
        parts.running("worker") as worker,
        connect(parts.server.url, timeout_seconds=2, attempts=100, environ={}) as client,
    ):
        yield Day(parts, worker, client)
