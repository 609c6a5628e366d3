"""A session whose rows fail holds up no other session of a loop, in every store."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import structlog
from sqlalchemy import text

from tests.store_fixtures import (
    KEY,
    LEASE_MS,
    NOON,
    Stores,
    places,
    summary,
    turn,
    turns,
    user,
    words,
)
from turnfold.contracts.hints import BudgetHint
from turnfold.contracts.requests import PolicyRequest
from turnfold.errors import Unavailable
from turnfold.messages import AgentId, SessionId, SessionKey, position_of
from turnfold.operations.ingest.decode import DecodedBatch
from turnfold.operations.ingest.ingest import ingest
from turnfold.ports.compact import RegenerateOptions
from turnfold.ports.ingest import DeadLetter
from turnfold.process.set_aside import SetAside
from turnfold.store.compact.campaigns import SqlCampaignStore
from turnfold.store.compact.jobs.store import SqlJobStore
from turnfold.store.database.engine import Database
from turnfold.store.ingest.budgets import SqlBudgetStore
from turnfold.store.ingest.erase import SqlErasureStore
from turnfold.store.ingest.idle import SqlIdleStore
from turnfold.store.ingest.word_index.search_index import SqlSearchIndex

BAD, GOOD = [SessionKey(AgentId(agent), SessionId("s-1")) for agent in ("bad", "good")]
MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


async def execute(database: Database, statement: str, **values: Any) -> None:
    await database.write(lambda connection: connection.execute(text(statement), values))


async def column(database: Database, statement: str) -> list[Any]:
    return await database.snapshot(
        lambda connection: list(connection.execute(text(statement)).scalars())
    )


@asynccontextmanager
async def broken(
    database: Database, table: str, name: str, value: str, where: str = "agent_id = 'bad'"
) -> AsyncGenerator[None]:
    """A value that no code can read, in rows that have the same value otherwise."""
    stored = (await column(database, f"SELECT {name} FROM {table} WHERE {where}"))[0]
    change = f"UPDATE {table} SET {name} = :value WHERE {where}"
    await execute(database, change, value=value)
    try:
        yield
    finally:
        await execute(database, change, value=stored)


def broken_policy(database: Database) -> AbstractAsyncContextManager[None]:
    return broken(database, "sessions", "overrides", "{no JSON")


@asynccontextmanager
async def refusing_deletes(database: Database, position: int) -> AsyncGenerator[None]:
    """A trigger that refuses to delete one message."""
    trigger = "CREATE TRIGGER refusing BEFORE DELETE ON messages"
    is_chosen = f"OLD.position = {position}"
    made, dropped = (
        [f"{trigger} WHEN {is_chosen} BEGIN SELECT RAISE(ABORT, 'refused'); END"],
        ["DROP TRIGGER refusing"],
    )
    if not database.is_sqlite:
        function = "$$ BEGIN RAISE EXCEPTION 'refused'; END $$"
        made = [
            f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS {function}",
            f"{trigger} FOR EACH ROW WHEN ({is_chosen}) EXECUTE FUNCTION refuse()",
        ]
        dropped = ["DROP TRIGGER refusing ON messages", "DROP FUNCTION refuse()"]
    for statement in made:
        await execute(database, statement)
    try:
        yield
    finally:
        for statement in dropped:
            await execute(database, statement)


async def test_a_session_that_cannot_be_claimed_holds_up_no_other(
    stores: Stores, database: Database
) -> None:
    await stores.ingest(*turns(1, 7, key=BAD), *turns(11, 7, key=GOOD))
    failed: list[str] = []
    jobs = SqlJobStore(database, aside=SetAside("Compactor", failed.append))

    async def claim(slots: int) -> list[str]:
        claimed = await jobs.claim(
            places(slots), lease_ms=LEASE_MS, now_ms=NOON + 1_000, installation=stores.installation
        )
        return [job.key.agent_id for job in claimed]

    with structlog.testing.capture_logs() as logged:
        async with broken_policy(database):
            # The first one, and the only one of this round.
            assert await claim(1) == []
            assert await claim(1) == ["good"]
            assert await jobs.next_due_ms() is None
        assert await claim(1) == []

    assert failed == ["Compactor"]
    assert [(line["event"], line["part"]) for line in logged] == [("row.failed", "Compactor")]
    # Another process, as this one after a minute.
    assert [job.key for job in await stores.claim()] == [BAD]


async def test_a_session_that_fails_is_claimed_apart_from_others_at_once(
    stores: Stores, database: Database
) -> None:
    await stores.ingest(*turns(1, 7, key=BAD), *turns(11, 7, key=GOOD))

    async with broken_policy(database):
        assert [job.key for job in await stores.claim()] == [GOOD]


async def test_an_idle_session_that_fails_holds_up_no_other(
    stores: Stores, database: Database
) -> None:
    for key in (BAD, GOOD):
        request = PolicyRequest(overrides={"max_live_messages": 0, "idle_seconds": 60})
        await stores.changes.set_policy(key, request, installation=stores.installation, now_ms=NOON)
    await stores.ingest(*turns(1, 7, key=BAD), *turns(11, 7, key=GOOD))
    failed: list[str] = []
    idle = SqlIdleStore(database, aside=SetAside("IdleEvictor", failed.append))
    now_ms = NOON + 17 + MINUTE_MS

    async def evict() -> int:
        return await idle.evict_idle(limit=1, installation=stores.installation, now_ms=now_ms)

    async with broken_policy(database):
        # As the loop does, until nothing is left that is not aside.
        assert [await evict() for _ in range(3)] == [1, 1, 0]
        assert await idle.next_idle_ms() is None
        assert [job.key for job in await stores.claim(now_ms + MINUTE_MS)] == [GOOD]

    assert failed == ["IdleEvictor"]
    await stores.idle.evict_idle(limit=5, installation=stores.installation, now_ms=now_ms)
    assert [job.key for job in await stores.claim(now_ms + MINUTE_MS)] == [BAD]


async def test_a_row_is_tried_again_later_and_an_outage_sets_none_aside() -> None:
    failed: list[str] = []
    aside: SetAside[int] = SetAside("Loop", failed.append, pause_seconds=0)

    async def refuse(rows: Any) -> None:
        raise ValueError

    async def be_away(rows: Any) -> None:
        raise Unavailable

    with structlog.testing.capture_logs() as logged:
        for _ in range(3):
            assert aside.others([1, 2]) == [1, 2]
            assert await aside.together([1, 2], refuse) == []
    with pytest.raises(Unavailable):
        await aside.together([1, 2], be_away)

    assert failed == ["Loop"] * 6
    assert [(line["event"], line["part"]) for line in logged] == [("row.failed", "Loop")]


async def test_a_message_that_cannot_be_indexed_holds_up_no_other_session(
    stores: Stores, database: Database
) -> None:
    await stores.ingest(*turns(1, 3, key=BAD), *turns(11, 3, key=GOOD))
    failed: list[str] = []
    index = SqlSearchIndex(database, words, aside=SetAside("Indexer", failed.append))
    waiting = "SELECT agent_id FROM sessions WHERE unindexed_from IS NOT NULL"
    of_bad = f"position = {position_of(1, 0)}"

    async with broken(database, "messages", "body", "{no JSON", of_bad):
        while await index.index_some():
            pass
        assert await column(database, waiting) == ["bad"]

    assert failed == ["Indexer"]
    await stores.index.index_some()
    assert await column(database, waiting) == []


async def expire(stores: Stores, erasures: SqlErasureStore, now_ms: int) -> list[Any]:
    """Erase sessions whose retention is over; return the keys that are left."""
    after: int | None = 0
    while after is not None:
        after = await erasures.erase_expired(
            after=after, limit=5, installation=stores.installation, now_ms=now_ms
        )
    return [*(await stores.seen()).sessions]


@pytest.mark.proves("A6")
async def test_a_session_that_cannot_expire_keeps_no_other(
    stores: Stores, database: Database
) -> None:
    for key in (BAD, GOOD):
        request = PolicyRequest(overrides={"retain_days": 1})
        await stores.changes.set_policy(key, request, installation=stores.installation, now_ms=NOON)
    await stores.ingest(*turns(1, 2, key=BAD), *turns(11, 2, key=GOOD))
    failed: list[str] = []
    erasures = SqlErasureStore(database, aside=SetAside("ErasureRunner", failed.append))

    async with broken_policy(database):
        assert await expire(stores, erasures, NOON + 2 * DAY_MS) == [BAD]

    assert failed == ["ErasureRunner"]
    assert await expire(stores, stores.erasures, NOON + 2 * DAY_MS) == []


@pytest.mark.proves("A6")
async def test_dead_letters_whose_session_cannot_be_read_keep_no_others(
    stores: Stores, database: Database
) -> None:
    for seq, key in enumerate((BAD, GOOD), start=1):
        request = PolicyRequest(overrides={"retain_days": 1})
        await stores.changes.set_policy(key, request, installation=stores.installation, now_ms=NOON)
        mine = DeadLetter(seq, NOON, "turn.completed", "not_json", "", 1, b"x", key)
        await stores.intake.ingest((), [mine], installation=stores.installation)
    failed: list[str] = []
    erasures = SqlErasureStore(database, aside=SetAside("ErasureRunner", failed.append))

    async with broken_policy(database):
        await erasures.expire_letters(installation=stores.installation, now_ms=NOON + 2 * DAY_MS)

    assert await column(database, "SELECT agent_id FROM dead_letters") == ["bad"]
    assert failed == ["ErasureRunner"]


@pytest.mark.proves("A6")
async def test_an_erased_session_whose_rows_cannot_be_deleted_keeps_those_of_no_other(
    stores: Stores, database: Database
) -> None:
    await stores.ingest(*turns(1, 2, key=BAD), *turns(11, 2, key=GOOD))
    while await stores.index.index_some():
        pass
    for key in (BAD, GOOD):
        await stores.changes.erase(key, last_seq=20, now_ms=NOON)
    failed: list[str] = []
    erasures = SqlErasureStore(database, aside=SetAside("ErasureRunner", failed.append))
    sids = "SELECT DISTINCT sid FROM messages"

    async with refusing_deletes(database, position_of(1, 0)):
        while await erasures.delete_rows():
            pass
        assert len(await column(database, sids)) == 1

    assert failed == ["ErasureRunner"]
    await stores.delete_rows()
    assert await column(database, sids) == []


@pytest.mark.proves("A6")
async def test_words_that_cannot_be_read_leave_the_index_later_than_all_others(
    stores: Stores, database: Database
) -> None:
    if not database.is_sqlite:
        return
    await stores.ingest(*turns(1, 2))
    while await stores.index.index_some():
        pass
    await stores.changes.erase(KEY, last_seq=20, now_ms=NOON)
    await stores.delete_rows()
    queued = "SELECT position FROM index_removals WHERE body != ''"
    first = position_of(1, 0)

    async with broken(database, "index_removals", "body", "{no JSON", f"position = {first}"):
        await stores.erasures.tidy()
        assert await column(database, queued) == [first]

    await stores.erasures.tidy()
    assert await column(database, queued) == []


async def test_a_budget_of_a_session_that_fails_loses_no_budget_of_another(
    stores: Stores, database: Database
) -> None:
    await stores.ingest(*turns(1, 1, key=BAD), *turns(11, 1, key=GOOD))
    failed: list[str] = []
    budgets = SqlBudgetStore(database, aside=SetAside("BudgetFollower", failed.append))
    hints = {key: [BudgetHint(4_000)] for key in (BAD, GOOD)}

    async with broken_policy(database):
        for _ in range(2):
            await budgets.follow(hints, installation=stores.installation, now_ms=NOON + MINUTE_MS)

        told = "SELECT agent_id FROM sessions WHERE asked_budgets IS NOT NULL"
        assert await column(database, told) == ["good"]
    assert failed == ["BudgetFollower"]


@pytest.mark.proves("A4", "L12")
async def test_a_campaign_that_cannot_advance_holds_up_no_other(
    stores: Stores, database: Database
) -> None:
    await stores.ingest(*turns(1, 7, key=BAD), *turns(11, 7, key=GOOD))
    for job in await stores.claim():
        await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON + 1_000)
    for key in (BAD, GOOD):
        await stores.campaigns.begin(
            key.agent_id,
            RegenerateOptions(style="narrative"),
            at_once=1,
            installation=stores.installation,
            now_ms=NOON + 2_000,
        )
    failed: list[str] = []
    campaigns = SqlCampaignStore(database, aside=SetAside("CampaignRunner", failed.append))

    async with broken(database, "campaigns", "wanted", "{no JSON"):
        opened = [
            await campaigns.advance(installation=stores.installation, now_ms=NOON + 3_000)
            for _ in range(2)
        ]

    assert (opened, failed) == ([1, 0], ["CampaignRunner"])
    assert [job.key for job in await stores.claim(NOON + 4_000)] == [GOOD]


@pytest.mark.proves("I5", "L1")
@pytest.mark.parametrize("messages", [1, 9])
async def test_an_event_that_breaks_a_rule_of_the_tables_holds_up_no_other(
    stores: Stores, messages: int
) -> None:
    """L1: it becomes a dead letter; only a key that is stored already means another worker."""
    bad = turn(2, *[user("b")] * messages, key=BAD)
    bad = bad._replace(messages=tuple([one._replace(role="nobody") for one in bad.messages]))
    events = [turn(1, user("a"), key=GOOD), bad, turn(3, user("c"), key=GOOD)]
    batch = DecodedBatch(events, [], {event.stream_seq: b"{}" for event in events}, {})

    result = await ingest(batch, store=stores.intake, installation=stores.installation)

    assert (result.events, result.dead_letters) == (2, 1)
    (letter,) = await stores.history.dead_letters(after=0, limit=9)
    assert (letter.stream_seq, letter.reason) == (2, "refused_by_database")
