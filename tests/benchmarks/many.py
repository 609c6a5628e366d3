"""Measure ten thousand sessions at once: all publish and evict while windows are requested.

Sessions of 46 messages get three turns of two messages; the third evicts. Windows are mostly
uncached.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random

import nats
from nats.aio.client import Client as Bus

import turnfold
from tests.benchmarks.figures import Figure, Spread
from tests.benchmarks.system import PENDING, children, cpu_seconds, resident_mb, system
from tests.benchmarks.texts import AGENT, prose, question
from turnfold.client import Client, OutgoingEvent, session_key, turn_event

SESSIONS = 10_000
PAST_MESSAGES = 46
TURNS = 3
"""Of two messages each; the last of them makes its session evict."""
AT_ONCE = 500
TEXTS = 1_000
CALLERS = 4
EVENTS_PER_SECOND = 100
SECONDS = 15
EVICTIONS = "SELECT count(*) FROM compactions"


async def measure(directory: Path) -> AsyncIterator[Figure]:
    """Give every session a past, have all go on at once, then ask for windows while they go on slowly."""
    random = Random("many")
    texts = [prose(random, 175) for _ in range(TEXTS)]

    def turns(messages: int) -> list[OutgoingEvent]:
        """One of each session, in any order."""
        return [
            event(number, random.choices(texts, k=messages))
            for number in random.sample(range(SESSIONS), SESSIONS)
        ]

    async with (
        system(directory) as one,
        one.running("worker") as worker,
        one.running("query") as query,
        await nats.connect(one.url) as bus,
        turnfold.connect(one.url, environ={}) as client,
    ):
        await one.ingested(await publish(client, turns(PAST_MESSAGES)))
        going_on = [one_turn for _ in range(TURNS) for one_turn in turns(2)]
        used, began = cpu_seconds(worker.pid), time.perf_counter()
        await one.ingested(await publish(client, going_on))
        seconds, used = time.perf_counter() - began, cpu_seconds(worker.pid) - used
        yield Figure(
            "from the first publish to the last stored", len(going_on) / seconds, "events/s"
        )
        yield Figure("processor, worker", used / len(going_on) * 1e6, "us/event")
        yield Figure("evictions by then", one.ask(EVICTIONS)[0], "")
        yield Figure("of them without a summary yet", one.ask(PENDING)[0], "")
        used = cpu_seconds(query.pid)
        publishing = asyncio.create_task(publish_slowly(client, turns(2)))
        taken = [
            one_window
            for asked in await asyncio.gather(
                *(ask(bus, Random(number)) for number in range(CALLERS))
            )
            for one_window in asked
        ]
        used = cpu_seconds(query.pid) - used
        await publishing
        spread, beside = (
            Spread.of(taken),
            f"{CALLERS} callers beside {EVENTS_PER_SECOND} events/s and summaries",
        )
        yield Figure(f"windows of any session, {beside}", len(taken) / SECONDS, "requests/s")
        yield Figure("the same, p50", spread.p50_ms, "ms")
        yield Figure("the same, p99", spread.p99_ms, "ms")
        yield Figure("the same, processor a window", used / len(taken) * 1000, "ms")
        held = {"worker": worker.pid, "query server": query.pid, "nats-server": one.server_pid}
        for name, pid in held.items():
            yield Figure(f"memory, {name}", resident_mb(pid), "MB")
        yield Figure(
            "memory, children of the worker", sum(map(resident_mb, children(worker.pid))), "MB"
        )


def event(number: int, says: Sequence[str]) -> OutgoingEvent:
    """A turn of a session: users and assistants by turns."""
    messages = [
        {"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(says)
    ]
    return turn_event(session_key(AGENT, f"many-{number}"), messages)


async def publish(client: Client, events: Sequence[OutgoingEvent]) -> int:
    """Publish all of them in batches; the sequence of the last."""
    last = 0
    for start in range(0, len(events), AT_ONCE):
        last = (await client.publish_batch(events[start : start + AT_ONCE]))[-1].seq
    return last


async def publish_slowly(client: Client, events: Sequence[OutgoingEvent]) -> None:
    """So many a second, one by one."""
    began = time.perf_counter()
    for number, one in enumerate(events[: EVENTS_PER_SECOND * SECONDS], 1):
        await client.publish(one)
        await asyncio.sleep(max(0.0, began + number / EVENTS_PER_SECOND - time.perf_counter()))


async def ask(bus: Bus, random: Random) -> list[float]:
    """The seconds that each window took; each is asked for as soon as the one before is there."""
    taken: list[float] = []
    deadline = time.perf_counter() + SECONDS
    while (asked := time.perf_counter()) < deadline:
        reply = await bus.request(
            question(f"many-{random.randrange(SESSIONS)}"), b'{"max_tokens": 8000}', timeout=10
        )
        assert not reply.data.startswith(b'{"error"'), reply.data[:300]
        taken.append(time.perf_counter() - asked)
    return taken
