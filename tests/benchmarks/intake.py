"""Measure how fast one worker empties a full stream, beside the raw loop.

A worker starts on 20,000 waiting events of about 500 bytes in 200 sessions: varied text, or one
repeated letter as in the floor. The time runs from the first to the last committed batch, without
the events of the first, so it excludes the start of the process. The raw loop fetches 200 events,
parses them, inserts them in one durable transaction (on PostgreSQL 18 with fsync, in one
statement) and acknowledges. Processor time excludes the PostgreSQL server and the time until
nothing is pending.
"""

import asyncio
import json
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import asyncpg
import nats

from tests.benchmarks.figures import RATIO, Figure, middle
from tests.benchmarks.floors import (
    EVENTS,
    FETCH,
    SESSIONS,
    Passed,
    RawLoop,
    event,
    postgres_table,
    sqlite_table,
)
from tests.benchmarks.system import (
    PENDING,
    POLL_SECONDS,
    STORED,
    WAIT_SECONDS,
    System,
    cpu_seconds,
    system,
)
from tests.benchmarks.texts import AGENT, prose
from tests.postgres import Postgres, running_postgres

ROUNDS = 3
Ask = Callable[[str], Awaitable[int]]
"""What a query of the database counts."""
EVICTED = "SELECT coalesce(sum(messages_evicted), 0) FROM compactions"


@dataclass(frozen=True, slots=True)
class Run:
    """One stream emptied by a worker, between two raw loops; and how long evicted messages stayed pending afterwards."""

    before: Passed
    worker: Passed
    after: Passed
    evicted: int
    pending_seconds: float

    @property
    def rate_ratio(self) -> float:
        """The worker's rate to that of the raw loops around it."""
        return (
            self.worker.events_per_second
            * 2
            / (self.before.events_per_second + self.after.events_per_second)
        )

    @property
    def cpu_ratio(self) -> float:
        """The worker's processor time to that of the raw loops around it; steadier than rates when others use the machine."""
        return (
            self.worker.cpu_us_per_event
            * 2
            / (self.before.cpu_us_per_event + self.after.cpu_us_per_event)
        )


def varied(number: int) -> bytes:
    """A question and an answer of other words each time, as large as the floor's."""
    random = Random(number)
    messages = [{"role": role, "content": prose(random, 175)} for role in ("user", "assistant")]
    return json.dumps(
        {
            "event_id": f"e{number}",
            "agent_id": AGENT,
            "session_id": f"s{number % SESSIONS}",
            "messages": messages,
        }
    ).encode()


LEAST_RATIO, LEAST_RATE = 0.65, 5_000


@dataclass(frozen=True, slots=True)
class Kind:
    """A database, and what the events say."""

    database: str
    events: str
    make: Callable[[int], bytes]


KINDS = (
    Kind("SQLite", "varied text", varied),
    Kind("SQLite", "the floor's own events", event),
    Kind("PostgreSQL", "varied text", varied),
)


async def measure(directory: Path) -> AsyncIterator[Figure]:
    """Drain streams of all kinds, again and again."""
    runs: dict[Kind, list[Run]] = {kind: [] for kind in KINDS}
    with running_postgres(is_durable=True) as postgres:
        for number in range(ROUNDS):
            for place, kind in enumerate(KINDS):
                here = directory / f"{number}-{place}"
                runs[kind].append(
                    await (
                        on_sqlite(here, kind)
                        if kind.database == "SQLite"
                        else on_postgres(postgres, here, kind)
                    )
                )
    for figure in figures(runs):
        yield figure


async def on_sqlite(directory: Path, kind: Kind) -> Run:
    """One round on a file."""
    async with system(directory) as one:

        async def ask(sql: str) -> int:
            return int(one.ask(sql)[0])

        return await run(one, RawLoop(one.url, lambda: sqlite_table(directory)), ask, kind)


async def on_postgres(postgres: Postgres, directory: Path, kind: Kind) -> Run:
    """One round on a server, which syncs its disk as it does by default."""
    name = await postgres.create_database()
    url = postgres.url(name).replace("+asyncpg", "")
    async with system(directory, TURNFOLD_DATABASE_URL=postgres.url(name)) as one:
        connection = await asyncpg.connect(url)
        found = await run(
            one, RawLoop(one.url, lambda: postgres_table(url)), connection.fetchval, kind
        )
        await connection.close()
    await postgres.drop_database(name)
    return found


async def run(one: System, loop: RawLoop, ask: Ask, kind: Kind) -> Run:
    """A worker between two raw loops."""
    await fill(one.url, kind.make)
    before = await loop.drain()
    worker, pending_seconds = await drain(one, ask)
    return Run(before, worker, await loop.drain(), int(await ask(EVICTED)), pending_seconds)


def figures(runs: Mapping[Kind, Sequence[Run]]) -> Iterator[Figure]:
    """What is shown of the rounds."""
    for database in dict.fromkeys(kind.database for kind in KINDS):
        floors = [
            floor
            for kind, found in runs.items()
            if kind.database == database
            for one in found
            for floor in (one.before, one.after)
        ]
        rate, used = (
            middle(floor.events_per_second for floor in floors),
            middle(floor.cpu_us_per_event for floor in floors),
        )
        yield Figure(f"raw loop, {database}", rate, "events/s")
        yield Figure(f"raw loop, processor, {database}", used, "us/event")
    for kind, found in runs.items():
        of = f"{kind.database}, {kind.events}"
        ratio, rate = (
            middle(one.rate_ratio for one in found),
            middle(one.worker.events_per_second for one in found),
        )
        used_ratio, used = (
            middle(one.cpu_ratio for one in found),
            middle(one.worker.cpu_us_per_event for one in found),
        )
        evicted, pending = (
            middle(one.evicted for one in found),
            middle(one.pending_seconds for one in found),
        )
        yield Figure(f"worker to raw loop, {of}", ratio, RATIO, at_least=LEAST_RATIO)
        yield Figure(f"processor, worker to raw loop, {of}", used_ratio, RATIO)
        yield Figure(f"worker, {of}", rate, "events/s", at_least=LEAST_RATE)
        yield Figure(f"worker, processor, {of}", used, "us/event")
        yield Figure(f"evicted, {of}", evicted, "messages")
        yield Figure(f"last event stored to nothing pending, {of}", pending, "s")


async def fill(url: str, make: Callable[[int], bytes]) -> None:
    """Publish all events before anybody reads them."""
    async with await nats.connect(url) as client:
        stream = client.jetstream()
        for start in range(0, EVENTS, FETCH):
            await asyncio.gather(
                *(
                    stream.publish("turn.completed", make(number))
                    for number in range(start, start + FETCH)
                )
            )


async def drain(one: System, ask: Ask) -> tuple[Passed, float]:
    """Start one worker on the full stream, and watch the database; the seconds are those until nothing was pending."""
    async with one.running("worker", is_awaited=False) as process:
        at_first = await _stored(ask, process, 1)
        at_last = await _stored(ask, process, EVENTS)
        await _until(ask, process, PENDING, lambda pending: not pending)
        cleared = time.perf_counter()
    events, seconds, used = (last - first for first, last in zip(at_first, at_last, strict=True))
    return Passed(events / seconds, used / events * 1e6), cleared - at_last[1]


async def _stored(ask: Ask, process: Process, least: int) -> tuple[int, float, float]:
    """Events stored, the time, and the worker's processor time, as soon as so many are stored."""
    stored = await _until(ask, process, STORED, lambda stored: stored >= least)
    return stored, time.perf_counter(), cpu_seconds(process.pid)


async def _until(ask: Ask, process: Process, sql: str, holds: Callable[[int], bool]) -> int:
    """What the database counts, as soon as it is so."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not holds(counted := int(await ask(sql))):
            if process.returncode is not None:
                raise RuntimeError(f"the worker ended with status {process.returncode}")
            await asyncio.sleep(POLL_SECONDS)
    return counted
