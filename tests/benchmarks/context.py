"""Measure the time for a window in sessions of very different age, beside an echo of its size.

Three sessions of 100, 10,000 and 100,000 messages with the same last hundred take turns, 400
each: publish a turn, wait until it is stored, time a request with `max_tokens` 8,000 and `after`,
which is never cached, and time an echo. All evict at the same moments. Recall is on
(`BENCH_CONTEXT_RECALL=0` for off), and the texts share a vocabulary so small that each of its words
stands in every long session's messages.
"""

import json
import os
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import nats
from nats.aio.client import Client

from tests.benchmarks.figures import RATIO, Figure, Spread, middle
from tests.benchmarks.floors import Echo, echo
from tests.benchmarks.system import System, cpu_seconds, system
from tests.benchmarks.texts import publish, question, turn

SIZES = (100, 10_000, 100_000)
TURNS = 400
WARM_TURNS = 30
MAX_TOKENS = 8_000
TAIL_TURNS = 25
TURNS_PER_EVENT = 200
RECALL = {"recall": False} if os.environ.get("BENCH_CONTEXT_RECALL") == "0" else {}


@dataclass
class Session:
    """One session under measurement: what its requests took, and the echoes of the same size beside them."""

    messages: int
    name: str = "aged"
    asked: list[float] = field(default_factory=list)
    echoed: list[float] = field(default_factory=list)
    reply_bytes: list[int] = field(default_factory=list)

    @property
    def session_id(self) -> str:
        """Its id."""
        return f"{self.name}-{self.messages}"


async def measure(directory: Path) -> AsyncIterator[Figure]:
    """Load the sessions, then ask in turns."""
    sessions = [Session(size) for size in SIZES]
    async with (
        system(directory) as one,
        one.running("worker"),
        one.running("query") as query,
        await nats.connect(one.url) as client,
        echo(one.url, client) as bare,
    ):
        for session in sessions:
            await load(one, client, session)
        before = cpu_seconds(query.pid), cpu_seconds(bare.pid)
        await ask_in_turns(one, client, bare, sessions)
        used = cpu_seconds(query.pid) - before[0], cpu_seconds(bare.pid) - before[1]
    for figure in figures(sessions):
        yield figure
    requests = (WARM_TURNS + TURNS) * len(sessions)
    yield Figure("processor, query to echo", used[0] / used[1], RATIO)
    yield Figure("processor a request, query", used[0] / requests * 1000, "ms")
    yield Figure("processor a request, echo", used[1] / requests * 1000, "ms")


def figures(sessions: Sequence[Session]) -> list[Figure]:
    """What is shown of the sessions."""
    found: list[Figure] = []
    youngest = Spread.of(sessions[0].asked)
    for session in sessions:
        spread, floor = Spread.of(session.asked), Spread.of(session.echoed)
        of = f"{session.messages:,} messages"
        to_echo, to_youngest = spread.p50_ms / floor.p50_ms, spread.p50_ms / youngest.p50_ms
        bound_ms = 5.0 if session.messages == 10_000 else None
        found.append(Figure(f"p50 to an echo, {of}", to_echo, RATIO, at_most=3.0))
        if session is not sessions[0]:
            what = f"p50 to that at {SIZES[0]}, {of}"
            found.append(Figure(what, to_youngest, RATIO, at_most=1.3, at_least=0.77))
        found.append(Figure(f"p50, {of}", spread.p50_ms, "ms"))
        found.append(Figure(f"p99, {of}", spread.p99_ms, "ms", at_most=bound_ms))
        found.append(Figure(f"echo p50, {of}", floor.p50_ms, "ms"))
        found.append(Figure(f"echo p99, {of}", floor.p99_ms, "ms"))
        found.append(Figure(f"reply, {of}", middle(session.reply_bytes), "bytes"))
    return found


async def load(one: System, client: Client, session: Session) -> None:
    """Fill a session in few big events; its last turns, a publish of their own, are the same in every session."""
    stream = client.jetstream(timeout=30)
    random = Random(session.messages)
    older = session.messages // 4 - TAIL_TURNS
    seq = 0
    for number, start in enumerate(range(0, older, TURNS_PER_EVENT)):
        turns = [turn(random, start + at) for at in range(min(TURNS_PER_EVENT, older - start))]
        seq = await publish(
            stream,
            session.session_id,
            f"{session.session_id}-{number}",
            [message for one_turn in turns for message in one_turn],
        )
    if seq:
        await one.ingested(seq)
        await one.settled()
    random = Random("tail")
    for at in range(TAIL_TURNS):
        session_id, messages = session.session_id, turn(random, 10**6 + at)
        seq = await publish(stream, session_id, f"{session_id}-tail-{at}", messages)
        await one.ingested(seq)
    await one.settled()


async def ask_in_turns(
    one: System, client: Client, bare: Echo, sessions: Sequence[Session]
) -> None:
    """A new turn, its ingest, one timed request, one echo of the same size: for each session, again and again."""
    stream = client.jetstream(timeout=30)
    random = Random("live")
    for number in range(WARM_TURNS + TURNS):
        messages = turn(random, 2 * 10**6 + number)
        for session in sessions:
            session_id = session.session_id
            seq = await publish(stream, session_id, f"{session_id}-live-{number}", messages)
            await one.ingested(seq)
            seconds, size = await ask(client, session, after=seq)
            echoed = await bare.seconds(size)
            if number >= WARM_TURNS:
                session.asked.append(seconds)
                session.echoed.append(echoed)
                session.reply_bytes.append(size)


async def ask(client: Client, session: Session, *, after: int) -> tuple[float, int]:
    """One window that holds the sequence `after`: how long it took, and its size in bytes."""
    fields = {"max_tokens": MAX_TOKENS, "after": after, "wait_ms": 5_000, **RECALL}
    body = json.dumps(fields).encode()
    asked = time.perf_counter()
    reply = await client.request(question(session.session_id), body, timeout=10)
    seconds = time.perf_counter() - asked
    told = json.loads(reply.data)
    assert told.get("fresh") is True, f"the answer is not fresh: {reply.data[:300]!r}"
    return seconds, len(reply.data)
