"""Measure windows over HTTP under sixteen callers, beside a bare application on the same server.

The callers share one process; each keeps one connection and requests random windows of 200 sessions
of twenty turns (`BENCH_HTTP_SESSIONS` for fewer), in a closed loop for five seconds
(`BENCH_HTTP_SECONDS`), while agents publish 100 turns per second or none. The floor: an application
that answers with as many bytes at once, behind the same `HttpServer` in a process of its own. All
take turns, three times.
"""

import asyncio
import json
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random

import nats
import uvloop
from starlette.types import Receive, Scope, Send

from tests.benchmarks.figures import RATIO, Figure, Spread, middle
from tests.benchmarks.load import CALLERS, SESSIONS, fill, publish_steadily
from tests.benchmarks.system import cpu_seconds, ready_line, stop, system
from tests.benchmarks.texts import AGENT
from tests.ports import free_port
from turnfold.process.http_server import HttpServer
from turnfold.process.tasks import cancel_and_wait

SECONDS = float(os.environ.get("BENCH_HTTP_SECONDS", "5"))
ASKED = int(os.environ.get("BENCH_HTTP_SESSIONS", SESSIONS))
"""How many of the sessions are requested."""
ROUNDS = 3
HEADERS = b"Host: localhost\r\nAccept: */*\r\nUser-Agent: bench\r\n\r\n"


class Called:
    """Measurements of callers of one server: the rate, the spread, and its processor time per request."""

    def __init__(self, seconds: float, durations: list[float], used_seconds: float) -> None:
        self.rate = len(durations) / seconds
        self.spread = Spread.of(durations)
        self.cpu_ms = used_seconds / len(durations) * 1000


async def measure(directory: Path) -> AsyncIterator[Figure]:
    """Fill sessions, then let callers loose on windows and on the floor by turns."""
    port = free_port()
    async with (
        system(directory, TURNFOLD_HTTP_PORT=str(port)) as one,
        one.running("worker"),
        one.running("query") as query,
        await nats.connect(one.url) as client,
    ):
        size = await fill(one, client)
        found: dict[str, list[Called]] = {"echo": [], "windows": [], "windows beside events": []}
        async with bare(size) as (bare_port, bare_pid):
            for _ in range(ROUNDS):
                found["echo"].append(await called(bare_port, bare_pid))
                found["windows"].append(await called(port, query.pid))
                publishing = asyncio.create_task(publish_steadily(client))
                found["windows beside events"].append(await called(port, query.pid))
                if publishing.done():
                    publishing.result()
                await cancel_and_wait(publishing)
    for figure in figures(found):
        yield figure
    yield Figure("reply", size, "bytes")


def figures(found: dict[str, list[Called]]) -> list[Figure]:
    """The medians of the rounds, and the ratios to the floor."""
    rates = {what: middle(one.rate for one in calls) for what, calls in found.items()}
    times = {what: middle(one.cpu_ms for one in calls) for what, calls in found.items()}
    shown: list[Figure] = []
    for what, calls in found.items():
        is_floor = what == "echo"
        p50, p99 = (
            middle(one.spread.p50_ms for one in calls),
            middle(one.spread.p99_ms for one in calls),
        )
        shown += [
            Figure(f"{what}, {CALLERS} at once", rates[what], "requests/s", at_least=None if is_floor else 2_500),
            Figure(f"{what}, p50", p50, "ms"),
            Figure(f"{what}, p99", p99, "ms", at_most=None if is_floor else 20),
            Figure(f"{what}, processor", times[what], "ms"),
        ]  # fmt: skip
        if not is_floor:
            shown += [
                Figure(f"rate of {what} to echoes", rates[what] / rates["echo"], RATIO),
                Figure(f"processor of {what} to echoes", times[what] / times["echo"], RATIO),
            ]
    return shown


async def called(port: int, pid: int) -> Called:
    """Have the callers ask for some seconds, from a process of their own."""
    process, used = await _program("call", port, 0), cpu_seconds(pid)
    told, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError("the callers failed")
    seconds, durations = json.loads(told)
    return Called(seconds, durations, cpu_seconds(pid) - used)


@asynccontextmanager
async def bare(size: int) -> AsyncGenerator[tuple[int, int]]:
    """The floor in a process of its own: its port and its process id."""
    port = free_port()
    process = await _program("serve", port, size)
    try:
        await ready_line(process, "the floor")
        yield port, process.pid
    finally:
        await stop(process)


async def _program(what: str, port: int, size: int) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.benchmarks.http", what, str(port), str(size), stdout=PIPE
    )


async def _serve(port: int, size: int) -> None:
    """Answer everything with so many bytes."""
    start = {
        "type": "http.response.start",
        "status": 200,
        "headers": [
            (b"content-length", b"%d" % size),
            (b"content-type", b"application/json"),
        ],
    }
    end = {"type": "http.response.body", "body": b"x" * size}

    async def answer(_: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send(start)
        await send(end)

    server = HttpServer(answer, host="127.0.0.1", port=port, port_setting="port", connections=100)
    await server.open()
    print("{}", flush=True)
    await asyncio.Event().wait()


class _Caller(asyncio.Protocol):
    """One connection that requests again as soon as it was answered, until the deadline.

    Reading with a protocol costs the callers less than streams do, so that the server is what is
    measured on two cores.
    """

    def __init__(self, number: int, deadline: float) -> None:
        self.durations: list[float] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._random = Random(number)
        self._deadline = deadline
        self._began = 0.0
        self._left = -1
        self._head = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        if self._left < 0:
            self._head += data
            head, separator, body = self._head.partition(b"\r\n\r\n")
            if not separator:
                return
            if not head.startswith(b"HTTP/1.1 200"):
                self.ended.set_exception(RuntimeError(f"the answer is {head[:300]!r}"))
                self._transport.abort()
                return
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            self._left, data = int(length), body
        self._left -= len(data)
        if not self._left:
            self.durations.append(time.perf_counter() - self._began)
            if time.perf_counter() < self._deadline:
                self._ask()
            else:
                self.ended.set_result(None)
                self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(exc or RuntimeError("the server closed the connection"))

    def _ask(self) -> None:
        self._left, self._head = -1, b""
        session = self._random.randrange(ASKED)
        path = b"/v1/agents/%s/sessions/l%d/context?max_tokens=8000" % (AGENT.encode(), session)
        self._began = time.perf_counter()
        self._transport.write(b"GET %s HTTP/1.1\r\n%s" % (path, HEADERS))


async def _call(port: int) -> None:
    """The callers."""
    loop, began = asyncio.get_running_loop(), time.perf_counter()
    made = [
        await loop.create_connection(partial(_Caller, number, began + SECONDS), "127.0.0.1", port)
        for number in range(CALLERS)
    ]
    callers = [caller for _, caller in made]
    async with asyncio.timeout(2 * SECONDS + 10):
        await asyncio.gather(*(caller.ended for caller in callers))
    durations = [taken for caller in callers for taken in caller.durations]
    print(json.dumps([time.perf_counter() - began, durations]))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(
            _call(int(sys.argv[2]))
            if sys.argv[1] == "call"
            else _serve(int(sys.argv[2]), int(sys.argv[3]))
        )
