"""The intake waits for no connection that other work holds, and other work waits in turn."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import Connection, text

from tests.postgres import Postgres
from tests.store_fixtures import SMALL, installation_of, new_postgres, new_sqlite, turns
from turnfold.store.compact.withdrawal import withdraw
from turnfold.store.database.engine import READERS, Database
from turnfold.store.ingest.ingest import SqlIngestStore

JOBS = 100
GATE = 4_711
PASS = text(f"SELECT pg_advisory_xact_lock_shared({GATE})")
"""A statement that waits for as long as somebody holds the gate."""


@asynccontextmanager
async def closed_gate(url: str) -> AsyncGenerator[asyncpg.Connection]:
    """Hold the gate in a session of its own, until `opened`."""
    session = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        await session.execute(f"SELECT pg_advisory_lock({GATE})")
        yield session
    finally:
        await session.close()


async def waiting_at_the_gate(session: asyncpg.Connection, number: int) -> None:
    """Return when so many connections wait for the gate."""
    waiting = (
        f"SELECT count(*) >= {number} FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    )
    async with asyncio.timeout(20):
        while not await session.fetchval(waiting):  # noqa: ASYNC110 - a server tells nobody
            await asyncio.sleep(0.01)


@pytest.mark.proves("L4", "E2")
async def test_an_event_is_stored_while_jobs_hold_all_connections_that_they_may_have(
    postgres: Postgres,
) -> None:
    url = await new_postgres(postgres)
    database = Database(url, writes=True)
    installation, _ = installation_of(SMALL)
    try:
        async with closed_gate(url) as gate:
            jobs = [
                asyncio.create_task(database.write(lambda at: at.execute(PASS)))
                for _ in range(JOBS)
            ]
            await waiting_at_the_gate(gate, 4)
            async with asyncio.timeout(20):
                stored = await SqlIngestStore(database, withdraw).ingest(
                    turns(1, 3), (), installation=installation
                )
            is_held_up = not any(task.done() for task in jobs)
        done = await asyncio.gather(*jobs)
    finally:
        await database.close()

    assert (stored.events, is_held_up) == (3, True)
    assert len(done) == JOBS


@pytest.mark.proves("L4", "E2")
async def test_on_sqlite_the_intake_waits_for_one_other_transaction_at_most(tmp_path: Path) -> None:
    database = Database(new_sqlite(tmp_path), writes=True)
    begun, may_end = threading.Event(), threading.Event()

    def first(_: Connection) -> None:
        begun.set()
        may_end.wait(20)

    def stored(connection: Connection) -> int:
        return int(connection.execute(text("SELECT count(*) FROM messages")).scalar_one())

    try:
        blocking = asyncio.create_task(database.write(first))
        await asyncio.to_thread(begun.wait, 20)
        jobs = [asyncio.create_task(database.write(stored)) for _ in range(JOBS)]
        await asyncio.sleep(0)
        events = asyncio.create_task(
            SqlIngestStore(database, withdraw).ingest(
                turns(1, 1), (), installation=installation_of(SMALL)[0]
            )
        )
        await asyncio.sleep(0)
        may_end.set()
        await asyncio.gather(blocking, events)
        seen = await asyncio.gather(*jobs)
    finally:
        may_end.set()
        await database.close()

    assert len(seen) == JOBS
    assert seen.count(0) <= 1


@pytest.mark.proves("L4", "E2")
async def test_locks_that_are_held_for_long_take_no_connection_from_readers(
    postgres: Postgres,
) -> None:
    url = await new_postgres(postgres)
    database = Database(url, writes=True)
    try:
        async with AsyncExitStack() as held, closed_gate(url) as gate:
            await held.enter_async_context(database.advisory_lock(1))
            await held.enter_async_context(database.try_lock(2))
            reading = [
                asyncio.create_task(database.snapshot(lambda at: at.execute(PASS)))
                for _ in range(READERS)
            ]
            await waiting_at_the_gate(gate, READERS)
            await database.vacuum()
        read = await asyncio.gather(*reading)
    finally:
        await database.close()

    assert len(read) == READERS
