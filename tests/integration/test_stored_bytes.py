"""The bytes on disk for a published byte in either database, with indexes, summaries and audit."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from random import Random

import asyncpg
import pytest

from tests.benchmarks import texts
from tests.store_fixtures import (
    NOON,
    SMALL,
    Stores,
    new_sqlite,
    sql_stores,
    summary,
    tightened,
    turn,
)
from turnfold.messages import AgentId, SessionId, SessionKey
from turnfold.ports.ingest import DecodedEvent
from turnfold_migrations import upgrade

SESSIONS, TURNS, AT_ONCE = 10, 60, 100
POLICY = tightened(SMALL, max_live_messages=40, keep_messages=16)
RELATIONS = """
    SELECT relname, pg_total_relation_size(oid) FROM pg_class
     WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace"""


def corpus() -> tuple[list[DecodedEvent], int]:
    """Turns of several sessions, by turns, and the bytes of their events."""
    random = Random("bytes")
    arrivals: list[DecodedEvent] = []
    published = 0
    for number in range(TURNS):
        for session in range(SESSIONS):
            key = SessionKey(AgentId("bench"), SessionId(f"s{session}"))
            messages = texts.turn(random, number)
            published += len(texts.event(f"e{len(arrivals)}", key.session_id, messages))
            arrivals.append(turn(len(arrivals) + 1, *messages, key=key))
    return arrivals, published


async def settle(stores: Stores) -> None:
    """Summarize what was evicted, and index everything."""
    while jobs := await stores.claim(NOON + 10_000):
        for job in jobs:
            await stores.jobs.commit(job, summary("x" * 500), reason=None, now_ms=NOON)
    while await stores.index.index_some():
        pass


def stored_in(folder: Path) -> int:
    """The bytes of a database's file and of those beside it."""
    return sum(file.stat().st_size for file in folder.glob("turnfold.db*"))


@pytest.mark.proves("O9")
async def test_a_byte_takes_at_most_two_and_a_half_in_sqlite(tmp_path: Path) -> None:
    url = new_sqlite(tmp_path)
    path = tmp_path / "turnfold.db"
    empty = stored_in(tmp_path)
    arrivals, published = corpus()

    async with sql_stores(url, POLICY) as stores:
        for start in range(0, len(arrivals), AT_ONCE):
            await stores.ingest(*arrivals[start : start + AT_ONCE])
            await settle(stores)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    stored = stored_in(tmp_path) - empty
    assert stored <= 2.5 * published, stored / published


@pytest.mark.proves("O9")
async def test_a_byte_takes_at_most_three_in_postgresql(postgres_url: str) -> None:
    await upgrade(postgres_url)
    arrivals, published = corpus()
    connection = await asyncpg.connect(postgres_url.replace("+asyncpg", ""))

    async def sizes() -> Mapping[str, int]:
        return dict(await connection.fetch(RELATIONS))

    empty = await sizes()
    async with sql_stores(postgres_url, POLICY) as stores:
        for start in range(0, len(arrivals), AT_ONCE):
            await stores.ingest(*arrivals[start : start + AT_ONCE])
            await settle(stores)
            # As workers do while they run; see test_vacuum.py.
            for table in ("messages", "word_index_segments"):
                await connection.execute(f"VACUUM {table}")
    taken = {name: size - empty[name] for name, size in (await sizes()).items()}
    await connection.close()

    assert sum(taken.values()) <= 3 * published, str(taken)
    # The index of words alone; a row of terms per message took 1.7.
    assert taken["word_index_segments"] <= 0.6 * published
    assert taken["word_index"] == 0
