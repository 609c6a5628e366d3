"""The word index after a stored batch."""

import asyncio

import pytest
from sqlalchemy import Connection, select

from tests.store_fixtures import Stores, turns
from turnfold.ports.ingest import IngestResult
from turnfold.store.database.engine import Database
from turnfold.store.database.schema import sessions
from turnfold_worker.loops.search_index import Indexer
from turnfold_worker.loops.wakeups import Wakeups


class Sleeper(Indexer):
    """An indexer that works by itself once an hour."""

    poll_seconds = 3_600.0


def is_behind(connection: Connection) -> bool:
    """Whether the index lacks messages of any session."""
    waiting = select(sessions.c.sid).where(sessions.c.unindexed_from.is_not(None))
    return connection.execute(waiting).first() is not None


@pytest.mark.proves("F2", "W13")
async def test_a_stored_batch_wakes_the_indexer(stores: Stores, store_url: str) -> None:
    database = Database(store_url, writes=False)
    wakeups = Wakeups()
    indexer = Sleeper(store=stores.index, woken=wakeups.indexer, is_busy=lambda: False)
    failures: list[str] = []
    running = asyncio.create_task(indexer.run(on_failure=failures.append))
    # The first round finds nothing, and the next one is an hour away.
    await asyncio.sleep(3 * indexer.gathering_seconds)
    await stores.ingest(*turns(1, 3))

    wakeups.after_batch(IngestResult(events=3, messages=6))

    for _ in range(600):
        if not await database.snapshot(is_behind):
            break
        await asyncio.sleep(0.05)
    assert not await database.snapshot(is_behind)
    assert failures == []
    running.cancel()
    await database.close()
