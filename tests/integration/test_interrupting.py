"""Work in the database whose asker is gone ends (X6)."""

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from turnfold.process.caller_order import ASKER
from turnfold.store.database.engine import READERS_EACH, Database

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


def endless(connection: Connection) -> int:
    """A statement that never ends by itself."""
    return int(connection.execute(text(ENDLESS)).scalar_one())


def one(connection: Connection) -> int:
    """A statement that ends at once."""
    return int(connection.execute(text("SELECT 1")).scalar_one())


@pytest.mark.proves("X6")
async def test_a_statement_of_sqlite_is_interrupted_when_nobody_waits_for_it_and_its_thread_is_free_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "turnfold.db").touch()
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/turnfold.db", writes=False)
    ASKER.set("greedy")
    try:
        running = [asyncio.create_task(database.snapshot(endless)) for _ in range(READERS_EACH)]
        await asyncio.sleep(0.1)
        waiting = asyncio.create_task(database.snapshot(one))
        others = asyncio.create_task(_for_another(database))
        async with asyncio.timeout(10):
            of_another = await others
        is_held_up = not waiting.done()
        for task in running:
            task.cancel()
        async with asyncio.timeout(10):
            freed = await waiting
    finally:
        await database.close()

    assert (of_another, is_held_up, freed) == (1, True, 1)


async def _for_another(database: Database) -> int:
    ASKER.set("patient")
    return await database.snapshot(one)
