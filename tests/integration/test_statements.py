"""What is written to a database at its edges: below the first sequence, and where a sequence is taken."""

import asyncio
from functools import partial
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import text
from sqlalchemy.event import listen
from sqlalchemy.ext.asyncio import create_async_engine

from tests.store_fixtures import KEY, NOON, new_sqlite, sql_stores, turn, user
from turnfold.errors import StartError
from turnfold.store.database import sequence_ranges as ranges
from turnfold.store.database.engine import Database
from turnfold.store.database.instance_lock import (
    bind_to_stream,
    bound_stream,
    lock_storing,
    next_seq,
)
from turnfold_migrations import upgrade

CREATED = "2026-11-20T10:00:00Z"


@pytest.mark.proves("W5", "O10")
@pytest.mark.parametrize("first_seq", [1, 2, 3])
async def test_what_lies_below_the_first_sequence_of_an_adopted_stream_is_not_waited_for(
    tmp_path: Path, first_seq: int
) -> None:
    database = Database(new_sqlite(tmp_path), writes=True)

    await bind_to_stream(database, created=CREATED, first_seq=first_seq)
    whole_to = await database.snapshot(ranges.whole_to)
    next_one, created = await next_seq(database), await bound_stream(database)
    await database.close()

    assert (whole_to, next_one, created) == (first_seq - 1, first_seq, CREATED)


@pytest.mark.proves("L1", "A6")
async def test_a_new_stream_begins_above_what_was_erased_while_it_waited_in_the_lost_one(
    url: str,
) -> None:
    async with sql_stores(url) as stores:
        await stores.ingest(turn(1, user("old"), event_id="e1"))
        await stores.changes.erase(KEY, last_seq=30, now_ms=NOON)

        first_seq = await next_seq(stores.database)
        await stores.ingest(turn(first_seq, user("new"), event_id="e2"))
        with pytest.raises(StartError, match="another stream up to"):
            await bind_to_stream(stores.database, created=CREATED, first_seq=30)

        assert first_seq == 31
        assert [one.message_id for one in (await stores.facts()).messages] == ["e2#0"]


@pytest.mark.proves("W5", "O10")
async def test_sequences_that_two_workers_store_at_once_become_one_range(postgres_url: str) -> None:
    await upgrade(postgres_url)
    engine = create_async_engine(postgres_url)
    waiting = text(
        "SELECT 1 FROM pg_locks WHERE relation = 'ingested_ranges'::regclass AND NOT granted"
    )
    stored = text("SELECT first_seq, last_seq FROM ingested_ranges ORDER BY first_seq")

    async with engine.connect() as one, engine.connect() as other, engine.connect() as watcher:
        await one.run_sync(ranges.add, [(1, 5)])
        storing = asyncio.create_task(other.run_sync(ranges.add, [(6, 9)]))
        # Until it has read the ranges, or waits for the transaction that is about to change them.
        while not storing.done() and not (await watcher.execute(waiting)).all():
            await asyncio.wait({storing}, timeout=0.01)
        await one.commit()
        await storing
        await other.commit()
        found = (await watcher.execute(stored)).all()
    await engine.dispose()

    assert found == [(1, 9)]


@pytest.mark.proves("W5")
async def test_ranges_in_any_order_are_joined_and_those_that_they_met_are_returned(
    url: str,
) -> None:
    random, known, stored = Random(7), set[int](), list[ranges.Range]()
    database = Database(url, writes=True)
    for _ in range(40):
        firsts = random.choices(range(1, 120), k=random.choice((1, 2, 9)))
        new = [(first, first + random.randrange(4)) for first in firsts]
        added = {seq for first, last in new for seq in range(first, last + 1)}
        near = {seq + step for seq in added for step in (-1, 0, 1)}

        met = await database.write(partial(ranges.add, ranges=new))

        assert sorted(met) == [one for one in stored if near & {*range(one[0], one[1] + 1)}]
        known |= added
        stored = ranges.joined((seq, seq) for seq in known)
        # Everything between two ranges is missing.
        gaps = await database.snapshot(partial(ranges.gaps, up_to=0))
        assert {seq for first, last in gaps for seq in range(first, last + 1)} == {
            *range(1, max(known))
        } - known
    await database.close()


@pytest.mark.proves("O2", "L4")
async def test_other_workers_wait_for_two_statements_of_one_that_joins_ranges(
    postgres_url: str,
) -> None:
    """A round trip takes long where the database is far away or the machine is busy."""
    await upgrade(postgres_url)
    engine, sent = create_async_engine(postgres_url), list[str]()
    async with engine.connect() as connection:
        await connection.run_sync(ranges.add, [(1, 5), (10, 12)])
        listen(
            engine.sync_engine,
            "before_cursor_execute",
            lambda *told: sent.append(told[2].split()[0]),
        )

        await connection.run_sync(ranges.add, [(6, 7), (9, 9), (20, 20)])
    await engine.dispose()

    assert sent == ["LOCK", "WITH"]


@pytest.mark.proves("L1", "L2")
async def test_nothing_is_stored_or_removed_under_the_sequences_of_another_stream(url: str) -> None:
    async with sql_stores(url) as stores:
        await stores.ingest(turn(1, user("first"), event_id="e1"))
        await bind_to_stream(stores.database, created=CREATED, first_seq=2)

        for act in (
            lambda: stores.ingest(turn(2, user("late"), event_id="e2")),
            lambda: stores.intake.mark_ingested([(2, 7)]),
            stores.intake.gaps,
            lambda: stores.erasures.to_purge(100),
            lambda: stores.outbox.unsent(100),
        ):
            with pytest.raises(StartError, match=f"belongs to the stream made at {CREATED}"):
                await act()

        assert [one.message_id for one in (await stores.facts()).messages] == ["e1#0"]
        assert (await stores.seen()).ingested == ((1, 1),)


@pytest.mark.proves("L1", "O2")
async def test_another_stream_waits_for_a_batch_that_is_being_stored_and_is_then_refused(
    postgres_url: str,
) -> None:
    await upgrade(postgres_url)
    database, engine = Database(postgres_url, writes=True), create_async_engine(postgres_url)
    waiting = text("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
    async with engine.connect() as batch, engine.connect() as watcher:
        await batch.run_sync(lock_storing)
        await batch.run_sync(ranges.add, [(1, 5)])
        binding = asyncio.create_task(bind_to_stream(database, created=CREATED, first_seq=1))
        while not binding.done() and not (await watcher.execute(waiting)).all():
            await asyncio.wait({binding}, timeout=0.01)
        await batch.commit()
        with pytest.raises(
            StartError, match=r"starts at sequence 1, and .* another stream up to 5"
        ):
            await binding
    created = await bound_stream(database)
    await database.close()
    await engine.dispose()

    assert created is None


@pytest.mark.proves("L1", "O10")
async def test_an_event_at_a_sequence_that_another_took_is_refused_and_leaves_nothing(
    url: str,
) -> None:
    async with sql_stores(url) as stores:
        await stores.ingest(turn(1, user("first"), event_id="e1"))

        with pytest.raises(StartError, match="sequence 1 stands for another event"):
            await stores.ingest(turn(1, user("other"), event_id="e2"))

        assert [one.message_id for one in (await stores.facts()).messages] == ["e1#0"]
