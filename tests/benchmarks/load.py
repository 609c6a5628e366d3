"""Measure one query server under sixteen callers, and the delay of an event under low load.

The callers share one process and request random windows of 200 sessions of twenty turns, in a
closed loop for 15 seconds (`BENCH_LOAD_SECONDS`), while agents publish. The floor: the same callers
request an echo of the same size.
"""

import asyncio
import json
import os
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random

import nats
from nats.aio.client import Client

from tests.benchmarks.context import Session as Asked
from tests.benchmarks.context import ask
from tests.benchmarks.figures import RATIO, Figure, Spread, middle
from tests.benchmarks.floors import echo
from tests.benchmarks.system import System, cpu_seconds, resident_mb, system
from tests.benchmarks.texts import event, headers, publish, question, subject, turn
from turnfold.process.tasks import cancel_and_wait

SESSIONS = 200
TURNS = 20
CALLERS = 16
EVENTS_PER_SECOND = 100
SECONDS = float(os.environ.get("BENCH_LOAD_SECONDS", "15"))
QUIET_TURNS = 200
QUIET_PAUSE_SECONDS = 0.02


async def measure(directory: Path) -> AsyncIterator[Figure]:
    """Fill sessions, see how soon an event is there, then let callers and publishers loose together."""
    async with (
        system(directory) as one,
        one.running("worker") as worker,
        one.running("query") as query,
        await nats.connect(one.url) as client,
        echo(one.url, client),
    ):
        size = await fill(one, client)
        visible = await until_visible(client)
        yield Figure("publish to an answer that shows it, p50", visible.p50_ms, "ms", at_most=50)
        yield Figure("publish to an answer that shows it, p99", visible.p99_ms, "ms")
        floor = await called(one.url, "echo", size)
        used = cpu_seconds(query.pid)
        memory = resident_mb(query.pid), resident_mb(worker.pid)
        publishing = asyncio.create_task(publish_steadily(client))
        found = await called(one.url, "context", size)
        if publishing.done():
            publishing.result()
        await cancel_and_wait(publishing)
        used, grown = (
            cpu_seconds(query.pid) - used,
            (resident_mb(query.pid) - memory[0], resident_mb(worker.pid) - memory[1]),
        )
    yield Figure("echo, 16 at once", floor.rate, "requests/s")
    yield Figure("echo, 16 at once, p99", floor.spread.p99_ms, "ms")
    yield Figure("windows to echoes, 16 at once", found.rate / floor.rate, RATIO)
    yield Figure(
        "windows, 16 at once, 100 events/s beside", found.rate, "requests/s", at_least=1_500
    )
    yield Figure("windows, 16 at once, p50", found.spread.p50_ms, "ms")
    yield Figure("windows, 16 at once, p99", found.spread.p99_ms, "ms", at_most=20)
    yield Figure("processor a window", used / found.number * 1000, "ms")
    yield Figure("reply", size, "bytes")
    yield Figure("memory of the query server grew by", grown[0], "MB")
    yield Figure("memory of the worker grew by", grown[1], "MB")


class Called:
    """What callers saw: how many answers, how many a second, and how long each took."""

    def __init__(self, seconds: float, durations: list[float]) -> None:
        self.number = len(durations)
        self.rate = self.number / seconds
        self.spread = Spread.of(durations)


async def called(url: str, what: str, size: int) -> Called:
    """Have the callers ask for some seconds, from a process of their own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.benchmarks.load", url, what, str(size), stdout=PIPE
    )
    told, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError("the callers failed")
    return Called(*json.loads(told))


async def fill(one: System, client: Client) -> int:
    """Sessions with some past; the usual size of an answer."""
    stream = client.jetstream(timeout=30)
    random, seq = Random("load"), 0
    for number in range(TURNS):
        published = [
            publish(stream, f"l{at}", f"{number}-{at}", turn(random, number))
            for at in range(SESSIONS)
        ]
        seq = max(await asyncio.gather(*published))
    await one.ingested(seq)
    await one.settled()
    sizes = [
        len((await client.request(question(f"l{at}"), b'{"max_tokens": 8000}', timeout=10)).data)
        for at in range(20)
    ]
    return int(middle(sizes))


async def until_visible(client: Client) -> Spread:
    """From the publish of a turn to the answer that shows it, where nothing else happens."""
    stream, random, taken = client.jetstream(timeout=30), Random("quiet"), list[float]()
    session = Asked(1)
    for number in range(QUIET_TURNS):
        body = event(f"quiet-{number}", session.session_id, turn(random, number))
        began = time.perf_counter()
        ack = await stream.publish(
            subject(session.session_id), body, headers=headers(f"quiet-{number}")
        )
        await ask(client, session, after=ack.seq)
        taken.append(time.perf_counter() - began)
        await asyncio.sleep(QUIET_PAUSE_SECONDS)
    return Spread.of(taken)


async def publish_steadily(client: Client) -> None:
    """So many turns a second, over all sessions, until cancelled."""
    stream, random, number = client.jetstream(timeout=30), Random("steady"), 0
    began = time.perf_counter()
    while True:
        at = f"l{number % SESSIONS}"
        await publish(stream, at, f"steady-{number}", turn(random, 10**6 + number))
        number += 1
        await asyncio.sleep(max(0.0, began + number / EVENTS_PER_SECOND - time.perf_counter()))


async def _call(url: str, what: str, size: int) -> None:
    """The callers: each asks again as soon as it was answered."""
    durations: list[float] = []
    async with await nats.connect(url) as client:
        deadline = time.perf_counter() + SECONDS

        async def caller(number: int) -> None:
            random = Random(number)
            while time.perf_counter() < deadline:
                began = time.perf_counter()
                await asks[what](client, random, size)
                durations.append(time.perf_counter() - began)

        began = time.perf_counter()
        await asyncio.gather(*(caller(number) for number in range(CALLERS)))
        print(json.dumps([time.perf_counter() - began, durations]))


async def _window(client: Client, random: Random, _: int) -> None:
    reply = await client.request(
        question(f"l{random.randrange(SESSIONS)}"), b'{"max_tokens": 8000}', timeout=10
    )
    assert b'"error"' not in reply.data[:20], reply.data[:300]


async def _echo(client: Client, _: Random, size: int) -> None:
    await client.request("echo", b"%d" % size, timeout=10)


asks: dict[str, Callable[[Client, Random, int], Awaitable[None]]] = {
    "context": _window,
    "echo": _echo,
}

if __name__ == "__main__":
    asyncio.run(_call(sys.argv[1], sys.argv[2], int(sys.argv[3])))
