"""How fast one worker empties a full stream, beside the raw loop.

The clock starts when the first batch is committed and stops when the last is; the events of the first batch do not
count. So neither the start of the process nor its first look at the stream is in the figure.
"""

import asyncio
import json
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import nats

from tests.benchmarks.figures import RATIO, Figure, middle
from tests.benchmarks.floors import EVENTS, FETCH, SESSIONS, Drained, RawLoop, event
from tests.benchmarks.system import STORED, System, cpu_seconds, system, until
from tests.benchmarks.texts import AGENT, prose

NAME = "intake"
ROUNDS = 3
EVICTED = "SELECT coalesce(sum(messages_evicted), 0) FROM compactions"


@dataclass(frozen=True, slots=True)
class Run:
    """One stream emptied by a worker, between two raw loops; and how long evicted messages stayed pending afterwards."""

    before: Drained
    worker: Drained
    after: Drained
    evicted: int
    pending_seconds: float

    @property
    def rate_ratio(self) -> float:
        """The worker's rate to that of the raw loops around it."""
        return self.worker.events_per_second * 2 / (self.before.events_per_second + self.after.events_per_second)

    @property
    def cpu_ratio(self) -> float:
        """The worker's processor time to that of the raw loops around it; steadier than rates when others use the machine."""
        return self.worker.cpu_us_per_event * 2 / (self.before.cpu_us_per_event + self.after.cpu_us_per_event)


def varied(number: int) -> bytes:
    """A question and an answer of other words each time, as large as the floor's."""
    random = Random(number)
    messages = [{"role": role, "content": prose(random, 175)} for role in ("user", "assistant")]
    return json.dumps({"event_id": f"e{number}", "agent_id": AGENT, "session_id": f"s{number % SESSIONS}", "messages": messages}).encode()


KINDS: dict[str, Callable[[int], bytes]] = {"varied text": varied, "the floor's own events": event}


async def measure(directory: Path) -> AsyncIterator[Figure]:
    """Drain streams of both kinds, again and again."""
    runs: dict[str, list[Run]] = {kind: [] for kind in KINDS}
    for number in range(ROUNDS):
        for kind, make in KINDS.items():
            async with system(directory / f"{number}-{kind.split()[0]}") as one:
                loop = RawLoop(one.url, one.database.parent)
                await fill(one.url, make)
                before = await loop.drain()
                worker, pending_seconds = await drain(one)
                runs[kind].append(Run(before, worker, await loop.drain(), one.ask(EVICTED)[0], pending_seconds))
    floors = [floor for found in runs.values() for run in found for floor in (run.before, run.after)]
    yield Figure(benchmark=NAME, what="raw loop", value=middle(floor.events_per_second for floor in floors), unit="events/s")
    yield Figure(benchmark=NAME, what="raw loop, processor", value=middle(floor.cpu_us_per_event for floor in floors), unit="us/event")
    for kind, found in runs.items():
        yield Figure(
            benchmark=NAME, what=f"worker to raw loop, {kind}", value=middle(run.rate_ratio for run in found), unit=RATIO, at_least=0.5
        )
        yield Figure(
            benchmark=NAME, what=f"processor, worker to raw loop, {kind}", value=middle(run.cpu_ratio for run in found), unit=RATIO
        )
        rate = middle(run.worker.events_per_second for run in found)
        yield Figure(benchmark=NAME, what=f"worker, {kind}", value=rate, unit="events/s", at_least=3_500)
        yield Figure(
            benchmark=NAME, what=f"worker, processor, {kind}", value=middle(run.worker.cpu_us_per_event for run in found), unit="us/event"
        )
        yield Figure(benchmark=NAME, what=f"evicted, {kind}", value=middle(run.evicted for run in found), unit="messages")
        pending = middle(run.pending_seconds for run in found)
        yield Figure(benchmark=NAME, what=f"last event stored to nothing pending, {kind}", value=pending, unit="s")


async def fill(url: str, make: Callable[[int], bytes]) -> None:
    """Publish all events before anybody reads them."""
    async with await nats.connect(url) as client:
        stream = client.jetstream()
        for start in range(0, EVENTS, FETCH):
            await asyncio.gather(*(stream.publish("turn.completed", make(number)) for number in range(start, start + FETCH)))


async def drain(one: System) -> tuple[Drained, float]:
    """Start one worker on the full stream, and watch the database; the seconds are those until nothing was pending."""
    async with one.running("worker", is_awaited=False) as process:
        at_first = await _stored(one, process, 1)
        at_last = await _stored(one, process, EVENTS)
        await one.settled()
        cleared = time.perf_counter()
    events, seconds, used = (last - first for first, last in zip(at_first, at_last, strict=True))
    return Drained(events / seconds, used / events * 1e6), cleared - at_last[1]


async def _stored(one: System, process: Process, least: int) -> tuple[int, float, float]:
    """Events stored, the time, and the worker's processor time, as soon as so many are stored."""
    await until(lambda: process.returncode is not None or one.ask(STORED)[0] >= least)
    if process.returncode is not None:
        raise RuntimeError(f"the worker ended with status {process.returncode}")
    return int(one.ask(STORED)[0]), time.perf_counter(), cpu_seconds(process.pid)
