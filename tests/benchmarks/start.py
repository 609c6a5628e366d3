"""Measure how long `turnfold up` takes to be ready, and the memory of its processes.

Five new data directories, each started twice. The memory of the last start is that at rest, and
after 1,000 requests; of what processes share, each has its part (PSS).
"""

import asyncio
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import nats

from tests.benchmarks.figures import Figure, middle
from tests.benchmarks.system import PROGRAM, proportional_mb, ready_line, stop
from tests.benchmarks.texts import publish, question, turn
from tests.environment import clean_environ

ROUNDS = 5
REQUESTS = 1_000
TURNS = 100
REST_SECONDS = 5.0


async def measure(directory: Path) -> AsyncIterator[Figure]:
    """Start on fresh data directories and again on the same; the last system is asked a thousand times."""
    first: list[float] = []
    later: list[float] = []
    memory: dict[str, float] = {}
    at_rest = 0.0
    for number in range(ROUNDS):
        for found in (first, later):
            async with up(directory / str(number)) as (seconds, ready):
                found.append(seconds)
                if found is later and number == ROUNDS - 1:
                    await asyncio.sleep(REST_SECONDS)
                    pids = {"up": ready["up"], **ready["pids"]}
                    at_rest = sum(map(proportional_mb, pids.values()))
                    await use(ready["nats_url"])
                    memory = {name: proportional_mb(pid) for name, pid in pids.items()}
    yield Figure("ready, first start", middle(first), "s", at_most=2.0)
    yield Figure("ready, later starts", middle(later), "s", at_most=1.5)
    yield Figure("memory at rest, all processes", at_rest, "MB", at_most=250.0)
    for name, megabytes in memory.items():
        what = f"memory after {REQUESTS:,} requests, {name}"
        yield Figure(what, megabytes, "MB", at_most=100.0 if name == "query" else None)


@asynccontextmanager
async def up(data: Path) -> AsyncGenerator[tuple[float, dict[str, Any]]]:
    """A system by one command: the seconds until its ready line, and what that says."""
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        PROGRAM, "up", "--json", "--data-dir", data, "--nats-port", "0", "--http-port", "0",
        env=clean_environ({"TURNFOLD_LOG_LEVEL": "error"}), stdin=DEVNULL, stdout=PIPE,
    )  # fmt: skip
    try:
        ready = await ready_line(process, "`turnfold up`")
        yield time.perf_counter() - began, ready | {"up": process.pid}
    finally:
        await stop(process)


async def use(url: str) -> None:
    """A session of four hundred messages, asked for a thousand times."""
    random = Random("start")
    async with await nats.connect(url) as client:
        stream = client.jetstream()
        seq = 0
        for number in range(TURNS):
            seq = await publish(stream, "s", f"e{number}", turn(random, number))
        for _ in range(REQUESTS):
            reply = await client.request(
                question("s"),
                b'{"max_tokens": 8000, "after": %d, "wait_ms": 5000}' % seq,
                timeout=10,
            )
            assert b'"messages"' in reply.data, reply.data[:300]
