"""Sessions with more evictions than a statement has parameters, and long evictions, in every store."""

import sqlite3
from typing import Any

import pytest
from sqlalchemy import Connection

from tests.store_fixtures import (
    KEY,
    NOON,
    Stores,
    assistant,
    retracted,
    tool,
    turn,
    turns,
    user,
)
from turnfold.contracts.retractions import Retraction
from turnfold.store.compact.withdrawal import withdraw
from turnfold.store.database import statements
from turnfold.store.database.engine import Database
from turnfold.store.database.session_rows import SessionChange, SessionJournal, lock_by_key
from turnfold.store.ingest.retraction import RetractedCounts, StoredRetraction

MOST_PARAMETERS = 32_767
"""The most parameters of a statement on PostgreSQL, as its driver sends them."""
MOST_OF_SQLITE = 32_766
"""The same by default of SQLite; Debian's takes more."""


@pytest.mark.proves("L1", "G1")
async def test_a_retraction_may_concern_any_number_of_evictions(
    stores: Stores, shared_database: Database
) -> None:
    await stores.ingest(*turns(1, 7))
    source = StoredRetraction(99, NOON, Retraction((), None, is_all=True), "local")
    evictions = range(1, MOST_PARAMETERS + 2)

    def retract_all(connection: Connection) -> int:
        if connection.dialect.name == "sqlite":
            driver: Any = connection.connection.driver_connection
            driver.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, MOST_OF_SQLITE)
        (session,) = lock_by_key(connection, [KEY]).values()
        journal = SessionJournal()
        counts = RetractedCounts(source, 0, 0, evictions, is_new=True, undigested=evictions)
        withdraw(SessionChange(connection, session, journal, NOON), stores.installation, counts)
        journal.write(connection, [session])
        return len(journal.audit_rows)

    assert await shared_database.write(retract_all) == 1


@pytest.mark.proves("O9", "X6", "G1")
async def test_a_retraction_reads_few_texts_of_the_eviction_that_it_concerns(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X6: others wait for it, and an eviction may hold hundreds of megabytes."""
    long = [tool("c", "x" * 20_000) for _ in range(20)]
    await stores.ingest(turn(1, user("go"), assistant(None, *["c"] * 20), *long), *turns(2, 6))
    fetched, sizes = statements._fetched, list[int]()

    def measured(*asked: Any) -> Any:
        rows = fetched(*asked)
        sizes.append(sum(len(value) for row in rows for value in row if isinstance(value, str)))
        return rows

    monkeypatch.setattr(statements, "_fetched", measured)
    await stores.ingest(retracted(20, "e1#0"))

    assert sum(sizes) < 100_000
    (waiting, *_) = (await stores.facts()).pending
    assert (waiting.messages, bool(waiting.digest)) == (21, True)
