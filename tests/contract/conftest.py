"""One store after the other for every test, and its invariants after each."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.invariants import faults
from tests.postgres import Postgres
from tests.stores import Stores, memory_stores, new_sqlite, sql_stores
from turnfold_migrations import upgrade

MEMORY = ""


@pytest.fixture(scope="session")
def postgres_template(postgres: Postgres) -> str:
    """The name of a PostgreSQL database with all tables and nothing in them."""
    name = asyncio.run(postgres.create_database())
    asyncio.run(upgrade(postgres.url(name)))
    return name


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where the test's own empty database is; nowhere for the double."""
    if request.param == "memory":
        yield MEMORY
    elif request.param == "sqlite":
        yield new_sqlite(tmp_path)
    else:
        postgres, template = request.getfixturevalue("postgres"), request.getfixturevalue("postgres_template")
        name = f"test_{uuid4().hex}"
        asyncio.run(postgres._execute(f"CREATE DATABASE {name} TEMPLATE {template}"))
        yield postgres.url(name)
        asyncio.run(postgres.drop_database(name))


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
