"""How fast one worker empties a full stream, beside the raw loop.

The clock starts when the first batch is committed and stops when the last is; the events of the first batch do not
count. So neither the start of the process nor its first look at the stream is in the figure.
"""

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random

import nats

from tests.benchmarks.figures import RATIO, Figure, middle
from tests.benchmarks.floors import EVENTS, FETCH, SESSIONS, RawLoop, event
from tests.benchmarks.system import System, system
from tests.benchmarks.texts import AGENT, WORDS, prose

ROUNDS = 3
POLL_SECONDS = 0.005
PENDING_SECONDS = 300.0
STORED = "SELECT coalesce(sum(last_seq - first_seq + 1), 0) FROM ingested"
PENDING = "SELECT count(*) FROM compactions WHERE NOT is_covered AND status IN ('pending', 'running')"
EVICTED = "SELECT coalesce(sum(messages_evicted), 0), count(*) FROM compactions"


@dataclass(frozen=True, slots=True)
class Drained:
    """One emptied stream: the rate between the first and the last commit, and how long evicted messages stayed pending then."""

    events_per_second: float
    pending_seconds: float
    evicted: int
    compactions: int


def varied(number: int) -> bytes:
    """A question and an answer of other words each time, as large as the floor's."""
    random = Random(number)
    messages = [{"role": role, "content": prose(random, 175)} for role in ("user", "assistant")]
    return json.dumps({"event_id": f"e{number}", "agent_id": AGENT, "session_id": f"s{number % SESSIONS}", "messages": messages}).encode()


async def measure(directory: Path) -> AsyncIterator[Figure]:
    """Drain streams of both kinds, each between two raw loops."""
    assert len(WORDS) > SESSIONS
    kinds = {"varied text": varied, "the floor's own events": event}
    rates: dict[str, list[Drained]] = {kind: [] for kind in kinds}
    ratios: dict[str, list[float]] = {kind: [] for kind in kinds}
    floors: list[float] = []
    for number in range(ROUNDS):
        for kind, make in kinds.items():
            async with system(directory / f"{number}-{kind[:3]}") as one:
                loop = RawLoop(one.url, one.database.parent)
                before = await loop.events_per_second()
                await fill(one.url, make)
                drained = await drain(one)
                after = await loop.events_per_second()
            floors += [before, after]
            rates[kind].append(drained)
            ratios[kind].append(drained.events_per_second / ((before + after) / 2))
    yield Figure(benchmark="intake", what="raw loop", value=middle(floors), unit="events/s")
    for kind, found in rates.items():
        yield Figure(benchmark="intake", what=f"worker to raw loop, {kind}", value=middle(ratios[kind]), unit=RATIO, at_least=0.5)
        rate = middle(one.events_per_second for one in found)
        yield Figure(benchmark="intake", what=f"worker, {kind}", value=rate, unit="events/s", at_least=3_500)
        pending = middle(one.pending_seconds for one in found)
        yield Figure(benchmark="intake", what=f"last event stored to nothing pending, {kind}", value=pending, unit="s")
        yield Figure(benchmark="intake", what=f"messages evicted, {kind}", value=middle(one.evicted for one in found), unit="messages")


async def fill(url: str, make: Callable[[int], bytes]) -> None:
    """Publish all events before anybody reads them."""
    async with await nats.connect(url) as client:
        stream = client.jetstream()
        for start in range(0, EVENTS, FETCH):
            await asyncio.gather(*(stream.publish("turn.completed", make(number)) for number in range(start, start + FETCH)))


async def drain(one: System) -> Drained:
    """Start one worker on the full stream, and watch the database."""
    async with one.running("worker", is_awaited=False) as worker:
        with closing(one.watch()) as database:
            found: list[tuple[float, int]] = []
            while not found or found[-1][1] < EVENTS:
                if worker.returncode is not None:
                    raise RuntimeError(f"the worker ended with status {worker.returncode}")
                stored = first(database, STORED)
                if stored and (not found or stored > found[-1][1]):
                    found.append((time.perf_counter(), stored))
                await asyncio.sleep(POLL_SECONDS)
            (began, at_first), (ended, at_last) = found[0], found[-1]
            await until(lambda: not first(database, PENDING), seconds=PENDING_SECONDS)
            cleared = time.perf_counter()
            evicted, compactions = database.execute(EVICTED).fetchone()
    return Drained((at_last - at_first) / (ended - began), cleared - ended, evicted, compactions)


async def until(holds: Callable[[], object], *, seconds: float) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not so within {seconds:g} s")
        await asyncio.sleep(POLL_SECONDS)


def first(database: sqlite3.Connection, sql: str, values: Iterable[object] = ()) -> int:
    """The first value of the first row."""
    return int(database.execute(sql, tuple(values)).fetchone()[0])
