"""The index of words as each database keeps it: filled once, by many at once, and emptied of what is to be forgotten."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from tests.store_fixtures import (
    KEY,
    NOON,
    Stores,
    new_sqlite,
    retracted,
    sql_stores,
    turn,
    user,
)
from turnfold.core.recall.question import question_of
from turnfold.core.text.search import Lookup, SearchQuery
from turnfold.messages import AgentId, SessionId, SessionKey, position_of
from turnfold.ports.recall import Choice, SearchedSession
from turnfold.ports.search import Scope
from turnfold.store.database.engine import Database
from turnfold.store.database.inline_reader import WouldBlock
from turnfold.store.database.word_segments import read_index, read_pieces
from turnfold.store.ingest.word_index import search_index, segment_writer
from turnfold.store.ingest.word_index.removal import delete_indexed, empty_outdated
from turnfold.store.ingest.word_index.search_index import SqlSearchIndex
from turnfold.store.query.search import SqlSearchStore
from turnfold_migrations import downgrade, upgrade

KEYS = [SessionKey(AgentId("ada"), SessionId(f"s-{number}")) for number in (1, 2)]
TEXTS = (
    "the amber pendant",
    "我把琥珀色的吊坠放在书房",
    "/srv/zephyr-7719/config.toml",
    "\0 and \ud800",
    "",
)
WANTED: list[Lookup] = [
    lookup for q in ("amber", "吊坠", "zephyr", "and") for lookup in SearchQuery.of(q).lookups()
]

_EARLIER_NUMBERS = text("SELECT nextval('word_index_segment_ids_1') FROM generate_series(1, :many)")
"""The numbers of segments of the earlier release."""


async def filled(stores: Stores, events: int) -> None:
    """Two sessions with so many events each, indexed."""
    for first in range(0, events, 100):
        seqs = range(first, min(first + 100, events))
        await stores.ingest(
            *[
                turn(2 * seq + place + 1, *map(user, TEXTS), key=key)
                for seq in seqs
                for place, key in enumerate(KEYS)
            ]
        )
    while await stores.index.index_some():
        pass


async def known(stores: Stores, key: SessionKey) -> set[int]:
    """The sequences of the messages that the index names under one of the words."""
    return {
        one.position // 1024
        for one in (await stores.search.candidates(key, WANTED, scope=Scope())).originals
    }


async def remove(database: Database, seqs: list[int]) -> None:
    """Remove these events of the first session from the index."""
    positions = [position_of(seq, index) for seq in seqs for index in range(len(TEXTS))]
    await database.write(lambda connection: delete_indexed(connection, 1, positions))


def rows(connection: Connection) -> int:
    """How many messages are in the index."""
    if connection.dialect.name == "sqlite":
        counted = "SELECT count(*) FROM word_index_docsize"
        return int(connection.execute(text(counted)).scalar_one())
    sids = connection.execute(text("SELECT sid FROM sessions")).scalars().all()
    return sum(
        len(list(stored.present())) for sid in sids for stored in read_index(connection, sid)
    )


@pytest.mark.proves("F1", "A5")
async def test_what_is_forgotten_is_in_no_list_and_the_rest_is(url: str) -> None:
    async with sql_stores(url) as stores:
        await filled(stores, 6)
        before = [await known(stores, key) for key in KEYS]
        await remove(stores.database, [3, 5])
        part = [await known(stores, key) for key in KEYS]
        await remove(stores.database, [1, 3, 5, 7, 9, 11])
        await remove(stores.database, [1, 3, 5, 7, 9, 11])
        whole = [await known(stores, key) for key in KEYS]
        left = await stores.database.snapshot(rows)

    assert before == [{1, 3, 5, 7, 9, 11}, {2, 4, 6, 8, 10, 12}]
    assert part == [{1, 7, 9, 11}, before[1]]
    assert whole == [set(), before[1]]
    assert left == 6 * len(TEXTS)


async def remove_retracted(stores: Stores) -> None:
    """Remove the words that wait, as a worker does between batches."""
    while await stores.erasures.remove_retracted():
        pass


@pytest.mark.proves("F1", "X6")
@pytest.mark.parametrize("is_one", [True, False])
async def test_the_words_of_retractions_leave_after_them_and_nothing_finds_them_before(
    url: str, *, is_one: bool
) -> None:
    """X6: others' events wait for a transaction of SQLite, and long texts are split slowly."""
    async with sql_stores(url) as stores:
        await filled(stores, 50)

        short = [
            retracted(100 + seq, *[f"e{seq}#{index}" for index in range(5)], key=KEYS[0])
            for seq in range(11, 100, 2)
        ]
        long = [retracted(101, key=KEYS[0], after="e9#4")]
        await stores.ingest(*(long if is_one else short))

        kept = await known(stores, KEYS[0])
        waiting = await stores.database.snapshot(rows)
        await remove_retracted(stores)
        left = await stores.database.snapshot(rows)
        assert kept == await known(stores, KEYS[0]) == {1, 3, 5, 7, 9}
        assert (waiting, left) == (500 if stores.database.is_sqlite else 275, 275)


@pytest.mark.proves("F1", "L3")
@pytest.mark.parametrize("is_removed", [False, True])
async def test_what_a_retraction_took_that_came_earlier_is_found_again(
    url: str, *, is_removed: bool
) -> None:
    async with sql_stores(url) as stores:
        await filled(stores, 50)
        await stores.ingest(retracted(201, key=KEYS[0], event_id="r", all=True))
        if is_removed:
            await remove_retracted(stores)

        await stores.ingest(retracted(41, key=KEYS[0], event_id="r", all=True))
        while await stores.index.index_some():
            pass
        await remove_retracted(stores)

        assert await known(stores, KEYS[0]) == {*range(41, 100, 2)}
        assert await stores.database.snapshot(rows) == 250 + 150
        await stores.ingest(retracted(301, key=KEYS[0], all=True))
        await remove_retracted(stores)
        assert await known(stores, KEYS[0]) == set()
        assert await stores.database.snapshot(rows) == 250


@pytest.mark.proves("F1", "O6", "A6")
async def test_an_index_of_earlier_terms_is_filled_anew_but_with_nothing_of_erased_sessions(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await downgrade(url, "1020")
    async with sql_stores(url) as stores:
        with monkeypatch.context() as patch:
            patch.setattr(search_index, "terms", lambda _: frozenset(["xearlier"]))
            await filled(stores, 4)
        await stores.changes.erase(KEYS[1], last_seq=8, now_ms=NOON + 10)
        before = await known(stores, KEYS[0])

    await upgrade(url)

    async with sql_stores(url, first_id=100) as stores:
        await stores.ingest(turn(9, *map(user, TEXTS), key=KEYS[0]))
        with monkeypatch.context() as patch:
            # The worker of the earlier release still runs.
            patch.setattr(search_index, "terms", lambda _: frozenset(["xearlier"]))
            patch.setattr(segment_writer, "_NEXT", _EARLIER_NUMBERS)
            earlier = SqlSearchIndex(stores.database, len)
            while await earlier.index_some():
                pass
        for _ in range(2):
            await empty_outdated(stores.database)
            while await stores.index.index_some():
                pass
        after = await known(stores, KEYS[0])
        left = await stores.database.snapshot(rows)
        await stores.delete_rows()
        await remove(stores.database, [1, 3, 5, 7, 9])
        nothing = await stores.database.snapshot(rows)
    assert (before, after) == (set(), {1, 3, 5, 7, 9})
    assert (left, nothing) == (5 * len(TEXTS), 0)


@pytest.mark.proves("F2", "O6")
async def test_a_query_server_forgets_what_it_found_in_an_index_of_earlier_terms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may answer before a worker has emptied the index of SQLite."""
    url = new_sqlite(tmp_path)
    masks: list[Sequence[int] | None] = []

    def choose(session: SearchedSession) -> Choice:
        masks.append(session.masks)
        return Choice(())

    async with sql_stores(url) as stores:
        with monkeypatch.context() as patch:
            patch.setattr(search_index, "terms", lambda _: frozenset(["xearlier"]))
            await filled(stores, 1)
        question = question_of("amber")
        for _ in range(2):
            await stores.recall.recall(1, until=2**60, question=lambda _: question, choose=choose)
            await empty_outdated(stores.database)
            while await stores.index.index_some():
                pass

    assert masks == [[0], [1]]


@pytest.mark.proves("F1", "L2", "O2")
async def test_several_may_index_at_once_and_each_message_is_there_once(postgres_url: str) -> None:
    await upgrade(postgres_url)
    async with sql_stores(postgres_url) as stores, sql_stores(postgres_url) as others:
        await stores.ingest(
            *[turn(seq, *map(user, TEXTS[:3]), key=KEYS[seq % 2]) for seq in range(1, 301)]
        )

        async def index(one: Stores) -> None:
            while await one.index.index_some():
                pass

        await asyncio.gather(index(stores), index(others), index(stores))
        there = await stores.database.snapshot(rows)

    assert there == 900


@pytest.mark.proves("F1", "O10")
async def test_two_workers_do_not_split_the_same_messages(postgres_url: str) -> None:
    await upgrade(postgres_url)
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return len(text)

    databases = [Database(postgres_url, writes=True) for _ in range(2)]
    workers = [SqlSearchIndex(database, count) for database in databases]

    async def index(worker: SqlSearchIndex) -> None:
        while await worker.index_some():
            pass

    async with sql_stores(postgres_url) as stores:
        for first in (1, 101):
            seqs = range(first, first + 100)
            await stores.ingest(
                *[
                    turn(seq, user(f"/srv/zephyr-{seq}/config.toml"), key=KEYS[seq % 2])
                    for seq in seqs
                ]
            )
            await asyncio.gather(*map(index, workers))
    for database in databases:
        await database.close()

    assert len(counted) == len(set(counted)) == 200


@pytest.mark.proves("X4", "F1")
async def test_a_filter_that_nearly_nothing_passes_reads_only_so_much_and_says_so(url: str) -> None:
    async with sql_stores(url) as stores:
        await filled(stores, 40)
        bounded = SqlSearchStore(stores.database, looked_at=10)
        (lookup,) = SearchQuery.of("pendant").lookups()
        unfiltered = await bounded.candidates(KEYS[0], [lookup], scope=Scope())
        filtered = await bounded.candidates(KEYS[0], [lookup], scope=Scope(role="user"))
        of_few = await bounded.candidates(
            KEYS[0], [lookup], scope=Scope(role="user", after_position=position_of(60, 0))
        )
        none = await bounded.candidates(KEYS[0], [lookup], scope=Scope(role="assistant"))

    every = [1 + 2 * seq for seq in range(40)]
    assert ([one.position // 1024 for one in unfiltered.originals], unfiltered.is_partial) == (
        every,
        False,
    )
    assert ([one.position // 1024 for one in filtered.originals], filtered.is_partial) == (
        every[:10] + every[-10:],
        True,
    )
    assert ([one.position // 1024 for one in of_few.originals], of_few.is_partial) == (
        every[30:],
        False,
    )
    assert none == ([], True)


@pytest.mark.proves("F1", "O10")
async def test_an_indexed_session_waits_for_the_index_no_more_until_something_new_comes(
    url: str,
) -> None:
    async with sql_stores(url) as stores:

        async def unindexed(key: SessionKey) -> list[str]:
            return [
                str(one.message_id)
                for one in await stores.search.unindexed(key, scope=Scope(), after_position=-1)
            ]

        await stores.ingest(
            turn(1, *map(user, TEXTS[:2]), key=KEYS[0]), turn(2, user(TEXTS[0]), key=KEYS[1])
        )
        waiting = [await unindexed(key) for key in KEYS]
        was_last = not await stores.index.index_some()
        indexed = [await unindexed(key) for key in KEYS]
        await stores.ingest(turn(3, user("new"), key=KEYS[1]))

        assert waiting == [["e1#0", "e1#1"], ["e2#0"]]
        assert was_last
        assert indexed == [[], []]
        assert [await unindexed(key) for key in KEYS] == [[], ["e3#0"]]
        await stores.index.index_some()
        assert [await unindexed(key) for key in KEYS] == [[], []]


async def positions_of(stores: Stores, query: str, key: SessionKey = KEYS[0]) -> list[int]:
    """The sequences of the messages with all words of a query."""
    asked = SearchQuery.of(query)
    candidates = await stores.search.candidates(
        key, [*asked.lookups(), *asked.beginnings()], scope=Scope()
    )
    return sorted({one.position // 1024 for one in candidates.originals})


@pytest.mark.proves("F1", "O9")
async def test_segments_are_merged_and_all_of_them_are_searched(postgres_url: str) -> None:
    await upgrade(postgres_url)
    async with sql_stores(postgres_url) as stores:
        for seq in range(1, 71):
            await stores.ingest(turn(seq, user(f"amber number{seq:02} 琥珀色"), user("obsolete")))
            await stores.index.index_some()
            if seq == 5:
                await stores.database.write(lambda at: delete_indexed(at, 1, [position_of(5, 1)]))
        index = await stores.database.snapshot(lambda connection: read_index(connection, 1))
        # The first segment has been merged since somebody listed it.
        with pytest.raises(WouldBlock):
            await stores.database.read_at_once(lambda at: read_pieces(at, 1, [(1, 0)]))
        everything = await positions_of(stores, "amber", KEY)
        one = await positions_of(stores, "number40", KEY)
        beginning = await positions_of(stores, "number6", KEY)
        eastern = await positions_of(stores, "珀", KEY)
        others = await positions_of(stores, "obsolete", KEY)

    sizes = [len(stored.header.positions) for stored in index]
    assert sorted(sizes, reverse=True) == [127, *[2] * 6]
    assert everything == eastern == list(range(1, 71))
    assert others == [seq for seq in range(1, 71) if seq != 5]
    assert (one, beginning) == ([40], list(range(60, 70)))


@pytest.mark.proves("A6", "O6")
async def test_an_erasure_by_an_older_worker_takes_the_segments_with_it(postgres_url: str) -> None:
    await upgrade(postgres_url)
    async with sql_stores(postgres_url) as stores:
        await filled(stores, 1)
        # What a worker does that knows no segments.
        for table in ("messages", "events", "marked_lines", "sessions"):
            statement = text(f"DELETE FROM {table} WHERE sid = 1")
            await stores.database.write(partial(Connection.execute, statement=statement))
        left = await stores.database.snapshot(
            lambda connection: connection.execute(
                text("SELECT DISTINCT sid FROM word_index_segments")
            ).all()
        )

    assert left == [(2,)]
