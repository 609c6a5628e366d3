"""Read a session for a window in one snapshot: its row, summary, evictions, messages and texts."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import Text, bindparam, cast, func, literal_column, select

from turnfold.cache import LRUCache
from turnfold.core.history.as_of import AsOf, AtTime
from turnfold.core.policy.overrides import PolicyOverrides
from turnfold.errors import BadRequest
from turnfold.messages import CompactionId, Message, SessionKey
from turnfold.ports.query import (
    Chosen,
    PendingEviction,
    SessionSnapshot,
    StoredSummary,
    TooLargeHere,
    WindowSnapshot,
)
from turnfold.store.database.engine import Database
from turnfold.store.database.inline_reader import WouldBlock
from turnfold.store.database.message_rows import FACTS, message_of
from turnfold.store.database.predicates import is_live, is_pending
from turnfold.store.database.schema import (
    agents,
    compactions,
    ingested_ranges,
    messages,
    sessions,
    summaries,
)
from turnfold.store.database.statements import Prepared, SupportsStatements
from turnfold.store.ingest.limits import limits_of
from turnfold.store.query.as_of import messages_as_of, timeline_state
from turnfold.store.query.message_cache import CHANGING_COLUMNS, CachedSession, state_of_row

_INGESTED_TO = (
    select(ingested_ranges.c.last_seq)
    .where(ingested_ranges.c.first_seq == literal_column("1"))
    .scalar_subquery()
)
_REACHED = Prepared(select(func.coalesce(_INGESTED_TO, literal_column("0"))), ())
_ONE = select(literal_column("1").label("one")).subquery("one")
_SESSION_COLUMNS = [
    sessions.c[name]
    for name in (
        "model", "revision", "messages_total", "tokens_total", "live_messages", "live_tokens",
        "factor", "version", "versions", "compactions", "audit_rows", "audit_hash",
        "last_event_at_ms", "window_limits", "asked_budgets",
    )
]  # fmt: skip
SUMMARY_COLUMNS = [
    *(
        summaries.c[name]
        for name in (
            "version",
            "base_version",
            "kind",
            "style",
            "model",
            "text",
            "sections",
            "ledger",
            "tokens",
        )
    ),
    summaries.c.text_tokens,
    func.coalesce(summaries.c.cuts, literal_column("''")),
    *(summaries.c[name] for name in ("covers_first", "covers_last", "messages_covered")),
    cast(summaries.c.compaction_id, Text),
    summaries.c.created_at_ms,
]
_HEAD = Prepared(
    select(
        func.coalesce(_INGESTED_TO, literal_column("0")),
        sessions.c.sid,
        sessions.c.preset,
        sessions.c.mode,
        sessions.c.overrides,
        agents.c.preset,
        agents.c.mode,
        agents.c.overrides,
        *_SESSION_COLUMNS,
        sessions.c.evicted_changes,
        *SUMMARY_COLUMNS,
    ).select_from(
        _ONE.outerjoin(
            sessions,
            (sessions.c.agent_id == bindparam("agent_id"))
            & (sessions.c.session_id == bindparam("session_id")),
        )
        .outerjoin(agents, agents.c.agent_id == sessions.c.agent_id)
        .outerjoin(
            summaries,
            (summaries.c.sid == sessions.c.sid) & (summaries.c.version == sessions.c.version),
        )
    ),
    ("agent_id", "session_id"),
)
_is_pending = is_pending & (compactions.c.messages_evicted > literal_column("0"))
_waits = select(
    compactions.c.compaction_id,
    compactions.c.messages_evicted,
    compactions.c.tokens_evicted,
    compactions.c.digest,
    compactions.c.digest_tokens,
    compactions.c.requested_at_ms,
    compactions.c.first_position,
    compactions.c.last_position,
)
_PENDING = Prepared(
    _waits.where(compactions.c.sid == bindparam("of_sid"), _is_pending).order_by(
        compactions.c.ordinal
    ),
    ("of_sid",),
)
_EVICTION = Prepared(_waits.where(compactions.c.compaction_id == bindparam("by")), ("by",))
_SUMMARY = Prepared(
    select(*SUMMARY_COLUMNS).where(
        summaries.c.sid == bindparam("of_sid"), summaries.c.version == bindparam("number")
    ),
    ("of_sid", "number"),
)

_live = (
    select(*CHANGING_COLUMNS)
    .where(messages.c.sid == bindparam("of_sid"), is_live)
    .order_by(messages.c.position)
)
_LIVE = Prepared(_live, ("of_sid",))
_LIVE_FACTS = Prepared(
    _live.with_only_columns(*FACTS).where(messages.c.position >= bindparam("since")),
    ("of_sid", "since"),
)
_EVICTED = Prepared(
    select(*FACTS)
    .where(
        messages.c.sid == bindparam("of_sid"),
        messages.c.position.between(bindparam("first"), bindparam("last")),
        messages.c.compaction_id == bindparam("by"),
    )
    .order_by(messages.c.position),
    ("of_sid", "first", "last", "by"),
)
# A fixed number of places, so that one compiled statement reads any number of texts.
_PLACES = tuple(f"at_{number}" for number in range(64))
_BODIES = Prepared(
    select(messages.c.position, messages.c.body).where(
        messages.c.sid == bindparam("of_sid"),
        messages.c.position.in_([bindparam(place) for place in _PLACES]),
    ),
    ("of_sid", *_PLACES),
)

KNOWN = 32_768
"""The most cached messages of all sessions together; one takes about half a kilobyte."""


class Size(NamedTuple):
    """The size of a session, as far as it determines the cost of a window."""

    messages: int
    tokens: int

    def exceeds(self, most: "Size | None") -> bool:
        """Return whether either number is above the limit."""
        return most is not None and (self.messages > most.messages or self.tokens > most.tokens)


AT_ONCE = Size(messages=1_024, tokens=500_000)
"""The largest session whose window is built here: 4 ms at the limit, 12 at twice as much."""
CALLS_AT_ONCE = 1_024
"""The most tool calls of such a session; each may need a stand-in for its result."""


class SqlWindowStore:
    """Windows in SQL; see `turnfold.ports.query.WindowStore`.

    With `most`, larger sessions are refused with `TooLargeHere`.
    """

    def __init__(self, database: Database, most: Size | None = None) -> None:
        self._database = database
        self._most = most
        self._known: LRUCache[SessionKey, CachedSession] = LRUCache(KNOWN)

    def forget(self) -> None:
        """Clear the cache, because messages were erased."""
        self._known.clear()

    async def ingested_to(self) -> int:
        """Return the sequence up to which every event is ingested.

        Raises:
            Unavailable: the database cannot be read now.
        """
        return await self._database.read_small(
            lambda connection: int(_REACHED.rows(connection)[0][0])
        )

    async def window(
        self,
        key: SessionKey,
        *,
        on_session: Callable[[WindowSnapshot], Chosen | None],
        on_messages: Callable[[WindowSnapshot], tuple[Chosen, Sequence[int]]],
    ) -> tuple[Chosen, Mapping[int, str]]:
        """Read a session in one snapshot."""

        def read(
            connection: SupportsStatements, *, is_near: bool = False
        ) -> tuple[Chosen, Mapping[int, str]]:
            facts, changes = _head(connection, key)
            seen = on_session(facts)
            if seen is not None:
                return seen, {}
            if facts.session is None:
                return on_messages(facts)[0], {}
            sid = facts.session.sid
            pending = _PENDING.rows(connection, sid)
            size = Size(
                facts.session.live_messages + sum([row[1] for row in pending]),
                facts.session.live_tokens,
            )
            if size.exceeds(self._most):
                raise TooLargeHere
            # Taken out while it is used: two reader threads must not change one entry.
            known = self._known.pop(key) or CachedSession()
            # Before anything large is read in the event loop's thread.
            if is_near and not known.is_at_hand(facts.session.live_messages, changes, pending):
                self._known.put(key, known, known.size)
                raise WouldBlock
            evicted = _evicted(connection, sid, known, changes, pending)
            messages_now = [*evicted, *_live_ones(connection, sid, known)]
            self._known.put(key, known, known.size)
            # Only known after the messages were read, unlike the sizes above.
            calls = sum([len(message.calls) for message in messages_now])
            if self._most is not None and calls > CALLS_AT_ONCE:
                raise TooLargeHere
            # Stragglers: evicted and live messages may alternate.
            if evicted:
                messages_now.sort(key=attrgetter("position"))
            waiting = tuple([_waiting(row) for row in pending])
            chosen, positions = on_messages(
                WindowSnapshot(
                    facts.ingested_to, facts.session, facts.summary, waiting, tuple(messages_now)
                )
            )
            return chosen, dict(_bodies(connection, sid, positions))

        try:
            # Tried first: the way to a thread and back costs more than a small window.
            return self._database.read_inline(lambda connection: read(connection, is_near=True))
        except WouldBlock:
            return await self._database.snapshot(read)

    async def window_as_of(
        self,
        key: SessionKey,
        moment: AsOf,
        *,
        on_session: Callable[[WindowSnapshot], Chosen | None],
        on_messages: Callable[[WindowSnapshot], tuple[Chosen, Sequence[int]]],
    ) -> tuple[Chosen, Mapping[int, str]]:
        """Read a session as it was, in one snapshot, without the cache."""

        def read(connection: SupportsStatements) -> tuple[Chosen, Mapping[int, str]]:
            facts, _ = _head(connection, key)
            seen = on_session(facts)
            if seen is not None:
                return seen, {}
            if facts.session is None:
                if not isinstance(moment, AtTime):
                    raise BadRequest("as_of: nothing was published in this session yet")
                return on_messages(facts)[0], {}
            # How many messages there were then is only known after they were read.
            if Size(facts.session.messages_total, facts.session.tokens_total).exceeds(self._most):
                raise TooLargeHere
            sid = facts.session.sid
            state = timeline_state(connection, key, sid, moment)
            messages_then = messages_as_of(connection, sid, state)
            pending = tuple(
                [
                    _waiting(row)
                    for span in state.pending
                    for row in _EVICTION.rows(connection, span.compaction_id)
                ]
            )
            session = replace(
                facts.session,
                messages_total=state.covered + len(messages_then),
                version=state.version,
                window_limits=_limits_as_of(connection, facts.session, state.at_ms),
            )
            summary = (
                None
                if state.version is None
                else summary_of(*_SUMMARY.rows(connection, sid, state.version))
            )
            chosen, positions = on_messages(
                WindowSnapshot(facts.ingested_to, session, summary, pending, tuple(messages_then))
            )
            return chosen, dict(_bodies(connection, sid, positions))

        return await self._database.snapshot(read)


def _limits_as_of(
    connection: SupportsStatements, session: SessionSnapshot, at_ms: int
) -> str | None:
    """Return the limits of a session as they were known at a time, as JSON; None without any."""
    if session.window_limits is None:
        return None
    return json.dumps(limits_of(connection, session.sid, at_ms))


def _waiting(row: Sequence[Any]) -> PendingEviction:
    """Build an eviction from the columns of `_PENDING`."""
    return PendingEviction(CompactionId(str(row[0])), *row[1:6])


def _evicted(
    connection: SupportsStatements,
    sid: int,
    known: CachedSession,
    changes: int,
    pending: Sequence[Sequence[Any]],
) -> list[Message]:
    """Return the messages of these evictions; read only those that are not cached."""
    # The count tells that some evicted message changed, not which one: all are read again.
    before = known.evicted if known.changes == changes else {}
    known.changes = changes
    known.evicted = {
        row[0]: before.get(row[0]) or _read_evicted(connection, sid, row) for row in pending
    }
    return [message for evicted in known.evicted.values() for message in evicted]


def _read_evicted(
    connection: SupportsStatements, sid: int, eviction: Sequence[Any]
) -> list[Message]:
    compaction_id, *_, first, last = eviction
    return [message_of(row) for row in _EVICTED.rows(connection, sid, first, last, compaction_id)]


def _live_ones(connection: SupportsStatements, sid: int, known: CachedSession) -> list[Message]:
    """Return the live messages in order; read only those that are not cached in this state."""
    states = [tuple(row) for row in _LIVE.rows(connection, sid)]
    try:
        return [known.live[state] for state in states]
    except KeyError:
        # Drops what was evicted since, or the cache of a long session would grow without end.
        known.live = {state: known.live[state] for state in states if state in known.live}
        # From the first unknown one on: what is new nearly always stands at the end.
        since = min(state[0] for state in states if state not in known.live)
        known.live.update(
            (state_of_row(row), message_of(row)) for row in _LIVE_FACTS.rows(connection, sid, since)
        )
        return [known.live[state] for state in states]


def _head(connection: SupportsStatements, key: SessionKey) -> tuple[WindowSnapshot, int]:
    """Read the session row and the summary, and how often evicted messages have changed."""
    (row,) = _HEAD.rows(connection, key.agent_id, key.session_id)
    if row[1] is None:
        return WindowSnapshot(row[0], None), 0
    wishes, agent_wishes = PolicyOverrides(*row[2:5]), PolicyOverrides(*row[5:8])
    end = 8 + len(_SESSION_COLUMNS)
    session = SessionSnapshot(row[1], wishes, agent_wishes, *row[8:end])
    changes, *summary = row[end:]
    return WindowSnapshot(
        row[0], session, None if summary[0] is None else summary_of(summary)
    ), changes


def summary_of(row: Sequence[Any]) -> StoredSummary:
    """Build a version from `SUMMARY_COLUMNS`, which are its fields in order."""
    return StoredSummary(*row)


def _bodies(
    connection: SupportsStatements, sid: int, positions: Sequence[int]
) -> Iterator[tuple[int, str]]:
    """Read the texts of messages in groups; the last position fills the unused parameters."""
    for start in range(0, len(positions), len(_PLACES)):
        places = positions[start : start + len(_PLACES)]
        yield from (
            (position, body)
            for position, body in _BODIES.rows(
                connection, sid, *places, *[places[-1]] * (len(_PLACES) - len(places))
            )
        )
