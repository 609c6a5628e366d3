"""Measure an agent's own writes while other sessions compact, and how soon a summary is in force.

Three systems take turns in slices of two seconds, until each had 20 (`BENCH_OWN_SECONDS`): nobody
else publishes; 20 sessions publish 40 turns per second, so that evictions and extractive summaries
follow all the time; the same with a model that answers after two seconds. One session publishes a
turn and requests the window that shows it, again and again. Its reference is the first system.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import nats
from nats.aio.client import Client

from tests.benchmarks.context import Session, ask
from tests.benchmarks.figures import RATIO, Figure, Spread, middle
from tests.benchmarks.model import summary_model
from tests.benchmarks.system import System, system
from tests.benchmarks.texts import event, headers, publish, subject, turn
from turnfold.process.tasks import cancel_and_wait

SECONDS = float(os.environ.get("BENCH_OWN_SECONDS", "20"))
SLICE_SECONDS = 2.0
SESSIONS = 20
TURNS_PER_SECOND = 40
PAUSE_SECONDS = 0.02
VERSIONS = "SELECT count(*) FROM summaries"
DELAYS = """
SELECT finished_at_ms - requested_at_ms FROM compactions
WHERE is_covered AND finished_at_ms IS NOT NULL
"""


@dataclass
class Side:
    """One system, and what its own writes took."""

    what: str
    one: System
    client: Client
    turns_per_second: int
    published: list[float] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    number: int = 0
    others: int = 0

    async def run(self, seconds: float) -> None:
        """Write and read one's own session for some seconds, beside the others."""
        beside = asyncio.create_task(self._publish()) if self.turns_per_second else None
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            await self._write_and_read()
            await asyncio.sleep(PAUSE_SECONDS)
        if beside is not None:
            if beside.done():
                beside.result()
            await cancel_and_wait(beside)

    async def _write_and_read(self) -> None:
        session, self.number = Session(0, "own"), self.number + 1
        event_id, random = f"own-{self.number}", Random(self.number)
        body = event(event_id, session.session_id, turn(random, self.number))
        began = time.perf_counter()
        ack = await self.client.jetstream(timeout=30).publish(
            subject(session.session_id), body, headers=headers(event_id)
        )
        self.published.append(time.perf_counter() - began)
        began = time.perf_counter()
        await ask(self.client, session, after=ack.seq)
        self.asked.append(time.perf_counter() - began)

    async def _publish(self) -> None:
        """Publish turns of the other sessions at a steady rate, until cancelled."""
        stream, random, began = self.client.jetstream(timeout=30), Random("others"), time.time()
        first = self.others
        while True:
            self.others += 1
            session_id, event_id = f"s{self.others % SESSIONS}", f"other-{self.others}"
            await publish(stream, session_id, event_id, turn(random, 10**6 + self.others))
            due = began + (self.others - first) / self.turns_per_second
            await asyncio.sleep(max(0.0, due - time.time()))


async def measure(directory: Path) -> AsyncIterator[Figure]:
    """Start all three, let them take turns, and see how long the summaries of one session took."""
    async with AsyncExitStack() as stack:
        sides: list[Side] = []
        for what, rate, fault in (
            ("alone", 0, None),
            ("beside extractive summaries", TURNS_PER_SECOND, None),
            ("beside a model of 2 s", TURNS_PER_SECOND, "slow"),
        ):
            settings: dict[str, str] = {}
            if fault is not None:
                settings = (await stack.enter_async_context(summary_model(fault))).settings
            one = await stack.enter_async_context(
                system(directory / what.replace(" ", "-"), **settings)
            )
            await stack.enter_async_context(one.running("worker"))
            await stack.enter_async_context(one.running("query"))
            client = await stack.enter_async_context(await nats.connect(one.url))
            sides.append(Side(what, one, client, rate))
        for side in sides:
            await side.run(SLICE_SECONDS)
            side.published.clear()
            side.asked.clear()
        for _ in range(int(SECONDS / SLICE_SECONDS)):
            for side in sides:
                await side.run(SLICE_SECONDS)
        for figure in figures(sides):
            yield figure


def figures(sides: list[Side]) -> list[Figure]:
    """The spreads of all, and their ratios to the first."""
    shown: list[Figure] = []
    for side in sides:
        for what, durations, floor in (
            ("publish", side.published, sides[0].published),
            ("context.get", side.asked, sides[0].asked),
        ):
            spread, alone = Spread.of(durations), Spread.of(floor)
            named = f"{what} {side.what}"
            bound = None if side is sides[0] else 20.0
            shown += [
                Figure(f"{named}, p50", spread.p50_ms, "ms"),
                Figure(f"{named}, p99", spread.p99_ms, "ms", at_most=bound),
            ]  # fmt: skip
            if side is not sides[0]:
                ratio = spread.p99_ms / alone.p99_ms
                shown.append(Figure(f"p99 of {named} to alone", ratio, RATIO))
        versions = side.one.ask(VERSIONS)[0]
        shown.append(Figure(f"versions {side.what}", versions, "summaries"))
    delays = [row[0] for row in sides[0].one.all(DELAYS)]
    shown.append(
        Figure(
            "eviction to its summary in force, one session, p50", middle(delays), "ms", at_most=250
        )
    )
    return shown
