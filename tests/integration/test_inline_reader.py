"""Reading in the thread that asks: a snapshot like any other, and nobody is kept waiting."""

import sqlite3
import time
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path
from threading import Thread, current_thread

import pytest

from tests.running_system import eventually
from tests.store_fixtures import KEY, NOON, SMALL, Stores, new_sqlite, sql_stores, turn
from turnfold.messages import SessionKey
from turnfold.ports.query import (
    WindowSnapshot,
)
from turnfold.store.database.engine import Database
from turnfold.store.database.inline_reader import SLOW_SECONDS, RawConnection, WouldBlock
from turnfold.store.query.message_cache import KNOWN_INLINE, READ_INLINE


@pytest.fixture
async def database(tmp_path: Path) -> AsyncGenerator[Database]:
    made = Database(new_sqlite(tmp_path), writes=False)
    yield made
    await made.close()


def sequences(bare: RawConnection) -> int:
    """How many ranges of sequences are stored."""
    return int(bare.connection.execute("SELECT count(*) FROM ingested_ranges").fetchone()[0])


def milliseconds_waited(bare: RawConnection) -> int:
    """How long a read waits for a lock."""
    return int(bare.connection.execute("PRAGMA busy_timeout").fetchone()[0])


async def test_what_is_at_hand_is_one_snapshot(database: Database, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "turnfold.db", isolation_level=None)) as writer:

        def read(bare: RawConnection) -> tuple[int, int]:
            before = sequences(bare)
            writer.execute("INSERT INTO ingested_ranges VALUES (1, 7)")
            return before, sequences(bare)

        assert database.read_inline(read) == (0, 0)

        async def is_seen() -> bool:
            # On a busy machine the first read may have been slow, and leave this one to a thread.
            try:
                return database.read_inline(sequences) == 1
            except WouldBlock:
                return False

        await eventually(is_seen)


async def test_a_slow_read_leaves_the_next_ones_to_a_thread(database: Database) -> None:
    def slow(bare: RawConnection) -> int:
        time.sleep(SLOW_SECONDS * 2)
        return sequences(bare)

    assert database.read_inline(slow) == 0
    with pytest.raises(WouldBlock):
        database.read_inline(sequences)


async def test_a_busy_file_is_not_waited_for(database: Database, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "turnfold.db", isolation_level=None)) as writer:
        # With a WAL a reader meets a lock only while somebody recovers it; without one, every writer is in its way.
        writer.execute("PRAGMA journal_mode=DELETE")
        assert database.read_inline(milliseconds_waited) == 0
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(WouldBlock):
            database.read_inline(sequences)


async def test_postgresql_is_never_at_hand() -> None:
    database = Database("postgresql+asyncpg://nobody@localhost/nothing", writes=False)

    with pytest.raises(WouldBlock):
        database.read_inline(sequences)
    await database.close()


async def decided_in(stores: Stores) -> tuple[Thread, WindowSnapshot]:
    """The thread that decides a window now, and from what."""

    def choose(facts: WindowSnapshot) -> tuple[tuple[Thread, WindowSnapshot], tuple[int, ...]]:
        return (current_thread(), facts), ()

    found, _ = await stores.windows.window(KEY, on_session=lambda _: None, on_messages=choose)
    return found


async def say(stores: Stores, first: int, events: int, key: SessionKey = KEY) -> None:
    """Events of two messages each, from this sequence of the stream on."""
    for seq in range(first, first + events):
        said = [
            {"role": "user", "content": f"Question {seq}"},
            {"role": "assistant", "content": f"Answer {seq}"},
        ]
        await stores.ingest(turn(seq, *said, key=key, at_ms=NOON + seq))


@pytest.mark.proves("L4", "L8")
async def test_a_window_is_decided_on_the_spot_however_much_waits_for_a_summary_once_its_messages_are_known(
    tmp_path: Path,
) -> None:
    async with sql_stores(new_sqlite(tmp_path), SMALL) as stores:
        await say(stores, 1, READ_INLINE // 2 + 20)
        far, _ = await decided_in(stores)
        near, known = await decided_in(stores)
        assert len(known.pending) > 20
        assert len(known.messages) == READ_INLINE + 40
        assert far is not near is current_thread()

        # The next evictions and turns are read; what is known is not.
        await say(stores, READ_INLINE, 30)
        thread, more = await decided_in(stores)
        assert thread is current_thread()
        assert more.messages[: len(known.messages)] != known.messages
        assert [one.position for one in more.messages[: len(known.messages)]] == [
            one.position for one in known.messages
        ]

        await say(stores, 2 * READ_INLINE, (KNOWN_INLINE - len(more.messages)) // 2 + 1)
        assert (await decided_in(stores))[0] is not current_thread()
        thread, facts = await decided_in(stores)
        assert len(facts.messages) > KNOWN_INLINE
        assert thread is not current_thread()
