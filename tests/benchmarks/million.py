"""Measure windows of a usual session while its store grows to a million messages.

The session has 100 messages, the other thousands in the store (`BENCH_MILLION_MESSAGES`) 40 each.
As in `context`, a new turn is stored before each timed request, and an echo is timed after it.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import nats
from nats.aio.client import Client

from tests.benchmarks.context import TURNS, WARM_TURNS, Session, ask_in_turns, load
from tests.benchmarks.figures import RATIO, Figure, Spread
from tests.benchmarks.floors import echo
from tests.benchmarks.system import System, cpu_seconds, file_reads, system
from tests.benchmarks.texts import prose, publish

MOST = int(os.environ.get("BENCH_MILLION_MESSAGES", "1000000"))
SIZES = [size for size in (1_000, 100_000) if size < MOST] + [MOST]
USUAL_MESSAGES = 100
A_SESSION = 40
"""Messages of each other session: too few for an eviction, so nothing is left to do once they are stored."""
IN_FLIGHT = 100
FLAT = 1.3
TEXTS = 1_000
INDEX_SECONDS = 900.0
UNINDEXED = "SELECT count(*) FROM sessions WHERE unindexed_from IS NOT NULL"


@dataclass(frozen=True, slots=True)
class Seen:
    """What requests took while the store held so many messages; processor time and reads are those of a request."""

    asked: Spread
    echoed: Spread
    processor_ms: float
    reads: float
    filled_seconds: float


async def measure(directory: Path) -> AsyncIterator[Figure]:
    """Fill the store step by step, and ask at each."""
    seen: dict[int, Seen] = {}
    async with (
        system(directory) as one,
        one.running("worker"),
        one.running("query") as query,
        await nats.connect(one.url) as client,
        echo(one.url, client) as bare,
    ):
        for size in SIZES:
            began = time.perf_counter()
            await fill(one, client, size)
            filled = time.perf_counter() - began
            session = Session(USUAL_MESSAGES, f"beside-{size}")
            await load(one, client, session)
            used, read = cpu_seconds(query.pid), file_reads(query.pid)
            await ask_in_turns(one, client, bare, [session])
            used, read = cpu_seconds(query.pid) - used, file_reads(query.pid) - read
            requests = WARM_TURNS + TURNS
            seen[size] = Seen(
                Spread.of(session.asked),
                Spread.of(session.echoed),
                used / requests * 1000,
                read / requests,
                filled,
            )
        megabytes = one.database.stat().st_size / 1e6
    for figure in figures(seen):
        yield figure
    yield Figure("file of the database", megabytes, "MB")


def figures(seen: Mapping[int, Seen]) -> Iterator[Figure]:
    """What is shown of each size, beside the smallest."""
    least = seen[SIZES[0]]
    for size, here in seen.items():
        of = f"{size:,} messages in the store"
        if here is not least:
            slower, dearer = (
                here.asked.p50_ms / least.asked.p50_ms,
                here.processor_ms / least.processor_ms,
            )
            yield Figure(f"p50 to that at {SIZES[0]:,}, {of}", slower, RATIO, at_most=FLAT)
            yield Figure(f"processor to that at {SIZES[0]:,}, {of}", dearer, RATIO, at_most=FLAT)
        yield Figure(f"p50 to an echo, {of}", here.asked.p50_ms / here.echoed.p50_ms, RATIO)
        yield Figure(f"p50, {of}", here.asked.p50_ms, "ms")
        yield Figure(f"p99, {of}", here.asked.p99_ms, "ms")
        yield Figure(f"processor a request, {of}", here.processor_ms, "ms")
        yield Figure(f"reads of files a request, {of}", here.reads, "")
        yield Figure(f"filled up to {of} in", here.filled_seconds, "s")


async def fill(one: System, client: Client, size: int) -> None:
    """Store other sessions until there are so many messages."""
    stream, random, seq = client.jetstream(timeout=60), Random("million"), 0
    texts = [prose(random, 60) for _ in range(TEXTS)]
    missing = size - one.ask("SELECT count(*) FROM messages")[0]
    numbers = range(size, size + missing // A_SESSION)
    for start in range(0, len(numbers), IN_FLIGHT):
        published = [
            publish(stream, f"o{number}", f"o{number}", _messages(number, texts))
            for number in numbers[start : start + IN_FLIGHT]
        ]
        seq = max(await asyncio.gather(*published))
    if seq:
        await one.ingested(seq)
        deadline = time.monotonic() + INDEX_SECONDS
        while one.ask(UNINDEXED)[0]:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{one.ask(UNINDEXED)[0]} sessions are not indexed after {INDEX_SECONDS:g} s"
                )
            await asyncio.sleep(0.25)


def _messages(number: int, texts: list[str]) -> list[dict[str, Any]]:
    return [
        {"role": ("user", "assistant")[at % 2], "content": texts[(number * 7 + at) % TEXTS]}
        for at in range(A_SESSION)
    ]
