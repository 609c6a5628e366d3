"""One chaos episode: faults until enough processes were killed, then the checks."""

import asyncio
import contextlib
import json
import random
import sqlite3
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from sqlalchemy import Connection, Table, delete, insert, select

from tests.chaos.fault_plan import Topology, plan
from tests.chaos.installation import START_SECONDS, Installation, running
from tests.chaos.load import PUBLISHERS, READERS, Clients, Load
from tests.history_checker import Checker, faults_in_notices
from tests.model_server import running_model_server
from tests.published import Published
from tests.running_system import Streamed, eventually, streamed, wait_until
from tests.strangers import listening
from turnfold.client import connect
from turnfold.contracts.subjects import NOTICES_STREAM
from turnfold.nats_client.connection import NatsClient
from turnfold.store.database import schema
from turnfold.store.database.engine import Database
from turnfold_migrations import upgrade

MODEL_FAULTS = ("answer",) * 6 + (
    "500",
    "429",
    "503",
    "drop",
    "empty",
    "broken",
    "length",
    "prose",
    "null",
    "refuse",
)
MODEL_ANSWERS = 10_000
NOTICES_SECONDS = 60.0
POLICY = {"TURNFOLD_POLICY__MAX_LIVE_MESSAGES": "16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What an episode was, and what came of it."""

    seed: int
    topology: Topology
    kills: int
    has_model: bool
    is_mixed: bool
    foreign_replies: int
    seconds: float
    done: Mapping[str, int]
    missed: Mapping[str, int]
    ended_by_themselves: Mapping[str, int]
    crashes: Mapping[str, int]
    events: int
    copies: int
    windows: int
    fresh_windows: int
    pages: int
    refused: Mapping[str, int]
    faults: Sequence[str]


@dataclass(frozen=True, slots=True)
class History:
    """All that was recorded: the database as a file of SQLite, and what was published, streamed and noticed."""

    database: Path
    published: Published
    stream: Sequence[Streamed]
    notices: Sequence[tuple[str, dict[str, Any]]]
    is_mixed: bool = False

    def faults(self) -> list[str]:
        """A sentence for each law that was broken."""
        return [
            *Checker(self.database, self.published, self.stream, is_mixed=self.is_mixed).faults(),
            *faults_in_notices(self.database, self.notices),
        ]


async def run(
    directory: Path,
    topology: Topology,
    *,
    seed: int,
    kills: int,
    has_model: bool = False,
    yesterday: Mapping[str, str] | None = None,
    has_strangers: bool = False,
) -> tuple[Told, History]:
    """Publish, read and do faults until so many processes were killed; then wait until all is settled, and look.

    With `yesterday`, the environment of older code, services of two versions are at work. With `has_strangers`, somebody replies
    to everything on the bus until the faults are over.
    """
    began = monotonic()
    async with (
        _model(seed, has_model=has_model) as environ,
        running(directory, topology, {**POLICY, **environ}, yesterday) as installation,
    ):
        async with (
            connected(installation.nats_urls) as clients,
            _strangers(installation, has_strangers=has_strangers) as heard,
        ):
            load = Load(seed, clients)
            await _troubled(installation, load, seed=seed, kills=kills, has_model=has_model)
        history = await recorded(installation, load.published)
        history = replace(history, is_mixed=yesterday is not None)
        readings = load.published.readings
        return Told(
            seed=seed,
            topology=topology,
            kills=installation.kills,
            has_model=has_model,
            is_mixed=yesterday is not None,
            foreign_replies=heard.total(),
            seconds=round(monotonic() - began, 1),
            done={
                f"{kind} {role}": times for (kind, role), times in sorted(installation.done.items())
            },
            missed={
                f"{kind} {role}": times
                for (kind, role), times in sorted(installation.missed.items())
            },
            ended_by_themselves=installation.ended_by_themselves(),
            crashes=installation.crashes(),
            events=len(load.published.attempted),
            copies=len(history.stream) - len(load.published.attempted),
            windows=len(readings),
            fresh_windows=sum(reading.answer["fresh"] for reading in readings),
            pages=len(load.published.pages),
            refused=dict(load.refused),
            faults=[*installation.faults, *_unused(load), *await asyncio.to_thread(history.faults)],
        ), history


def _unused(load: Load) -> list[str]:
    """A system that was of no use to anybody proves nothing."""
    windows = sum(reading.answer["fresh"] for reading in load.published.readings)
    return (
        []
        if windows and load.published.acknowledged
        else [f"{len(load.published.acknowledged)} events and {windows} fresh windows"]
    )


async def _troubled(
    installation: Installation, load: Load, *, seed: int, kills: int, has_model: bool
) -> None:
    async with asyncio.TaskGroup() as readers:
        for number in range(READERS):
            readers.create_task(load.read(number))
        async with asyncio.TaskGroup() as publishers:
            for number in range(PUBLISHERS):
                publishers.create_task(load.publish(number))
            async with asyncio.TaskGroup() as troubles:
                await wait_until(
                    lambda: load.published.readings, seconds=START_SECONDS, told=installation.words
                )
                for fault in plan(seed, installation.topology, has_model=has_model):
                    await asyncio.sleep(fault.pause_seconds)
                    await load.flowed(fault.after_events)
                    troubles.create_task(installation.strike(fault))
                    if installation.kills >= kills:
                        break
            load.is_calm.set()
        await load.settle(installation.words)


@asynccontextmanager
async def connected(urls: Sequence[str]) -> AsyncGenerator[Clients]:
    """Connections to a bus that dies now and then."""
    url = ",".join(urls)
    async with (
        connect(url, timeout_seconds=2, attempts=60, environ={}) as one,
        connect(url, timeout_seconds=2, attempts=60, environ={}) as another,
    ):
        bus = NatsClient()
        await bus.connect(
            list(urls), max_reconnect_attempts=-1, reconnect_time_wait=1, error_cb=_unheard
        )
        try:
            yield Clients(one, another, bus)
        finally:
            await bus.close()


async def _unheard(_: Exception) -> None:
    """A bus that is killed is expected to complain."""


@asynccontextmanager
async def _strangers(
    installation: Installation, *, has_strangers: bool
) -> AsyncGenerator[Counter[str]]:
    """What somebody heard who replies to everything; nothing where nobody does."""
    if not has_strangers:
        yield Counter()
        return
    async with listening(installation.nats_urls) as heard:
        yield heard


@asynccontextmanager
async def _model(seed: int, *, has_model: bool) -> AsyncGenerator[Mapping[str, str]]:
    """The settings that name a model which fails now and then; none where there is to be none."""
    if not has_model:
        yield {}
        return
    async with running_model_server() as server:
        server.script = random.Random(f"{seed} answers").choices(MODEL_FAULTS, k=MODEL_ANSWERS)
        yield server.settings | {"TURNFOLD_SUMMARY_TIMEOUT_SECONDS": "5"}


async def recorded(installation: Installation, published: Published) -> History:
    """What a system that has settled holds, beside what was published to it, once all notices were sent.

    It may still write stand-ins again meanwhile; and a notice that a bus with a full disk did not take waits for ten seconds.
    """
    url = installation.nats_urls[0]
    database = Database(installation.database_url, writes=False)
    try:
        copy = await eventually(
            partial(_told_copy, database, installation.directory),
            seconds=NOTICES_SECONDS,
            told=installation.words,
        )
    finally:
        await database.close()
    notices = [
        (notice.subject, json.loads(notice.payload))
        for notice in await streamed(url, NOTICES_STREAM)
    ]
    return History(copy, published, await streamed(url), notices)


async def _told_copy(database: Database, directory: Path) -> Path | None:
    """A copy of a database all of whose notices were sent; None where some were not yet."""
    if not await _is_told(database):
        return None
    copy = Path(tempfile.mkdtemp(dir=directory)) / "copy.db"
    if database.is_sqlite:
        _back_up(Path(str(database.url.database)), copy)
    else:
        await _move(database, copy)
    copied = Database(f"sqlite+aiosqlite:///{copy}", writes=False)
    try:
        return copy if await _is_told(copied) else None
    finally:
        await copied.close()


def _back_up(database: Path, copy: Path) -> None:
    with (
        contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as source,
        contextlib.closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)


async def _move(source: Database, copy: Path) -> None:
    """All rows of one snapshot, into a file of SQLite that the migrations made: both have the same tables and views."""
    await upgrade(f"sqlite+aiosqlite:///{copy}")
    with contextlib.closing(sqlite3.connect(copy)) as made:
        # What triggers counted is copied like all the rest.
        made.executescript("DROP TRIGGER sessions_made; DROP TRIGGER sessions_gone")
    tables = await source.snapshot(_all_rows)
    target = Database(f"sqlite+aiosqlite:///{copy}", writes=True)
    try:
        await target.write(partial(_put, tables))
    finally:
        await target.close()


def _all_rows(connection: Connection) -> list[tuple[Table, list[dict[str, Any]]]]:
    return [
        (table, [dict(row) for row in connection.execute(select(table)).mappings()])
        for table in schema.metadata.sorted_tables
    ]


def _put(tables: Sequence[tuple[Table, list[dict[str, Any]]]], connection: Connection) -> None:
    # A migration may have put rows of its own there.
    for table, _ in reversed(tables):
        connection.execute(delete(table))
    for table, rows in tables:
        if rows:
            connection.execute(insert(table), rows)


async def _is_told(database: Database) -> bool:
    """Whether every notice was published; those of what was copied before were then, too."""
    return not await database.snapshot(
        lambda connection: connection.execute(select(schema.outbox).limit(1)).all()
    )
