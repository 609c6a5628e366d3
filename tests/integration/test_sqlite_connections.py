"""Connections to SQLite: what one leaves behind that cannot be made, and which wait for the disk."""

import sqlite3
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from tests.store_fixtures import new_sqlite
from turnfold.errors import Unavailable
from turnfold.store.database.engine import Database
from turnfold.store.database.sqlite_files import connect_sqlite


@pytest.fixture
def patient_threads() -> Iterator[None]:
    """Threads that do not interrupt each other: one that nobody waits for has not ended yet."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(60)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("patient_threads")
async def test_the_thread_of_a_connection_that_fails_has_ended_when_the_failure_is_known(
    tmp_path: Path,
) -> None:
    known = set(threading.enumerate())

    for number in range(20):
        with pytest.raises(sqlite3.OperationalError):
            await connect_sqlite(f"file:{tmp_path}/missing-{number}.db?mode=ro", uri=True)

        assert not [one for one in set(threading.enumerate()) - known if "connection" in one.name]


@pytest.mark.proves("L1", "L4")
async def test_only_a_commit_that_can_be_repeated_does_not_wait_for_the_disk(
    tmp_path: Path,
) -> None:
    database = Database(new_sqlite(tmp_path), writes=True)

    def level(connection: Connection) -> int:
        return int(connection.execute(text("PRAGMA synchronous")).scalar_one())

    def failing(connection: Connection) -> None:
        connection.execute(text("INSERT INTO no_such_table VALUES (1)"))

    try:
        levels = [
            await database.write(level),
            await database.write(level, is_repeatable=True),
            await database.write_first(level),
        ]
        with pytest.raises(Unavailable):
            await database.write(failing, is_repeatable=True)
        levels.append(await database.write_first(level))
    finally:
        await database.close()

    assert levels == [2, 1, 2, 2]


async def test_commits_that_wait_for_no_disk_leave_little_that_another_has_to_sync(
    tmp_path: Path,
) -> None:
    """Ingest waited for the synchronization of 16 MB while an erasure deleted rows."""
    database = Database(new_sqlite(tmp_path), writes=True)

    def fill(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE IF NOT EXISTS filler (body)"))
        connection.execute(text("INSERT INTO filler VALUES (randomblob(400000))"))

    for _ in range(20):
        await database.write(fill, is_repeatable=True)

    assert (tmp_path / "turnfold.db-wal").stat().st_size < 5_000_000
    await database.close()
