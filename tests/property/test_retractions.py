"""Retractions, pairs and copies are a function of the stream: any order of arrival, any redelivery."""

import asyncio
import shutil
import sqlite3
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple, TypeVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.invariants import SessionSeen, faults
from tests.state_model.model import StateModel
from tests.state_walk import TIGHT
from tests.store_fixtures import (
    NOON,
    RAM,
    SMALL,
    Json,
    Stores,
    assistant,
    installation_of,
    new_sqlite,
    reported,
    result,
    retracted,
    sql_stores,
    summary,
    tool,
    turn,
    user,
)
from turnfold.core.policy.presets import Policy
from turnfold.errors import Conflict
from turnfold.messages import MESSAGES_PER_EVENT, AgentId, SessionId, SessionKey
from turnfold.ports.compact import JobStatus
from turnfold.ports.ingest import DecodedEvent

Answer = TypeVar("Answer")
USED = {"model": "m-1", "usage": {"prompt_tokens": 50, "completion_tokens": 9}}

call_ids = st.sampled_from(["x", "y"])
contents = st.sampled_from(["1", "2"])


class Published(NamedTuple):
    """An event of the stream before it has its sequence; `copy_of` is an earlier one, again."""

    messages: tuple[Json, ...] = ()
    fields: tuple[tuple[str, Any], ...] = ()
    is_retraction: bool = False
    copy_of: int | None = None


def said(*messages: Json, **fields: Any) -> Published:
    return Published(messages, tuple(fields.items()))


def taken_back(*message_ids: str, **fields: Any) -> Published:
    named = {"message_ids": list(message_ids)} if message_ids else fields
    return Published(fields=tuple(named.items()), is_retraction=True)


def again(number: int) -> Published:
    return Published(copy_of=number)


def arrivals(
    published: Sequence[Published], key: SessionKey, before: int = 0
) -> list[DecodedEvent]:
    """Give each event its place in the stream, and the id of its first publication."""
    found: list[DecodedEvent] = []
    for number, event in enumerate(published, start=1):
        seq, fields = before + number, dict(event.fields)
        named: Json = {"event_id": f"e{number}", "key": key, "at_ms": NOON + number}
        if event.copy_of is not None:
            first = found[event.copy_of - 1]
            found.append(first._replace(stream_seq=seq, at_ms=NOON + number))
        elif event.is_retraction:
            found.append(retracted(seq, **named, **fields))
        elif not event.messages:
            found.append(reported(seq, fields.pop("model"), **named, **fields))
        elif len(event.messages) == 1 and event.messages[0]["role"] == "tool":
            (message,) = event.messages
            found.append(result(seq, message["tool_call_id"], message["content"], **named))
        else:
            found.append(turn(seq, *event.messages, **named, **fields))
    return found


messages = st.one_of(
    st.just(user("look at the harbor")),
    st.lists(call_ids, min_size=1, max_size=2).map(lambda ids: assistant(None, *ids)),
    st.builds(tool, call_ids, contents),
    st.builds(tool, call_ids, contents),
)
message_ids = st.builds(
    "e{}#{}".format, st.integers(min_value=1, max_value=7), st.integers(min_value=0, max_value=2)
)
reports = message_ids.map(lambda message_id: said(message_id=message_id, **USED))
turns_said = st.builds(
    lambda spoken, fields: said(*spoken, **fields),
    st.lists(messages, min_size=1, max_size=3),
    st.sampled_from([{}, {}, {}, USED]),
)
retractions = st.one_of(
    st.lists(message_ids, min_size=1, max_size=3).map(lambda ids: taken_back(*ids)),
    st.lists(message_ids, min_size=1, max_size=2).map(lambda ids: taken_back(*ids)),
    message_ids.map(lambda message_id: taken_back(after=message_id)),
    st.just(taken_back(all=True)),
)


class Delivery(NamedTuple):
    """A stream, the sequences in the order of arrival, in batches, and what else happens.

    `pauses` are the batches after which a worker indexes words and writes summaries.
    """

    published: tuple[Published, ...]
    batches: tuple[tuple[int, ...], ...]
    pauses: frozenset[int] = frozenset()


@st.composite
def deliveries(draw: st.DrawFn) -> Delivery:
    published: list[Published] = []
    for number in range(draw(st.integers(min_value=2, max_value=8))):
        kinds = [turns_said, turns_said, retractions, reports]
        firsts = [place for place, one in enumerate(published, 1) if one.copy_of is None]
        if number:
            kinds.append(st.sampled_from(firsts).map(again))
        published.append(draw(st.one_of(kinds)))
    seqs = range(1, len(published) + 1)
    order = [*draw(st.permutations(seqs)), *draw(st.lists(st.sampled_from(seqs), max_size=3))]
    batches: list[list[int]] = []
    for seq in order:
        if not batches or seq in batches[-1] or draw(st.booleans()):
            batches.append([])
        batches[-1].append(seq)
    pauses = draw(st.frozensets(st.integers(min_value=0, max_value=len(batches) - 1), max_size=3))
    return Delivery(tuple(published), tuple(map(tuple, batches)), pauses)


class Databases:
    """SQLite databases in memory; a new one after some sessions, because all of it is read."""

    AT_ONCE = 12

    def __init__(self, policy: Policy) -> None:
        self._loop = asyncio.new_event_loop()
        self._policy = policy
        self._folder = Path(mkdtemp(prefix="turnfold-retractions-", dir=RAM))
        self._numbers = count()
        self._open = AsyncExitStack()
        self.stores: Stores
        self._path: Path

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return self._loop.run_until_complete(work)

    def new_session(self) -> tuple[SessionKey, int]:
        """Return a session of an agent of its own, and the sequence before its first event.

        Event ids belong to agents, and no two messages of a stream have one position.
        """
        number = next(self._numbers)
        if number % self.AT_ONCE == 0:
            self.run(self._renew())
        return SessionKey(AgentId(f"ada-{number}"), SessionId("s-1")), number * 100

    async def _renew(self) -> None:
        await self._open.aclose()
        folder = Path(mkdtemp(dir=self._folder))
        self._path = folder / "turnfold.db"
        url = new_sqlite(folder)
        self.stores = await self._open.enter_async_context(sql_stores(url, self._policy))
        self._open.callback(shutil.rmtree, folder)

    def close(self) -> None:
        self.run(self._open.aclose())
        self._loop.close()
        shutil.rmtree(self._folder)

    def seen(self, key: SessionKey) -> SessionSeen:
        snapshot = self.run(self.stores.seen())
        assert faults(snapshot) == []
        return snapshot.sessions[key]

    def index(self) -> None:
        async def indexed() -> None:
            while await self.stores.index.index_some():
                pass
            while await self.stores.erasures.remove_retracted():
                pass

        self.run(indexed())

    def rows(self, statement: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(self._path)) as connection:
            return connection.execute(statement, values).fetchall()


@pytest.fixture(scope="module")
def quiet() -> Iterator[Databases]:
    """Databases in which nothing is evicted."""
    databases = Databases(replace(SMALL, max_live_messages=0))
    yield databases
    databases.close()


@pytest.fixture(scope="module")
def evicting() -> Iterator[Databases]:
    """Databases in which a few messages make an eviction due."""
    databases = Databases(replace(TIGHT, max_live_messages=4, keep_messages=1))
    yield databases
    databases.close()


def deliver(databases: Databases, delivery: Delivery) -> tuple[SessionKey, int]:
    key, before = databases.new_session()
    events = arrivals(delivery.published, key, before)
    for number, batch in enumerate(delivery.batches):
        databases.run(databases.stores.ingest(*(events[seq - 1] for seq in batch)))
        if number in delivery.pauses:
            databases.index()
    databases.index()
    return key, before


def of_database(databases: Databases, key: SessionKey, before: int) -> dict[str, Any]:
    """Return what a database holds of a session, but evictions and the record of arrivals."""
    session = databases.seen(key)
    stored = [(one.message, one.body, 0) for one in session.messages]
    stored += [(one.message, one.body, one.seq - before) for one in session.retracted]
    ids = {message.position: message.message_id for message, *_ in stored}
    (sid,) = databases.rows("SELECT sid FROM sessions WHERE agent_id = ?", key.agent_id)[0]
    return {
        "messages": sorted(
            (
                message.position - before * MESSAGES_PER_EVENT,
                message.message_id,
                body,
                seq,
                (ids[message.answers.position], message.answers.slot) if message.answers else None,
                message.is_copy,
            )
            for message, body, seq in stored
        ),
        "named": {
            one.message.message_id: one.named_seq - before
            for one in session.retracted
            if one.named_seq is not None
        },
        "counters": (
            session.counters.messages_total,
            session.counters.tokens_total,
            session.counters.live_messages,
            session.counters.live_tokens,
            session.counters.model,
            session.counters.last_event_at_ms,
            session.rounds,
        ),
        "events": {event_id: seq - before for event_id, seq in session.events.items()},
        "calls": sorted(
            (position - before * MESSAGES_PER_EVENT, slot, call_id)
            for position, slot, call_id in databases.rows(
                "SELECT position, slot, call_id FROM tool_calls WHERE sid = ?", sid
            )
        ),
        "reports": {
            tuple(position - before * MESSAGES_PER_EVENT for position in places)
            for places in databases.rows(
                "SELECT position, answer_position FROM usage_reports WHERE sid = ? AND agent_id != ''",
                sid,
            )
        },
        "indexed": sorted(
            ids[position]
            for (position,) in databases.rows(
                "SELECT rowid FROM word_index WHERE rowid BETWEEN ? AND ?",
                before * MESSAGES_PER_EVENT,
                (before + 100) * MESSAGES_PER_EVENT,
            )
        ),
        "marked": sorted(
            ids[position]
            for (position,) in databases.rows(
                "SELECT position FROM marked_lines WHERE sid = ?", sid
            )
        ),
    }


CASES = [
    # A result named by a later retraction than its call.
    Delivery(
        (
            said(assistant(None, "x")),
            taken_back("e1#0"),
            said(user("look at the harbor")),
            said(tool("x", "1")),
            taken_back("e4#0", "e1#0"),
        ),
        ((5,), (3,), (4,), (1,), (2,)),
    ),
    # A result that waits for a call, whose own result comes later.
    Delivery(
        (
            said(tool("y", "1")),
            said(assistant(None, "x"), tool("x", "1")),
            said(assistant(None, "y"), tool("y", "1")),
            taken_back("e2#1", "e3#0"),
            said(assistant(None, "y"), tool("y", "1")),
        ),
        ((3,), (4,), (2,), (1,), (5,)),
    ),
]


def of_model(delivery: Delivery) -> list[tuple[Any, ...]]:
    """Return the messages of a stream: id, retraction, answered call, and whether it is a copy."""
    key = SessionKey(AgentId("ada"), SessionId("s-1"))
    model = StateModel(installation_of(SMALL)[0])
    model.ingest(arrivals(delivery.published, key))
    messages, retracted_by = model.sessions[key].all_messages
    ids = {message.position: message.message_id for message in messages}
    return [
        (
            message.message_id,
            retracted_by.get(message.position, 0),
            (ids[message.answers.position], message.answers.slot) if message.answers else None,
            message.is_copy,
        )
        for message in messages
    ]


@pytest.mark.proves("G1", "L2", "L3")
@example(CASES[0])
@example(CASES[1])
@given(deliveries())
def test_every_order_of_arrival_leaves_what_the_stream_says(
    quiet: Databases, delivery: Delivery
) -> None:
    in_order = delivery._replace(
        batches=tuple((seq,) for seq, _ in enumerate(delivery.published, 1))
    )

    ordered = of_database(quiet, *deliver(quiet, in_order))
    arrived = of_database(quiet, *deliver(quiet, delivery))

    assert arrived == ordered
    assert [(name, *rest) for _, name, _, *rest in ordered["messages"]] == of_model(delivery)


class Writer:
    """A worker that writes summaries; `read` are the messages that each version tells of."""

    def __init__(self, stores: Stores, key: SessionKey) -> None:
        self._stores = stores
        self._key = key
        self.read: dict[int | None, frozenset[str]] = {None: frozenset()}

    async def write(self, now_ms: int) -> None:
        """Carry out the jobs of the session."""
        for job in await self._stores.claim(now_ms):
            if job.key != self._key:
                await self._stores.jobs.fail(
                    job, ending=JobStatus.STALE, reason=None, detail="", now_ms=now_ms
                )
                continue
            work = await self._stores.jobs.load(job, now_ms=now_ms)
            version = await self._stores.jobs.commit(
                job, summary("They spoke."), leaving=work.leaving, reason=None, now_ms=now_ms
            )
            read = {entry.message.message_id for entry in work.evicted}
            self.read[version] = self.read[job.base_version] | read

    async def tells_of(self, version: int, now_ms: int) -> frozenset[str]:
        """Return the messages of a version, or nothing if it cannot take effect."""
        try:
            await self._stores.versions.promote(
                self._key,
                version,
                over=None,
                installation=self._stores.installation,
                now_ms=now_ms,
            )
        except Conflict:
            return frozenset()
        return self.read[version]


@pytest.mark.proves("G1", "L1", "L2", "L3", "L7", "L10")
@given(deliveries())
def test_no_summary_tells_of_a_retracted_message_in_any_order_of_arrival(
    evicting: Databases, quiet: Databases, delivery: Delivery
) -> None:
    key, before = evicting.new_session()
    events = arrivals(delivery.published, key, before)
    writer, now_ms = Writer(evicting.stores, key), NOON + 60_000
    for number, batch in enumerate(delivery.batches):
        now_ms += 1_000_000
        evicting.run(evicting.stores.ingest(*(events[seq - 1] for seq in batch)))
        if number in delivery.pauses:
            evicting.run(writer.write(now_ms))
            evicting.index()
    evicting.index()

    arrived = of_database(evicting, key, before)
    ordered = of_database(quiet, *deliver(quiet, delivery))
    for part in ("messages", "named", "events", "calls", "indexed", "marked"):
        assert arrived[part] == ordered[part], part
    session = evicting.seen(key)
    gone = {entry.message.message_id for entry in session.retracted}
    assert writer.read[session.counters.version].isdisjoint(gone)
    for version in range(1, session.counters.versions + 1):
        told = evicting.run(writer.tells_of(version, now_ms + 1_000))
        assert told.isdisjoint(gone), version
