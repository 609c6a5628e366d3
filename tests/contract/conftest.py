"""One store after the other for every test, and its invariants after each."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import asyncpg
import pytest

from tests.invariants import faults
from tests.postgres import Postgres
from tests.store_fixtures import Stores, memory_stores, new_postgres, new_sqlite, sql_stores
from turnfold.store.database.schema import metadata, word_index

MEMORY = ""


@pytest.fixture(scope="session")
def postgres_database(postgres: Postgres) -> str:
    """The URL of a PostgreSQL database with all tables, one test's after the other."""
    return asyncio.run(new_postgres(postgres))


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the test's own empty database is; nowhere for the double."""
    if request.param == "memory":
        return MEMORY
    if request.param == "sqlite":
        return new_sqlite(tmp_path)
    url: str = request.getfixturevalue("postgres_database")
    asyncio.run(_emptied(url))
    return url


async def _emptied(url: str) -> None:
    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        # As a replica the server fires no triggers, not even the one that keeps the audit. With so few rows, and a new file for
        # each table and index that is truncated, to delete is quicker.
        deletes = (f'DELETE FROM "{name}"' for name in (*metadata.tables, word_index.name))
        from_one = "SELECT setval(oid, 1, false) FROM pg_class WHERE relkind = 'S'"
        await connection.execute(
            "; ".join(("SET session_replication_role = replica", *deletes, from_one))
        )
    finally:
        await connection.close()


@pytest.fixture
async def stores(store_url: str) -> AsyncGenerator[Stores]:
    """An empty store. Whatever the test is about, the invariants hold at its end."""
    if store_url == MEMORY:
        made = memory_stores()
        yield made
        assert faults(await made.seen()) == []
        return
    async with sql_stores(store_url) as made:
        yield made
        assert faults(await made.seen()) == []
