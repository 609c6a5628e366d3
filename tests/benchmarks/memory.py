"""Measure the memory of the processes while sessions come and go: its slope after a warm-up.

50 turns and 50 windows per second over 200 sessions of forty turns, replaced as they end, for
`BENCH_MEMORY_MINUTES` (2; 60 for the hour). The slope is that of the last two thirds.
"""

import asyncio
import os
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from random import Random
from statistics import linear_regression

import nats
from nats.aio.client import Client

from tests.benchmarks.figures import Figure, middle
from tests.benchmarks.system import children, resident_mb, system
from tests.benchmarks.texts import publish, question, turn
from turnfold.process.tasks import cancel_and_wait

SESSIONS = 200
TURNS_A_SESSION = 40
EVENTS_PER_SECOND = 50
REQUESTS_PER_SECOND = 50
MINUTES = float(os.environ.get("BENCH_MEMORY_MINUTES", "2"))
WARM_SHARE = 1 / 3
SAMPLE_SECONDS = 1.0


async def measure(directory: Path) -> AsyncIterator[Figure]:
    """Publish and ask for some minutes, and look at the memory once a second."""
    seen: dict[str, list[float]] = {}
    at: list[float] = []
    async with (
        system(directory) as one,
        one.running("worker") as worker,
        one.running("query") as query,
        await nats.connect(one.url) as client,
    ):
        load = [asyncio.create_task(_publish(client)), asyncio.create_task(_ask(client))]
        began = time.monotonic()
        while time.monotonic() < began + MINUTES * 60:
            await asyncio.sleep(SAMPLE_SECONDS)
            for task in load:
                if task.done():
                    task.result()
            at.append((time.monotonic() - began) / 3600)
            for name, megabytes in _held(worker, query, one.server_pid).items():
                seen.setdefault(name, []).append(megabytes)
        await cancel_and_wait(*load)
    yield Figure("length of the run", MINUTES, "min")
    for name, held in seen.items():
        warm = int(len(at) * WARM_SHARE)
        slope = linear_regression(at[warm:], held[warm:]).slope
        yield Figure(
            f"{name}, after the warm-up", middle(held[warm : warm + len(held) // 10 + 1]), "MB"
        )
        yield Figure(f"{name}, at the end", middle(held[-len(held) // 10 :]), "MB")
        yield Figure(f"{name}, slope", slope, "MB/hour")


def _held(worker: Process, query: Process, server_pid: int) -> Mapping[str, float]:
    """The memory of each part; the worker's children, which write summaries and count tokens, by themselves."""
    return {
        "worker": resident_mb(worker.pid),
        "children of the worker": sum(map(resident_mb, children(worker.pid))),
        "query server": resident_mb(query.pid),
        "nats-server": resident_mb(server_pid),
    }


async def _publish(client: Client) -> None:
    stream, random, number = client.jetstream(timeout=30), Random("memory"), 0
    began = time.monotonic()
    while True:
        await publish(stream, _session(number), f"m-{number}", turn(random, number))
        number += 1
        await asyncio.sleep(max(0.0, began + number / EVENTS_PER_SECOND - time.monotonic()))


async def _ask(client: Client) -> None:
    random, began, number = Random("memory"), time.monotonic(), 0
    while True:
        now = int((time.monotonic() - began) * EVENTS_PER_SECOND)
        session = _session(now - random.randrange(SESSIONS))
        reply = await client.request(question(session), b'{"max_tokens": 8000}', timeout=10)
        assert not reply.data.startswith(b'{"error"'), reply.data[:300]
        number += 1
        await asyncio.sleep(max(0.0, began + number / REQUESTS_PER_SECOND - time.monotonic()))


def _session(number: int) -> str:
    """The session of this event: so many at once, each followed by another after its last turn."""
    return f"m{number % SESSIONS}-{number // (SESSIONS * TURNS_A_SESSION)}"
