"""The write-ahead log of SQLite does not keep its largest size."""

import os
import resource
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from tests.chaos.installation import limit_files
from turnfold.errors import Unavailable
from turnfold.store.database.engine import Database
from turnfold.store.database.sqlite_files import LOG_PAGES
from turnfold_worker.loops.truncate_wal import KEPT_BYTES, MOST_BYTES, WalTruncator


async def test_a_long_log_is_truncated_when_writing_pauses_or_it_is_too_long(
    tmp_path: Path,
) -> None:
    path = tmp_path / "turnfold.db"
    database = Database(f"sqlite+aiosqlite:///{path}", writes=True)
    truncator = WalTruncator(database)

    def size() -> int:
        return Path(f"{path}-wal").stat().st_size

    def written(count: int) -> int:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as reader:
            return int(reader.execute("SELECT sum(length(x)) FROM written").fetchone()[0]) // count

    async def write(count: int) -> None:
        def work(connection: Connection) -> None:
            connection.execute(text("CREATE TABLE IF NOT EXISTS written (x BLOB)"))
            connection.execute(text(f"INSERT INTO written VALUES (randomblob({count}))"))

        await database.write(work)

    try:
        assert await truncator.work() == truncator.poll_seconds
        await write(2 * KEPT_BYTES)
        await truncator.work()
        assert size() > KEPT_BYTES
        await write(1)
        await truncator.work()
        assert size() > KEPT_BYTES, "it is being written"
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM written").fetchone()
            await write(1)
            await truncator.work()
            await truncator.work()
            assert size() > KEPT_BYTES, "a reader needs it"
        await truncator.work()
        assert size() == 0
        await write(1)
        await truncator.work()
        await truncator.work()
        assert 0 < size() <= KEPT_BYTES, "a short one stays"
        await write(LOG_PAGES * 7_000)
        await truncator.work()
        assert size() > KEPT_BYTES, "SQLite begins it anew by itself"
        await write(MOST_BYTES)
        await truncator.work()
        assert size() == 0
        assert written(2 * KEPT_BYTES + LOG_PAGES * 7_000 + MOST_BYTES) == 1
    finally:
        await database.close()


async def test_postgresql_has_no_such_log() -> None:
    database = Database("postgresql+asyncpg://nobody@127.0.0.1:1/none", writes=True)
    assert await WalTruncator(database).work() > 0
    await database.close()


async def test_a_disk_that_is_full_delays_the_truncation(tmp_path: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'turnfold.db'}", writes=True)

    def work(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE written (x BLOB)"))
        connection.execute(text(f"INSERT INTO written VALUES (randomblob({2 * KEPT_BYTES}))"))

    try:
        await database.write(work)
        limit_files(os.getpid(), 1)
        try:
            with pytest.raises(Unavailable, match="try again later"):
                await database.truncate_wal()
        finally:
            limit_files(os.getpid(), resource.RLIM_INFINITY)

        assert await database.truncate_wal()
    finally:
        await database.close()
