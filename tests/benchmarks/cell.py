"""Simulate the cell of docs/scale.md: 40,000 agents, 116 turns a second, PostgreSQL, two workers and two query servers.

Every session begins with a past, a model answers after 10 s, and agents take turns for
`CELL_MINUTES` (30) at `CELL_RATE` (116), whatever the system answers; `CELL_AGENTS` and `CELL_MAX_TOKENS` (32,000, of a
window) change the rest, and `CELL_SAMPLES` names a file for a sample every ten seconds. Then every message has
to be stored once. Long, so it only runs by its name.
"""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from random import Random
from time import monotonic

import asyncpg
import nats

import turnfold
from tests.benchmarks.cell_figures import CellRun, figures
from tests.benchmarks.cell_samples import CellProcesses, CellSampler, Sample, until_zero
from tests.benchmarks.cell_texts import CellSettings, CellTexts, key_of
from tests.benchmarks.figures import Figure
from tests.benchmarks.model import summary_model
from tests.benchmarks.system import System, system
from tests.postgres import running_postgres
from turnfold.cli.audit import as_sealed
from turnfold.client import Client, OutgoingEvent, turn_event
from turnfold.core.history.audit_chain import ChainEnd, chain_fault, end_fault
from turnfold.process.tasks import cancel_and_wait

FILL_SECONDS = 3_600.0
STORED_SECONDS = 120.0
DRAIN_SECONDS = 300.0
AUDITED = 50
UNINDEXED = "SELECT count(*) FROM sessions WHERE unindexed_from IS NOT NULL"
OPEN = "SELECT count(*) FROM compactions WHERE status IN ('pending', 'running')"
MESSAGES = "SELECT count(*) FROM messages"
DEAD_LETTERS = "SELECT count(*) FROM dead_letters"


async def measure(directory: Path) -> AsyncIterator[Figure]:
    """Run the cell that the environment describes."""
    for figure in figures(await simulate(directory, CellSettings.of_environment())):
        yield figure


async def simulate(directory: Path, settings: CellSettings) -> CellRun:
    """Start a cell, fill it, let its agents work, and look at what is left."""
    async with AsyncExitStack() as stack:
        postgres = stack.enter_context(running_postgres(is_durable=settings.is_durable))
        database = postgres.url(await postgres.create_database())
        model = await stack.enter_async_context(
            summary_model(str(settings.model_seconds), "tests.benchmarks.cell_model")
        )
        one = await stack.enter_async_context(
            system(
                directory,
                TURNFOLD_DATABASE_URL=database,
                TURNFOLD_SUMMARY_CONCURRENCY=str(settings.concurrency),
                TURNFOLD_LOG_FORMAT="json",
                **model.settings,
            )
        )
        services: dict[str, list[int]] = {}
        for part in ("worker", "query"):
            for _ in range(settings.services):
                process = await stack.enter_async_context(one.running(part))
                services.setdefault(part, []).append(process.pid)
        bus = await stack.enter_async_context(await nats.connect(one.url))
        client = await stack.enter_async_context(turnfold.connect(one.url, environ={}))
        connection = await asyncpg.connect(database.replace("+asyncpg", ""))
        stack.push_async_callback(connection.close)
        sampler = CellSampler(connection, bus.jetstream())
        run = CellRun(settings, await fill(client, sampler, settings))
        await connection.execute("ANALYZE")
        await connection.execute("CHECKPOINT")
        parts = services | {"model": [model.process.pid], "nats": [one.server_pid]}
        await work(one, run, sampler, CellProcesses(parts, postgres.pids))
        await look_back(client, run, sampler)
        run.logged = logged(directory / "turnfold.log")
        return run


async def fill(client: Client, sampler: CellSampler, settings: CellSettings) -> int:
    """Give every session its past, and wait until that is stored and indexed; the number of its messages."""
    random = Random("past")
    texts = CellTexts(random)
    filled = 0

    def pasts() -> Iterator[Iterable[OutgoingEvent]]:
        nonlocal filled
        for agent in range(settings.agents):
            turns = random.randint(*settings.past_turns)
            past = [
                message
                for number in range(turns)
                for message in texts.turn(agent * settings.past_turns[1] + number)
            ]
            filled += len(past)
            yield [turn_event(key_of(agent), past)]

    await client.publish_sessions(pasts())
    for what, left in (
        ("events are not stored", await until_zero(sampler.lag, seconds=FILL_SECONDS)),
        (
            "sessions are not indexed",
            await until_zero(lambda: sampler.count(UNINDEXED), seconds=FILL_SECONDS),
        ),
    ):
        if left:
            raise TimeoutError(f"{left} {what} after {FILL_SECONDS:g} s")
    return filled


async def work(one: System, run: CellRun, sampler: CellSampler, processes: CellProcesses) -> None:
    """Let the agents work, and take a sample whenever they tell what they have seen."""
    agents = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.benchmarks.cell_agents",
        one.url,
        json.dumps(asdict(run.settings)),
        stdout=PIPE,
        limit=1 << 20,
    )
    processes.add("agents", agents.pid)
    run.processes = processes.count()
    watching = asyncio.create_task(sampler.watch_lag())
    began = monotonic()
    try:
        run.samples.append(await sample(sampler, processes, began))
        async for told in lines_of(agents):
            run.agents = told
            if agents.returncode is None and "agents" not in told:
                run.samples.append(await sample(sampler, processes, began) | told)
                keep(run.samples[-1])
        if await agents.wait():
            raise RuntimeError("the agents failed")
    finally:
        if agents.returncode is None:
            agents.kill()
            await agents.wait()
        if watching.done():
            watching.result()
        await cancel_and_wait(watching)
    run.lags = sampler.lags


async def lines_of(agents: Process) -> AsyncIterator[Sample]:
    """The counts and times that the agents report."""
    assert agents.stdout
    while line := await agents.stdout.readline():
        yield json.loads(line)


async def sample(sampler: CellSampler, processes: CellProcesses, began: float) -> Sample:
    """The resources that the system uses now, and its backlog."""
    return {
        "seconds": monotonic() - began,
        "lag": await sampler.lag(),
        **await sampler.state(),
        "used": processes.used(),
        "held": processes.held(),
        "machine_seconds": processes.machine_seconds(),
    }


def keep(one: Sample) -> None:
    """Write a sample to the file that the environment names."""
    if name := os.environ.get("CELL_SAMPLES"):
        with Path(name).open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(one)}\n")


async def look_back(client: Client, run: CellRun, sampler: CellSampler) -> None:
    """Wait until all is stored and no summary is due, and look whether anything is missing."""
    run.unstored_events = await until_zero(sampler.lag, seconds=STORED_SECONDS)
    began = monotonic()
    run.open_jobs = await until_zero(lambda: sampler.count(OPEN), seconds=DRAIN_SECONDS)
    run.drained_seconds = monotonic() - began
    run.stored_messages = await sampler.count(MESSAGES)
    run.dead_letters = await sampler.count(DEAD_LETTERS)
    audited = run.agents["agents"][:AUDITED]
    run.audited = len(audited)
    run.broken_audits = [
        fault for agent in audited if (fault := await audit_fault(client, agent)) is not None
    ]


async def audit_fault(client: Client, agent: int) -> str | None:
    """The first fault in the audit of an agent's session."""
    session = client.session(*key_of(agent))
    end = ChainEnd(**(await session.status())["audit"])
    rows, hashes = [row async for row in session.audit_trail()], [""]
    return chain_fault(map(as_sealed, rows), hashes) or end_fault(hashes, end, None)


def logged(path: Path) -> dict[str, int]:
    """The number of times that each warning or error was logged."""
    found: dict[str, int] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            name = json.loads(line)["event"]
        except (ValueError, KeyError, TypeError):
            name = "no event"
        found[name] = found.get(name, 0) + 1
    return found
