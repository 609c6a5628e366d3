"""How long a window takes, beside an echo of the same size, in sessions of very different age.

Before every timed request a new turn of that session is published and ingested, so no answer can be served twice. The
sessions end with the same texts, take turns, and are evicted from at the same moments. Echo and requests take turns too.
"""

import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import nats
from nats.aio.client import Client

from tests.benchmarks.figures import RATIO, Figure, Spread, middle
from tests.benchmarks.floors import Echo, echo
from tests.benchmarks.intake import PENDING, until
from tests.benchmarks.system import System, system
from tests.benchmarks.texts import event, headers, question, subject, turn

SIZES = (100, 10_000, 100_000)
TURNS = 400
WARM_TURNS = 30
MAX_TOKENS = 8_000
TAIL_TURNS = 25
TURNS_PER_EVENT = 200
LOAD_SECONDS = 300.0
STORED_TO = "SELECT coalesce(max(last_seq), 0) FROM ingested"


@dataclass
class Session:
    """One session under measurement: what its requests took, and the echoes of the same size beside them."""

    messages: int
    asked: list[float] = field(default_factory=list)
    echoed: list[float] = field(default_factory=list)
    reply_bytes: list[int] = field(default_factory=list)

    @property
    def session_id(self) -> str:
        """Its id."""
        return f"aged-{self.messages}"


async def measure(directory: Path) -> AsyncIterator[Figure]:
    """Load the sessions, then ask in turns."""
    sessions = [Session(size) for size in SIZES]
    async with system(directory) as one, one.running("worker"), one.running("query"):
        async with await nats.connect(one.url) as client, echo(one.url, client) as bare:
            for session in sessions:
                await load(one, client, session)
            await ask_in_turns(one, client, bare, sessions)
    for figure in figures(sessions):
        yield figure


def figures(sessions: Sequence[Session]) -> list[Figure]:
    """What is shown of the sessions."""
    found: list[Figure] = []
    youngest = Spread.of(sessions[0].asked)
    for session in sessions:
        spread, floor = Spread.of(session.asked), Spread.of(session.echoed)
        name = f"{session.messages:,} messages"
        found.append(Figure(benchmark="context.get", what=f"p50 to an echo, {name}", value=spread.p50_ms / floor.p50_ms, unit=RATIO, at_most=3.0))
        if session is not sessions[0]:
            aged = spread.p50_ms / youngest.p50_ms
            found.append(Figure(benchmark="context.get", what=f"p50 to p50 at {SIZES[0]}, {name}", value=aged, unit=RATIO, at_most=1.3, at_least=1 / 1.3))
        found.append(Figure(benchmark="context.get", what=f"p50, {name}", value=spread.p50_ms, unit="ms"))
        found.append(Figure(benchmark="context.get", what=f"p99, {name}", value=spread.p99_ms, unit="ms", at_most=5.0 if session.messages == 10_000 else None))
        found.append(Figure(benchmark="context.get", what=f"echo p50, {name}", value=floor.p50_ms, unit="ms"))
        found.append(Figure(benchmark="context.get", what=f"reply, {name}", value=middle(session.reply_bytes), unit="bytes"))
    return found


async def load(one: System, client: Client, session: Session) -> None:
    """Fill a session in few big events; its last turns, a publish of their own, are the same in every session."""
    stream = client.jetstream(timeout=30)
    random = Random(session.messages)
    older = session.messages // 4 - TAIL_TURNS
    seq = 0
    for number, start in enumerate(range(0, older, TURNS_PER_EVENT)):
        turns = [turn(random, start + at) for at in range(min(TURNS_PER_EVENT, older - start))]
        seq = await publish(stream, session, f"{session.session_id}-{number}", [message for one_turn in turns for message in one_turn])
    if seq:
        await ingested(one, seq)
        await until(lambda: not one.ask(PENDING)[0], seconds=LOAD_SECONDS)
    random = Random("tail")
    for at in range(TAIL_TURNS):
        seq = await publish(stream, session, f"{session.session_id}-tail-{at}", turn(random, 10**6 + at))
        await ingested(one, seq)
    await until(lambda: not one.ask(PENDING)[0], seconds=LOAD_SECONDS)


async def ingested(one: System, seq: int) -> None:
    """Wait until this sequence is stored, without a request that might leave something behind for the next."""
    await until(lambda: one.ask(STORED_TO)[0] >= seq, seconds=LOAD_SECONDS)


async def publish(stream: Any, session: Session, event_id: str, messages: Sequence[dict[str, Any]]) -> int:
    """Publish a turn; the sequence it got."""
    ack = await stream.publish(subject(session.session_id), event(event_id, session.session_id, messages), headers=headers(event_id))
    return int(ack.seq)


async def ask_in_turns(one: System, client: Client, bare: Echo, sessions: Sequence[Session]) -> None:
    """A new turn, its ingest, one timed request, one echo of the same size: for each session, again and again."""
    stream = client.jetstream(timeout=30)
    random = Random("live")
    for number in range(WARM_TURNS + TURNS):
        messages = turn(random, 2 * 10**6 + number)
        for session in sessions:
            seq = await publish(stream, session, f"{session.session_id}-live-{number}", messages)
            await ingested(one, seq)
            seconds, size = await ask(client, session, after=seq)
            echoed = await bare.seconds(size)
            if number >= WARM_TURNS:
                session.asked.append(seconds)
                session.echoed.append(echoed)
                session.reply_bytes.append(size)


async def ask(client: Client, session: Session, *, after: int) -> tuple[float, int]:
    """One window that holds the sequence `after`: how long it took, and its size in bytes."""
    body = json.dumps({"max_tokens": MAX_TOKENS, "after": after, "wait_ms": 5_000}).encode()
    asked = time.perf_counter()
    reply = await client.request(question(session.session_id), body, timeout=10)
    seconds = time.perf_counter() - asked
    told = json.loads(reply.data)
    assert told.get("fresh") is True, f"the answer is not fresh: {reply.data[:300]!r}"
    return seconds, len(reply.data)
