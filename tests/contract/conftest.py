"""Run each contract test on SQLite and on PostgreSQL, and check the invariants afterwards."""

from collections.abc import AsyncGenerator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import pytest_asyncio
from pytest_asyncio import is_async_test

from tests.answer_models import check_operations, notice_faults
from tests.invariants import faults
from tests.postgres import Postgres
from tests.store_fixtures import (
    RAM,
    Stores,
    empty_postgres,
    empty_sqlite,
    new_postgres,
    new_sqlite,
    stores_on,
)
from turnfold.store.database.engine import Database


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all contract tests in one event loop, so that they can share connections.

    To connect, and to compile each statement anew, took longer than most of these tests.
    """
    folder = Path(__file__).parent
    for item in items:
        if folder in item.path.parents and is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def sqlite_database() -> AsyncGenerator[Database]:
    """A migrated SQLite database that all tests of the process share."""
    with TemporaryDirectory(prefix="turnfold-", dir=RAM) as folder:
        database = Database(new_sqlite(Path(folder)), writes=True)
        yield database
        await database.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def postgresql_database(postgres: Postgres) -> AsyncGenerator[Database]:
    """A migrated PostgreSQL database that all tests of the process share."""
    database = Database(await new_postgres(postgres), writes=True)
    yield database
    await database.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def shared_database(request: pytest.FixtureRequest) -> Database:
    """The database of each kind, with the rows of the test before."""
    shared: Database = request.getfixturevalue(f"{request.param}_database")
    return shared


@pytest_asyncio.fixture(loop_scope="session")
async def database(shared_database: Database) -> Database:
    """An empty, migrated database for one test."""
    await (empty_sqlite if shared_database.is_sqlite else empty_postgres)(shared_database)
    return shared_database


@pytest.fixture
def store_url(database: Database) -> str:
    """The URL of the same database, for connections of the test's own."""
    return database.url.render_as_string(hide_password=False)


@pytest_asyncio.fixture(loop_scope="session")
async def stores(database: Database) -> AsyncGenerator[Stores]:
    """An empty store; the invariants are checked after the test."""
    made = stores_on(database)
    yield made
    assert faults(await made.seen()) == []
    assert notice_faults(await made.outbox.unsent(1_000)) == []


@pytest.fixture(autouse=True)
def answers_match_their_models(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fail a test if an operation returns a field that the model of its answer lacks."""
    check_operations(request.module, monkeypatch)
