"""What is told of a database, on both: what waits in it, and whether it can be written."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.store_fixtures import (
    KEY,
    NOON,
    Stores,
    new_sqlite,
    sql_stores,
    summary,
    turns,
)
from turnfold.errors import Unavailable
from turnfold.store.database.engine import Database
from turnfold.store.database.statistics import SqlStatistics
from turnfold_migrations import upgrade


@pytest.fixture
async def stores(url: str) -> AsyncGenerator[Stores]:
    async with sql_stores(url) as made:
        yield made


@pytest.mark.proves("O4")
async def test_an_eviction_waits_for_its_summary_and_for_whoever_is_told(
    stores: Stores,
) -> None:
    figures = SqlStatistics(stores.database)
    assert sum(await figures.waiting(now_ms=NOON)) == 0
    await stores.ingest(*turns(1, 7))

    pending = await figures.waiting(now_ms=NOON + 60_000)
    (job,) = await stores.claim(NOON + 61_000)
    running = await figures.waiting(now_ms=NOON + 62_000)
    await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON + 63_000)
    await stores.outbox.sent(await stores.outbox.unsent(10))
    while await stores.index.index_some():
        continue

    assert (pending.pending, pending.running, pending.messages) == (
        1,
        0,
        (await stores.history.counts(KEY)).messages_covered,
    )
    assert 59.0 < pending.late_seconds < 60.0
    assert (pending.notices, pending.unindexed_sessions) == (1, 1)
    assert (running.pending, running.running, running.messages, running.late_seconds) == (
        0,
        1,
        pending.messages,
        0.0,
    )
    assert sum(await figures.waiting(now_ms=NOON + 64_000)) == 0


@pytest.mark.proves("O4")
async def test_the_probe_writes_nothing_and_waits_for_whoever_writes(tmp_path: Path) -> None:
    url = new_sqlite(tmp_path)
    database, path = Database(url, writes=True), url.partition(":///")[2]
    with sqlite3.connect(path, isolation_level=None) as other:
        (version,) = other.execute("PRAGMA data_version").fetchone()
        await SqlStatistics(database).probe()
        other.execute("BEGIN IMMEDIATE")
        probing = asyncio.create_task(SqlStatistics(database).probe())
        done, _ = await asyncio.wait([probing], timeout=0.3)
        other.execute("ROLLBACK")
        await probing

        assert not done
        assert other.execute("PRAGMA data_version").fetchone() == (version,)
    other.close()
    await database.close()


@pytest.mark.proves("O4")
async def test_a_database_that_only_reads_fails_the_probe(postgres_url: str) -> None:
    await upgrade(postgres_url)
    database = Database(postgres_url, writes=True)
    try:
        await database.write(
            lambda connection: connection.exec_driver_sql(
                f'ALTER DATABASE "{database.url.database}" SET default_transaction_read_only = on'
            )
        )
        await database.close()
        with pytest.raises(Unavailable):
            await SqlStatistics(database).probe()
    finally:
        await database.close()
