"""Reading in the thread that asks: a snapshot like any other, and nobody is kept waiting."""

import sqlite3
import time
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path

import pytest

from tests.stores import new_sqlite
from turnfold.store.engine import Database
from turnfold.store.near import SLOW_SECONDS, Bare, NotAtHand


@pytest.fixture
async def database(tmp_path: Path) -> AsyncGenerator[Database]:
    made = Database(new_sqlite(tmp_path), writes=False)
    yield made
    await made.close()


def sequences(bare: Bare) -> int:
    """How many ranges of sequences are stored."""
    return int(bare.connection.execute("SELECT count(*) FROM ingested").fetchone()[0])


async def test_what_is_at_hand_is_one_snapshot(database: Database, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "turnfold.db", isolation_level=None)) as writer:

        def read(bare: Bare) -> tuple[int, int]:
            before = sequences(bare)
            writer.execute("INSERT INTO ingested VALUES (1, 7)")
            return before, sequences(bare)

        assert database.at_hand(read) == (0, 0)
        assert database.at_hand(sequences) == 1


async def test_a_slow_read_leaves_the_next_ones_to_a_thread(database: Database) -> None:
    def slow(bare: Bare) -> int:
        time.sleep(SLOW_SECONDS * 2)
        return sequences(bare)

    assert database.at_hand(slow) == 0
    with pytest.raises(NotAtHand):
        database.at_hand(sequences)


async def test_a_busy_file_is_not_waited_for(database: Database, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "turnfold.db", isolation_level=None)) as writer:
        # With a WAL a reader meets a lock only while somebody recovers it; without one, every writer is in its way.
        writer.execute("PRAGMA journal_mode=DELETE")
        assert database.at_hand(sequences) == 0
        writer.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        with pytest.raises(NotAtHand):
            database.at_hand(sequences)

        assert time.monotonic() - began < 1.0


async def test_postgresql_is_never_at_hand() -> None:
    database = Database("postgresql+asyncpg://nobody@localhost/nothing", writes=False)

    with pytest.raises(NotAtHand):
        database.at_hand(sequences)
    await database.close()
