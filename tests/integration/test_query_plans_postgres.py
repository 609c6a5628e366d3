"""What is done all the time reads few rows on PostgreSQL, too, however many there are: what its server says that it did."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, select, text

from tests.postgres import Postgres
from tests.store_fixtures import (
    KEY,
    NOON,
    Json,
    Stores,
    assistant,
    places,
    result,
    sql_stores,
    summary,
    tool,
    turn,
    turns,
    user,
)
from turnfold.contracts.requests import PolicyRequest
from turnfold.core.history.as_of import AtMessage, AtTime, AtVersion
from turnfold.core.recall.question import RecallQuestion
from turnfold.messages import AgentId, EventId, SessionId, SessionKey, State
from turnfold.operations.query.search import found, question_of
from turnfold.ports.recall import Choice
from turnfold.ports.search import Scope
from turnfold.store.database import schema
from turnfold.store.database.engine import Database
from turnfold.store.database.statements import PAIRS, PreparedPairs
from turnfold.store.ingest.open_compactions import quoted_texts
from turnfold_migrations import upgrade

GROWING = (
    "sessions", "events", "messages", "tool_calls", "usage_reports", "compactions", "summaries", "coverage", "summary_activations", "audit", "word_index_segments",
)  # fmt: skip
COLUMNS = {
    name: [one.name for one in table.columns if one.name != "audit_id"]
    for name, table in schema.metadata.tables.items()
}
COLUMNS["word_index_segments"] = [one.name for one in schema.word_index_segments.columns]
REPORTED: Json = {"model": "m", "usage": {"prompt_tokens": 500}}
OTHERS = [SessionKey(AgentId("ada"), SessionId(f"other-{number}")) for number in range(3)]
COPIES = 60
MORE = {"sessions": 30, "usage_reports": 6}
"""Of what takes few pages there has to be more, or to read all of it would be right."""
FEW = 400
"""More rows than a session of these has of anything, and far fewer than there are."""
TELLING = {
    "session_preload_libraries": "auto_explain", "auto_explain.log_min_duration": "0", "auto_explain.log_analyze": "on",
    "auto_explain.log_timing": "off", "auto_explain.log_format": "json", "auto_explain.log_level": "notice",
    "auto_explain.log_nested_statements": "on",
}  # fmt: skip
"""Has a server send the plan of each statement, and what it did, to whoever asked."""
ERASED = """INSERT INTO erasures (agent_id, session_id, last_seq, at_ms)
    SELECT 'ada', 'erased/' || n, 1, 1 FROM generate_series(1, 20000) AS n"""
"""The agent has erased as many sessions: their tombstones stay."""
SHIFTED = {
    "sid": "sid + 1000 * n", "compaction_id": "compaction_id + 1000000 * n", "session_id": "session_id || '/' || n",
    "event_id": "event_id || '/' || n", "position": "position + 100000 * 1024 * n", "stream_seq": "stream_seq + 100000 * n",
    "segment": "segment + 100000 * n",
    "first_position": "first_position + 100000 * 1024 * n", "last_position": "last_position + 100000 * 1024 * n",
}  # fmt: skip
"""What differs between a session and the copies that are made of it."""


async def fill(url: str) -> None:
    """Give an empty database the past of hundreds of sessions of one agent: a few that were lived, and copies of these."""
    await upgrade(url)
    async with sql_stores(url) as stores:
        for number, key in enumerate([*OTHERS, KEY]):
            seqs = range(1_000 * number + 1, 1_000 * number + 60)
            await stores.ingest(
                *[
                    turn(
                        seq,
                        user("q"),
                        assistant("a", f"c{seq}"),
                        tool(f"c{seq}"),
                        key=key,
                        **REPORTED,
                    )
                    for seq in seqs
                ]
            )
        for job in await stores.claim(NOON + 5_000):
            await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON)
        while await stores.index.index_some():
            pass
        for name in GROWING:
            values = ", ".join(SHIFTED.get(one, one) for one in COLUMNS[name])
            series = f"generate_series(1::bigint, {COPIES * MORE.get(name, 1)}) AS n"
            copied = text(
                f"INSERT INTO {name} ({', '.join(COLUMNS[name])}) SELECT {values} FROM {name}, {series}"
            )
            await stores.database.write(partial(Connection.execute, statement=copied))
        await stores.database.write(lambda connection: connection.execute(text(ERASED)))
        await stores.database.write(lambda connection: connection.execute(text("ANALYZE")))
        # Few wait for their summary at any time, however many sessions there are.
        await stores.ingest(*turns(9_000, 8))


@pytest.fixture(scope="module")
def full(postgres: Postgres) -> str:
    """A database with such a past, for others to be made like."""
    name = asyncio.run(postgres.create_database())
    asyncio.run(fill(postgres.url(name)))
    return name


class Watched:
    """A store with a long past, and what its server said that it did."""

    def __init__(self, stores: Stores, url: str) -> None:
        self.stores = stores
        self.url = url
        self.told: list[Json] = []

    def on_connect(self, connection: Any, _record: object) -> None:
        connection.driver_connection.add_log_listener(self._listen)

    def _listen(self, _: object, message: Any) -> None:
        _before, plan, rest = str(message).partition("plan:\n")
        if plan:
            self.told.append(json.loads(rest))

    def much(self) -> list[str]:
        """The steps that read, or sorted, more than a session has of anything, each with its statement."""
        assert self.told
        return [
            f"{step['Node Type']} {step.get('Relation Name', '')} {rows:,.0f} rows: {' '.join(one['Query Text'].split())[:200]}"
            for one in self.told
            # What the driver asks about types is nothing of ours.
            if "pg_catalog" not in one["Query Text"]
            for step in steps(one["Plan"])
            if (rows := rows_of(step)) > FEW
        ]


def steps(plan: Json) -> Iterator[Json]:
    """A step of a plan and all below it."""
    yield plan
    for one in plan.get("Plans", ()):
        yield from steps(one)


def rows_of(step: Json) -> float:
    """How many rows a step looked at in all its rounds."""
    away = sum(value for name, value in step.items() if name.startswith("Rows Removed by"))
    return float(step["Actual Loops"] * (step["Actual Rows"] + away))


@pytest.fixture
async def watched(postgres: Postgres, full: str) -> AsyncGenerator[Watched]:
    name = await postgres.create_database(like=full)
    for setting, value in TELLING.items():
        await postgres.set(name, setting, value)
    url = postgres.url(name)
    async with sql_stores(url, first_id=500) as stores:
        found = Watched(stores, url)
        event.listen(Engine, "connect", found.on_connect)
        try:
            yield found
        finally:
            event.remove(Engine, "connect", found.on_connect)
    await postgres.drop_database(name)


async def a_window(stores: Stores) -> None:
    await stores.windows.window(
        KEY,
        on_session=lambda _: None,
        on_messages=lambda facts: (True, [facts.messages[0].position]),
    )


async def windows_of_the_past(stores: Stores) -> None:
    for moment in (AtVersion(1), AtMessage(EventId("e9003"), 0), AtTime(NOON + 9_004)):
        await stores.windows.window_as_of(
            KEY, moment, on_session=lambda _: None, on_messages=lambda _: (True, [1])
        )


async def what_is_new_comes(stores: Stores) -> None:
    await stores.ingest(
        turn(9_100, user("q"), assistant(None, "x"), **REPORTED), result(9_101, "x", "42")
    )
    await stores.ingest(*turns(9_110, 20, key=SessionKey(AgentId("ada"), SessionId("new"))))


async def a_full_window_is_reported(stores: Stores) -> None:
    policy = PolicyRequest(overrides={"reserve_tokens": 60_000})
    await stores.changes.set_policy(KEY, policy, installation=stores.installation, now_ms=NOON)
    usage = {"prompt_tokens": 120_000}
    await stores.ingest(turn(9_200, user("q"), assistant("a"), model="m", usage=usage))


async def an_event_comes_again(stores: Stores) -> None:
    again = turn(9_007, user("question 9007"), assistant("answer 9007"))
    await stores.ingest(again._replace(stream_seq=9_200))
    await stores.ingest(again._replace(stream_seq=8_999))


async def messages_leave(stores: Stores) -> None:
    await stores.ingest(*turns(9_300, 12))


async def a_job_is_done(stores: Stores) -> None:
    await stores.jobs.next_due_ms()
    (job, *_) = await stores.jobs.claim(
        places(1), lease_ms=1_000, now_ms=NOON + 20_000, installation=stores.installation
    )
    await stores.jobs.load(job, now_ms=NOON)
    await stores.jobs.renew(job, lease_ms=1_000, now_ms=NOON)
    await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON)


async def history_is_read(stores: Stores) -> None:
    await stores.history.page(KEY, after_position=0, limit=5)
    await stores.history.page(KEY, before_position=1 << 50, limit=5, newest_first=True)
    await stores.history.by_ids(KEY, ["e9001#0", "e9002#1"])
    await stores.history.versions(KEY)
    await stores.history.audit(KEY, after=0, limit=5)
    await stores.history.counts(KEY)


async def words_are_searched(stores: Stores) -> None:
    assert await found(
        KEY,
        question_of("q"),
        scope=Scope(state=State.COVERED, version=1),
        limit=5,
        store=stores.search,
    )


async def words_are_indexed(stores: Stores) -> None:
    await stores.ingest(*turns(9_400, 2))
    await stores.index.index_some()


async def a_session_is_erased(stores: Stores) -> None:
    await stores.changes.erase(OTHERS[0], last_seq=9_999, now_ms=NOON)
    await stores.erasures.delete_rows()


DEEDS = [
    a_window, windows_of_the_past, what_is_new_comes, a_full_window_is_reported, an_event_comes_again, messages_leave, a_job_is_done, history_is_read,
    words_are_searched, words_are_indexed, a_session_is_erased,
]  # fmt: skip


@pytest.mark.proves("L8", "C58")
@pytest.mark.parametrize("deed", DEEDS)
async def test_what_is_done_all_the_time_looks_at_few_rows(
    deed: Callable[[Stores], Awaitable[None]], watched: Watched
) -> None:
    await deed(watched.stores)

    assert watched.much() == []


async def nothing_is_recalled(stores: Stores) -> None:
    session = (await stores.facts()).session
    assert session is not None
    await stores.recall.recall(
        session.sid,
        until=1 << 50,
        question=lambda _: RecallQuestion((), frozenset()),
        choose=lambda _: Choice(()),
    )


@pytest.mark.proves("L8")
@pytest.mark.parametrize(("deed", "least"), [(a_window, 2), (nothing_is_recalled, 3)])
async def test_a_session_that_has_grown_is_read_by_few_statements(
    deed: Callable[[Stores], Awaitable[None]], least: int, watched: Watched
) -> None:
    statements = []
    for seq in range(9_010, 9_014):
        await watched.stores.ingest(*turns(seq, 1))
        watched.told.clear()
        await deed(watched.stores)
        statements.append(len(watched.told))

    # An eviction takes more.
    assert min(statements) == least
    assert watched.much() == []


@pytest.mark.proves("L8", "C58")
async def test_some_hundred_rows_are_looked_up_one_by_one(watched: Watched) -> None:
    database = Database(watched.url, writes=False)
    some = (
        select(schema.messages.c.sid, schema.messages.c.position)
        .order_by(schema.messages.c.position)
        .limit(FEW - 50)
    )
    wanted = await database.snapshot(
        lambda connection: [(sid, position) for sid, position in connection.execute(some)]
    )
    watched.told.clear()

    found = await database.snapshot(lambda connection: quoted_texts(connection, wanted))
    await database.close()

    assert len(found) == len(wanted)
    assert watched.much() == []


@pytest.mark.proves("L8", "O10")
async def test_a_statement_for_pairs_looks_each_of_them_up_the_first_time_it_is_written(
    watched: Watched,
) -> None:
    database = Database(watched.url, writes=False)
    messages = schema.messages
    some = select(messages.c.sid, messages.c.position).order_by(messages.c.position).limit(FEW - 50)
    wanted = await database.snapshot(
        lambda connection: [(sid, position) for sid, position in connection.execute(some)]
    )
    of_pairs = select(messages.c.body).where(
        messages.c.sid == PAIRS.c.a, messages.c.position == PAIRS.c.b
    )
    prepared = PreparedPairs(of_pairs, (messages.c.sid.type, messages.c.position.type))
    watched.told.clear()

    found = await database.snapshot(lambda connection: prepared.rows(connection, wanted))
    await database.close()

    assert len(found) == len(wanted)
    assert watched.much() == []


async def test_reading_and_sorting_much_would_be_seen(watched: Watched) -> None:
    database = Database(watched.url, writes=False)
    await database.snapshot(
        lambda connection: connection.execute(
            text("SELECT sid FROM messages ORDER BY tokens")
        ).all()
    )
    await database.close()

    assert [step.split()[0] for step in watched.much()] == ["Sort", "Seq"]
