"""A connection that cannot be made leaves nothing behind."""

import sqlite3
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

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
