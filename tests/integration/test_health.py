"""How the work goes, as a database tells it; and who may write to a SQLite file."""

import time
from pathlib import Path

import pytest

from tests.store_fixtures import LEASE_MS, NOON, SMALL, sql_stores, turns, words
from turnfold.messages import AgentId, SessionId, SessionKey
from turnfold.operations.ingest.decode import Delivery, decode_batch
from turnfold.store.database.engine import Database
from turnfold.store.database.health import DatabaseHealth, database_health, file_of, is_writer_there
from turnfold.store.database.instance_lock import WriterLock

PATIENCE_MS = 5_000


def session(number: int) -> SessionKey:
    return SessionKey(AgentId("ada"), SessionId(f"s-{number}"))


@pytest.mark.proves("O4", "O10")
async def test_what_waits_too_long_is_counted_with_the_time_since_when(url: str) -> None:
    database = Database(url, writes=True)

    async def look(now_ms: int, *, most_attempts: int = 3) -> DatabaseHealth:
        return await database_health(
            database, now_ms=now_ms, patience_ms=PATIENCE_MS, most_attempts=most_attempts
        )

    async with sql_stores(url, SMALL) as stores:
        assert (await look(NOON)).overdue == 0
        await stores.ingest(*turns(1, 7, key=session(1)), *turns(11, 7, key=session(2)))
        due_ms = await stores.jobs.next_due_ms()
        assert due_ms is not None
        before = await look(due_ms + PATIENCE_MS)
        late = await look(NOON + 60_000)
        taken = await stores.claim(NOON + 60_000)
        lease_end = NOON + 60_000 + LEASE_MS
        in_time = await look(lease_end + PATIENCE_MS)
        left = await look(lease_end + PATIENCE_MS + 1)
        often = await look(NOON + 60_000, most_attempts=0)
        bad = [
            Delivery("turn.completed", payload, seq, NOON)
            for seq, payload in ((31, b"{"), (32, b"["), (33, b"x"))
        ]
        await stores.intake.ingest(
            [], decode_batch(bad, count=words).dead, installation=stores.installation
        )
        await stores.letters.replayed(2, now_ms=NOON)
        buried = await look(NOON)
    await database.close()

    assert before.overdue == 0
    assert (late.overdue, late.oldest_due_ms, late.abandoned, late.retried) == (2, due_ms, 0, 0)
    assert len(taken) == 2
    assert (in_time.overdue, in_time.oldest_due_ms, in_time.abandoned) == (0, None, 0)
    assert (left.overdue, left.abandoned) == (0, 2)
    assert (often.retried, late.retried) == (2, 0)
    assert buried.dead_letters == 2
    assert late.outbox > 0
    assert late.outbox_first == 1
    if url.startswith("sqlite"):
        assert late.clock_ms is None
    else:
        assert late.clock_ms is not None
        assert abs(late.clock_ms - time.time() * 1000) < 60_000


@pytest.mark.proves("O4", "A6")
async def test_jobs_of_an_erased_session_count_as_no_work_though_their_rows_are_left(
    url: str,
) -> None:
    database = Database(url, writes=False)

    async def overdue() -> int:
        health = await database_health(
            database, now_ms=NOON + 60_000, patience_ms=PATIENCE_MS, most_attempts=3
        )
        return health.overdue

    async with sql_stores(url, SMALL) as stores:
        await stores.ingest(*turns(1, 7, key=session(1)), *turns(11, 7, key=session(2)))
        before = await overdue()
        await stores.changes.erase(session(1), last_seq=7, now_ms=NOON)
        after = await overdue()
    await database.close()

    assert (before, after) == (2, 1)


@pytest.mark.proves("O4", "O10")
async def test_one_process_writes_to_a_sqlite_file_and_others_are_told(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'turnfold.db'}"
    first, second = WriterLock(url), WriterLock(url)

    assert is_writer_there(url) is False
    assert first.try_to_take() is True
    assert first.try_to_take() is True
    assert second.try_to_take() is False
    assert is_writer_there(url) is True
    # The lock goes with its holder, whose files the system closes.
    assert first._file is not None
    first._file.close()
    await second.take()
    assert is_writer_there(url) is True
    assert second._file is not None
    second._file.close()
    assert is_writer_there(url) is False


@pytest.mark.proves("O4", "O10")
def test_a_server_needs_no_writers_lock_and_is_no_file(tmp_path: Path) -> None:
    server = "postgresql+asyncpg://ada@localhost/turnfold"

    assert WriterLock(server).try_to_take() is True
    assert (file_of(server), file_of("sqlite+aiosqlite://")) == (None, None)
    assert file_of(f"sqlite+aiosqlite:///{tmp_path}/a.db") == tmp_path / "a.db"
    assert file_of("sqlite+aiosqlite:///a.db") == Path.cwd() / "a.db"
