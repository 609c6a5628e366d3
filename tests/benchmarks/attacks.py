"""Measure what one attacker costs others: windows of another agent, with and without each attack.

Each attack meets a new system. A probe of another agent requests 25 windows per second on the bus
and 25 over HTTP, on new connections, and publishes 4 turns per second, each followed by a window
that must show it. Requests start by the clock; a failed one counts as a failure and with its
duration. The ratios divide what the probe measures during the attack by what it measures directly
before it and after the system has recovered. The attacker (`attackers`) runs in its own process,
with a fixed rate and at most a fifth of a core. It proves X6 and C72.

`BENCH_ATTACK_SECONDS` (30), `BENCH_ATTACKS` (names of `attackers.ATTACKS`, separated by commas) and
`BENCH_DATABASE` (`sqlite` or `postgresql`) choose what runs.
"""

import asyncio
import json
import os
import resource
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client as Bus

import turnfold
from tests.benchmarks.attacker import AGENT as ATTACKER
from tests.benchmarks.attacker import CPU_SHARE, PREPARE_SECONDS
from tests.benchmarks.attackers import ATTACKS
from tests.benchmarks.figures import RATIO, Figure, Spread
from tests.benchmarks.system import children, cpu_seconds, ready_line, resident_mb, stop, system
from tests.benchmarks.texts import AGENT, question, turn
from tests.postgres import running_postgres
from turnfold.access.bearers import new_token
from turnfold.errors import TurnfoldError
from turnfold.process.tasks import cancel_and_wait
from turnfold.process.tcp_ports import reserved_port

SECONDS = float(os.environ.get("BENCH_ATTACK_SECONDS", "30"))
CHOSEN = os.environ.get("BENCH_ATTACKS", ",".join(ATTACKS)).split(",")
DATABASE = os.environ.get("BENCH_DATABASE", "sqlite")
SESSIONS = 8
FIRST_TURNS = 25
REQUESTS_PER_SECOND = 25
TURNS_PER_SECOND = 4
MAX_TOKENS = 8_000
TIMEOUT_SECONDS = 10.0
SAMPLE_SECONDS = 0.2
RECOVERY_SECONDS = 60.0
MOST_P99, MOST_MEMORY = 2.0, 1.5
OPEN_FILES = 1_024
"""What a process may open where nobody says otherwise."""


@dataclass
class Phase:
    """What the probe measured while something lasted: seconds of each request, failures, and the largest memory in MB."""

    bus: list[float] = field(default_factory=list)
    http: list[float] = field(default_factory=list)
    turns: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    stale: int = 0
    query_mb: float = 0.0
    worker_mb: float = 0.0


@dataclass
class Attacked:
    """The system under attack: where it listens, its processes, and the token of each agent."""

    nats_url: str
    http_port: int
    worker: Process
    query: Process
    tokens: dict[str, str]

    def memory(self) -> tuple[float, float]:
        """The resident memory of the query service and of the worker, each with the processes it started."""
        query_mb, worker_mb = (
            sum(map(resident_mb, [one.pid, *children(one.pid)]))
            for one in (self.query, self.worker)
        )
        return query_mb, worker_mb

    def cpu_seconds(self) -> float:
        """The processor time of the services."""
        return cpu_seconds(self.worker.pid) + cpu_seconds(self.query.pid)


class Probe:
    """Another agent: it asks for windows at a steady rate and publishes turns; `phase` receives what it measures."""

    def __init__(self, attacked: Attacked, bus: Bus, client: turnfold.Client) -> None:
        self._attacked = attacked
        self._bus = bus
        self._client = client
        self._random = Random("probe")
        self._turns = count()
        self._open: set[asyncio.Task[None]] = set()
        self.phase = Phase()

    async def prepare(self) -> None:
        """Give the sessions a past."""
        for number in range(SESSIONS * FIRST_TURNS):
            await self._publish(number, wait_ms=5_000)

    async def run(self) -> None:
        """Probe until cancelled. Requests begin by the clock, whether earlier ones were answered or not."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._steadily(REQUESTS_PER_SECOND, self._ask_bus))
            group.create_task(self._steadily(REQUESTS_PER_SECOND, self._ask_http))
            group.create_task(self._steadily(TURNS_PER_SECOND, self._take_turn))
            group.create_task(self._sample_memory())

    async def _steadily(
        self, per_second: float, ask: Callable[[int, Phase], Coroutine[Any, Any, None]]
    ) -> None:
        began = time.perf_counter()
        for number in count():
            await asyncio.sleep(began + number / per_second - time.perf_counter())
            task = asyncio.create_task(ask(number, self.phase))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def _ask_bus(self, number: int, phase: Phase) -> None:
        began = time.perf_counter()
        try:
            reply = await self._bus.request(
                question(_session(number)),
                b'{"max_tokens": %d}' % MAX_TOKENS,
                timeout=TIMEOUT_SECONDS,
            )
            if b'"error"' in reply.data[:20]:
                phase.failures.append(f"bus: {json.loads(reply.data)['error']['code']}")
        except (nats.errors.Error, TimeoutError) as error:
            phase.failures.append(f"bus: {type(error).__name__}")
        phase.bus.append(time.perf_counter() - began)

    async def _ask_http(self, number: int, phase: Phase) -> None:
        """Ask on a new connection, so that a server that accepts none is noticed."""
        began = time.perf_counter()
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                status = await self._get(
                    f"/v1/agents/{AGENT}/sessions/{_session(number)}/context?max_tokens={MAX_TOKENS}"
                )
            if status != "200":
                phase.failures.append(f"HTTP: {status}")
        except (OSError, TimeoutError) as error:
            phase.failures.append(f"HTTP: {type(error).__name__}")
        phase.http.append(time.perf_counter() - began)

    async def _get(self, path: str) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._attacked.http_port)
        try:
            head = f"GET {path} HTTP/1.1\r\nHost: probe\r\nAuthorization: Bearer {self._attacked.tokens[AGENT]}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode())
            answer = await reader.read(-1)
            return (
                answer.partition(b"\r\n")[0].decode("latin1").split(" ")[1]
                if answer
                else "closed without an answer"
            )
        finally:
            writer.close()

    async def _take_turn(self, _: int, phase: Phase) -> None:
        began = time.perf_counter()
        try:
            if not await self._publish(next(self._turns), wait_ms=5_000):
                phase.stale += 1
        except TurnfoldError as error:
            phase.failures.append(f"turn: {type(error).__name__}")
        phase.turns.append(time.perf_counter() - began)

    async def _publish(self, number: int, *, wait_ms: int) -> bool:
        """Publish a turn and ask for the window after it; whether a window that says `fresh` shows it."""
        session = self._client.session(AGENT, _session(number))
        receipt = await session.turn_completed(turn(self._random, number))
        window = await session.context(max_tokens=MAX_TOKENS, wait_ms=wait_ms)
        return not window.fresh or any(
            str(one).startswith(receipt.event_id) for one in window.message_ids
        )

    async def _sample_memory(self) -> None:
        while True:
            query_mb, worker_mb = self._attacked.memory()
            self.phase.query_mb = max(self.phase.query_mb, query_mb)
            self.phase.worker_mb = max(self.phase.worker_mb, worker_mb)
            await asyncio.sleep(SAMPLE_SECONDS)


async def measure(directory: Path) -> AsyncIterator[Figure]:
    """Run the chosen attacks, one after the other."""
    for name in CHOSEN:
        async with AsyncExitStack() as stack:
            attacked = await stack.enter_async_context(attacked_system(directory / name))
            bus = await stack.enter_async_context(await nats.connect(attacked.nats_url))
            client = await stack.enter_async_context(
                turnfold.connect(attacked.nats_url, environ={})
            )
            found = await attack(name, attacked, Probe(attacked, bus, client))
        for figure in figures(name, *found):
            yield figure


@asynccontextmanager
async def attacked_system(directory: Path) -> AsyncGenerator[Attacked]:
    """A running system that knows two agents, each with a token."""
    directory.mkdir(parents=True)  # noqa: ASYNC240 - nothing else waits yet
    tokens: dict[str, str] = {
        agent: new_token(directory / "tokens.json", [agent]) for agent in (AGENT, ATTACKER)
    }
    with ExitStack() as stack:
        port = stack.enter_context(reserved_port("127.0.0.1", 0, option="none"))
        settings = {
            "TURNFOLD_HTTP_TOKENS": str(directory / "tokens.json"),
            "TURNFOLD_HTTP_PORT": str(port),
        }
        stack.enter_context(open_files(OPEN_FILES))
        if DATABASE == "postgresql":
            postgres = stack.enter_context(running_postgres())
            settings["TURNFOLD_DATABASE_URL"] = postgres.url(await postgres.create_database())
        async with (
            system(directory, **settings) as one,
            one.running("worker") as worker,
            one.running("query") as query,
        ):
            yield Attacked(one.url, port, worker, query, tokens)


@contextmanager
def open_files(most: int) -> Generator[None]:
    """Let this process, and those that it starts, open this many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@dataclass
class Outcome:
    """What the attacker did, how long the system took to recover, and the processor time of its services in cores."""

    cpu_share: float
    outcomes: dict[str, int]
    recovery_seconds: float
    services_cores: float


async def attack(name: str, attacked: Attacked, probe: Probe) -> tuple[Phase, Phase, Outcome]:
    """Probe before, during and after the attack: what was measured without it, with it, and what the attacker did."""
    await probe.prepare()
    async with attacker(name, attacked) as process:
        probing = asyncio.create_task(probe.run())
        try:
            await asyncio.sleep(2)
            quiet, during, recovering = Phase(), Phase(), Phase()
            probe.phase, used = quiet, attacked.cpu_seconds()
            await asyncio.sleep(SECONDS / 2)
            usual_cores = (attacked.cpu_seconds() - used) / (SECONDS / 2)
            probe.phase, used = during, attacked.cpu_seconds()
            told = await _attack(process)
            services_cores = (attacked.cpu_seconds() - used) / SECONDS
            probe.phase, began = recovering, time.monotonic()
            await _recovered(attacked, usual_cores)
            recovery_seconds = time.monotonic() - began
            # What memory stays behind afterwards does not count as usual.
            memory = quiet.query_mb, quiet.worker_mb
            probe.phase = quiet
            await asyncio.sleep(SECONDS / 2)
            quiet.query_mb, quiet.worker_mb = memory
        finally:
            if probing.done():
                probing.result()
            await cancel_and_wait(probing)
    return (
        quiet,
        during,
        Outcome(told["cpu_share"], told["outcomes"], recovery_seconds, services_cores),
    )


@asynccontextmanager
async def attacker(name: str, attacked: Attacked) -> AsyncGenerator[Process]:
    """The attacker's process, prepared."""
    url = f"http://127.0.0.1:{attacked.http_port}"
    given = (name, attacked.nats_url, url, attacked.tokens[ATTACKER], str(SECONDS))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.benchmarks.attackers", *given, stdin=PIPE, stdout=PIPE
    )
    try:
        async with asyncio.timeout(PREPARE_SECONDS):
            await ready_line(process, f"the attacker {name}")
        yield process
    finally:
        await stop(process)


async def _attack(process: Process) -> dict[str, Any]:
    assert process.stdin
    assert process.stdout
    process.stdin.write(b"attack\n")
    async with asyncio.timeout(SECONDS + PREPARE_SECONDS):
        return dict(json.loads(await process.stdout.readline()))


async def _recovered(attacked: Attacked, usual_cores: float) -> None:
    """Wait until the services use no more of the processor than usual, at most a minute."""
    deadline = time.monotonic() + RECOVERY_SECONDS
    while time.monotonic() < deadline:
        used = attacked.cpu_seconds()
        await asyncio.sleep(1)
        if attacked.cpu_seconds() - used <= 1.5 * usual_cores + 0.05:
            return


def figures(name: str, quiet: Phase, during: Phase, outcome: Outcome) -> Iterator[Figure]:
    """The goals of all attacks in one table, and what they are made of in a table per attack."""

    def goal(what: str, value: float, unit: str, at_most: float) -> Figure:
        return Figure(f"{name}: {what}", value, unit, at_most=at_most)

    def detail(what: str, value: float, unit: str) -> Figure:
        return Figure(what, value, unit, benchmark=f"attacks, {name}")

    yield detail(f"Attack: {ATTACKS[name].title}; seconds", SECONDS, "s")
    for way, usual, found, is_goal in (
        ("context.get, bus", quiet.bus, during.bus, True),
        ("context.get, HTTP", quiet.http, during.http, True),
        ("publish to a window that shows it", quiet.turns, during.turns, False),
    ):
        before, beside = Spread.of(usual), Spread.of(found)
        ratio = beside.p99_ms / before.p99_ms
        yield (
            goal(f"{way}, p99", ratio, RATIO, MOST_P99)
            if is_goal
            else detail(f"{way}, p99", ratio, RATIO)
        )
        for when, spread in (("without the attack", before), ("during the attack", beside)):
            yield detail(f"{way}, p50 {when}", spread.p50_ms, "ms")
            yield detail(f"{way}, p99 {when}", spread.p99_ms, "ms")
    for part, usual_mb, most_mb in (
        ("query", quiet.query_mb, during.query_mb),
        ("worker", quiet.worker_mb, during.worker_mb),
    ):
        yield goal(f"memory, {part}", most_mb / usual_mb, RATIO, MOST_MEMORY)
        yield detail(f"memory of {part}, without the attack", usual_mb, "MB")
        yield detail(f"memory of {part}, during the attack", most_mb, "MB")
    yield goal("others' requests that fail", len(during.failures), "requests", 0)
    for failure in sorted(set(during.failures)):
        yield detail(f"failed requests, {failure}", during.failures.count(failure), "requests")
    yield goal("windows that say fresh and lack the turn", during.stale, "windows", 0)
    yield detail(f"attacker, paced to {CPU_SHARE:g} of a core at most", outcome.cpu_share, "cores")
    for what, times in sorted(outcome.outcomes.items()):
        yield detail(f"attacker: {what}", times, "times")
    yield detail("worker and query during the attack", outcome.services_cores, "cores")
    yield detail("until worker and query rested again", outcome.recovery_seconds, "s")


def _session(number: int) -> str:
    return f"probed-{number % SESSIONS}"
