"""The space of dead rows is used again before PostgreSQL's autovacuum comes."""

from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from tests.running_system import eventually
from tests.store_fixtures import new_sqlite, sql_stores, turn, user
from turnfold.store.database.engine import Database
from turnfold_migrations import upgrade
from turnfold_worker.loops.vacuum import DeadRowVacuum

SIZE = text("SELECT pg_relation_size('messages')")
REWRITE = text("UPDATE messages SET priority = priority")
EVENTS, MESSAGES = 20, 100


@pytest.mark.proves("O9")
async def test_rows_take_the_space_of_dead_ones(postgres_url: str) -> None:
    await upgrade(postgres_url)
    database = Database(postgres_url, writes=True)
    vacuum = DeadRowVacuum(database)

    async def size() -> int:
        return await database.snapshot(lambda connection: connection.execute(SIZE).scalar_one())

    async def is_vacuumed() -> bool:
        return "messages" in await database.vacuum()

    async def nothing_is_due() -> bool:
        return not await database.vacuum()

    def rewrite(connection: Connection) -> None:
        connection.execute(REWRITE)

    async with sql_stores(postgres_url) as stores:
        await stores.ingest(
            *[turn(seq, *[user("x" * 200)] * MESSAGES) for seq in range(1, EVENTS + 1)]
        )
        before = await size()
        await database.write(rewrite)
        await eventually(is_vacuumed)
        await eventually(nothing_is_due)
        await database.write(rewrite)
        after = await size()
        waits = await vacuum.work()
    await database.close()

    assert after < 2.3 * before
    assert waits == vacuum.poll_seconds


async def test_sqlite_has_no_dead_rows(tmp_path: Path) -> None:
    database = Database(new_sqlite(tmp_path), writes=True)
    try:
        assert await database.vacuum() == []
    finally:
        await database.close()
