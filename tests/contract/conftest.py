"""Run each contract test on SQLite and on PostgreSQL, and check the invariants afterwards."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.answer_models import check_operations, notice_faults
from tests.invariants import faults
from tests.postgres import Postgres
from tests.store_fixtures import RAM, Stores, empty_postgres, new_postgres, new_sqlite, sql_stores


@pytest.fixture(scope="session")
def postgres_database(postgres: Postgres) -> str:
    """Return the URL of a migrated PostgreSQL database that all tests of the process share."""
    return asyncio.run(new_postgres(postgres))


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the URL of an empty, migrated database for one test."""
    if request.param == "sqlite":
        with TemporaryDirectory(prefix="turnfold-", dir=RAM) as folder:
            yield new_sqlite(Path(folder))
        return
    url: str = request.getfixturevalue("postgres_database")
    asyncio.run(empty_postgres(url))
    yield url


@pytest.fixture
async def stores(store_url: str) -> AsyncGenerator[Stores]:
    """Open an empty store; check the invariants after the test."""
    async with sql_stores(store_url) as made:
        yield made
        assert faults(await made.seen()) == []
        assert notice_faults(await made.outbox.unsent(1_000)) == []


@pytest.fixture(autouse=True)
def answers_match_their_models(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fail a test if an operation returns a field that the model of its answer lacks."""
    check_operations(request.module, monkeypatch)
