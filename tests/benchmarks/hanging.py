"""Measure what a hanging summary model costs agents.

Two systems get turns and requests alternately in 20 sessions for 35 seconds: one with a fast
model, one whose model never answers and which ends with about 350 pending messages per session.
"""

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import nats
from nats.aio.client import Client

from tests.benchmarks.figures import RATIO, Figure, Spread
from tests.benchmarks.model import SummaryModel, summary_model
from tests.benchmarks.system import System, system, until
from tests.benchmarks.texts import event, headers, question, subject, turn

HANG_SECONDS = 35.0
SESSIONS = 20
FIRST_TURNS = 15
MAX_TOKENS = 8_000
RUNNING = "SELECT count(*) FROM compactions WHERE status = 'running'"
WAITING = "SELECT coalesce(sum(messages_evicted), 0) FROM compactions WHERE NOT is_covered AND status IN ('pending', 'running')"
WRITTEN = "SELECT count(*) FROM summaries WHERE kind = 'llm'"


@dataclass
class Side:
    """One of the two systems, and what it took."""

    one: System
    client: Client
    model: SummaryModel
    published: list[float] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    async def play(
        self, session_id: str, event_id: str, messages: list[dict[str, object]]
    ) -> tuple[float, float]:
        """Publish a turn, wait until it is stored, ask for the window: how long the publish and the request took."""
        body = event(event_id, session_id, messages)
        began = time.perf_counter()
        ack = await self.client.jetstream().publish(
            subject(session_id), body, headers=headers(event_id)
        )
        published = time.perf_counter() - began
        await self.one.ingested(ack.seq)
        began = time.perf_counter()
        reply = await self.client.request(
            question(session_id),
            b'{"max_tokens": %d, "after": %d}' % (MAX_TOKENS, ack.seq),
            timeout=10,
        )
        asked = time.perf_counter() - began
        self.sizes.append(len(reply.data))
        assert json.loads(reply.data).get("fresh") is True, reply.data[:300]
        return published, asked


@asynccontextmanager
async def side(directory: Path, fault: str, **settings: str) -> AsyncGenerator[Side]:
    """A running system with a model of this kind."""
    async with (
        summary_model(fault) as model,
        system(directory, **model.settings, **settings) as one,
        one.running("worker"),
        one.running("query"),
        await nats.connect(one.url) as client,
    ):
        yield Side(one, client, model)


async def in_turns(
    sides: tuple[Side, Side],
    number: int,
    session_id: str,
    event_id: str,
    messages: list[dict[str, object]],
) -> None:
    """The same turn in both systems, now the one first and now the other, and what it took."""
    for one in sides if number % 2 else sides[::-1]:
        published, asked = await one.play(session_id, event_id, messages)
        one.published.append(published)
        one.asked.append(asked)


def compared(fast: Side, other: Side, name: str) -> Iterator[Figure]:
    """What both took, as ratios first."""
    pairs: Sequence[tuple[str, list[float], list[float]]] = (
        ("publish", fast.published, other.published),
        ("context.get", fast.asked, other.asked),
    )
    for what, usual, slow in pairs:
        floor, found = Spread.of(usual), Spread.of(slow)
        yield Figure(f"{what}, p50 {name} to fast", found.p50_ms / floor.p50_ms, RATIO, at_most=1.2)
        yield Figure(f"{what}, p99 {name} to fast", found.p99_ms / floor.p99_ms, RATIO, at_most=2.0)
        for kind, spread in (("fast", floor), (name, found)):
            yield Figure(f"{what} p50, {kind}", spread.p50_ms, "ms")
            yield Figure(f"{what} p99, {kind}", spread.p99_ms, "ms")


async def measure(directory: Path) -> AsyncIterator[Figure]:
    """Start both, make compactions due in both, and take turns for as long as the model hangs."""
    async with (
        side(directory / "fast", "answer") as fast,
        side(directory / "hanging", "hang") as hanging,
    ):
        random = Random("hanging")
        for number in range(SESSIONS):
            messages = [message for at in range(FIRST_TURNS) for message in turn(random, at)]
            for one in (fast, hanging):
                await one.play(f"s{number}", f"first-{number}", messages)
        # Both are past their start: one model has answered, the other holds a job.
        await until(lambda: hanging.one.ask(RUNNING)[0])
        await until(lambda: fast.one.ask(WRITTEN)[0])
        began = time.monotonic()
        number = 0
        while time.monotonic() - began < HANG_SECONDS:
            await in_turns(
                (fast, hanging),
                number,
                f"s{number % SESSIONS}",
                f"later-{number}",
                turn(random, FIRST_TURNS + number),
            )
            number += 1
        waiting = hanging.one.ask(WAITING)[0] / SESSIONS
        jobs, written, idle = (
            hanging.one.ask(RUNNING)[0],
            fast.one.ask(WRITTEN)[0],
            hanging.one.ask(WRITTEN)[0],
        )
    assert jobs, "the model of the hanging system did not hang until the end"
    assert not idle, "the model of the hanging system answered"
    for figure in compared(fast, hanging, "hanging"):
        yield figure
    yield Figure("requests on each side", number, "requests")
    yield Figure("summaries of the fast model meanwhile", written, "summaries")
    yield Figure("pending at the end, a session of the hanging one", waiting, "messages")
