"""One read, one snapshot: a session's row, its summary, what is pending, what is live, and the texts of what is shown."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from sqlalchemy import Text, bindparam, cast, func, literal_column, select, text

from turnfold.core.precedence import Wishes
from turnfold.lately import Lately
from turnfold.messages import CompactionId, Message, SessionKey
from turnfold.ports import Chosen, PendingEviction, SessionFacts, StoredSummary, WindowFacts
from turnfold.store.bulk import Prepared, Readable
from turnfold.store.engine import Database
from turnfold.store.near import NotAtHand
from turnfold.store.rows import FACTS, message_of
from turnfold.store.schema import agents, compactions, ingested, messages, sessions, summaries

_INGESTED_TO = select(ingested.c.last_seq).where(ingested.c.first_seq == literal_column("1")).scalar_subquery()
_ONE = select(literal_column("1").label("one")).subquery("one")
_SESSION_COLUMNS = [
    sessions.c[name]
    for name in (
        "model", "revision", "messages_total", "tokens_total", "live_messages", "live_tokens", "factor", "version", "versions",
        "compactions", "audit_rows", "audit_hash", "last_event_at_ms",
    )
]  # fmt: skip
SUMMARY_COLUMNS = [
    *(summaries.c[name] for name in ("version", "base_version", "kind", "style", "model", "text", "sections", "ledger", "tokens")),
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
        *SUMMARY_COLUMNS,
    ).select_from(
        _ONE.outerjoin(sessions, (sessions.c.agent_id == bindparam("agent_id")) & (sessions.c.session_id == bindparam("session_id")))
        .outerjoin(agents, agents.c.agent_id == sessions.c.agent_id)
        .outerjoin(summaries, (summaries.c.sid == sessions.c.sid) & (summaries.c.version == sessions.c.version))
    ),
    ("agent_id", "session_id"),
)
_IS_PENDING = text("NOT is_covered AND status IN ('pending', 'running', 'committed') AND messages_evicted > 0")
_PENDING = Prepared(
    select(
        compactions.c.compaction_id,
        compactions.c.messages_evicted,
        compactions.c.tokens_evicted,
        compactions.c.digest,
        compactions.c.digest_tokens,
        compactions.c.requested_at_ms,
    )
    .where(compactions.c.sid == bindparam("of_sid"), _IS_PENDING)
    .order_by(compactions.c.ordinal),
    ("of_sid",),
)
_CHANGING = [messages.c[name] for name in ("position", "compaction_id", "answers_position", "answers_slot", "is_copy")]
"""What may ever change of a stored message, behind its position: where it is, and what it answers."""

_live = (
    select(*_CHANGING)
    .where(messages.c.sid == bindparam("of_sid"), messages.c.compaction_id.is_(None))
    .order_by(messages.c.position)
)  # fmt: skip
_evicted = (
    select(*_CHANGING)
    .select_from(compactions)
    .join(
        messages,
        (messages.c.sid == compactions.c.sid)
        & messages.c.position.between(compactions.c.first_position, compactions.c.last_position)
        & (messages.c.compaction_id == compactions.c.compaction_id),
    )
    .where(compactions.c.sid == bindparam("of_sid"), _IS_PENDING)
)
_since = messages.c.position >= bindparam("since")
_LIVE = Prepared(_live, ("of_sid",))
_LIVE_FACTS = Prepared(_live.with_only_columns(*FACTS).where(_since), ("of_sid", "since"))
_EVICTED = Prepared(_evicted, ("of_sid",))
_EVICTED_FACTS = Prepared(_evicted.with_only_columns(*FACTS).where(_since), ("of_sid", "since"))
_PLACES = tuple(f"at_{number}" for number in range(64))
_BODIES = Prepared(
    select(messages.c.position, messages.c.body).where(
        messages.c.sid == bindparam("of_sid"), messages.c.position.in_([bindparam(place) for place in _PLACES])
    ),
    ("of_sid", *_PLACES),
)
AT_HAND = 512
"""Up to so many live and pending messages a window is read and decided on the spot; beyond, it would hold up other requests."""

KNOWN = 8_192
"""Of so many messages the numbers are remembered, those of the sessions asked for last; a message takes less than a kilobyte."""

State = tuple[Any, ...]
"""The columns `_CHANGING` of a message.

A position belongs to one message for ever, and all else that is stored of it never changes. So what was read of a message
in some state holds whenever it is found in that state again, and cannot be out of date.
"""


class SqlWindows:
    """Windows in a database; see `turnfold.ports.WindowStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: Lately[SessionKey, dict[State, Message]] = Lately(KNOWN)

    async def window(
        self,
        key: SessionKey,
        *,
        glance: Callable[[WindowFacts], Chosen | None],
        choose: Callable[[WindowFacts], tuple[Chosen, Sequence[int]]],
    ) -> tuple[Chosen, Mapping[int, str]]:
        """Read a session in one snapshot."""

        def read(connection: Readable, at_most: int | None = None) -> tuple[Chosen, Mapping[int, str]]:
            facts = _head(connection, key)
            seen = glance(facts)
            if seen is not None:
                return seen, {}
            if facts.session is None:
                return choose(facts)[0], {}
            sid = facts.session.sid
            pending = tuple([PendingEviction(CompactionId(str(row[0])), *row[1:]) for row in _PENDING.rows(connection, sid)])
            if at_most is not None and facts.session.live_messages + sum(row.messages for row in pending) > at_most:
                raise NotAtHand
            live = _states(_LIVE.rows(connection, sid))
            evicted = _states(_EVICTED.rows(connection, sid)) if pending else []
            found = self._messages(connection, key, sid, live, evicted)
            chosen, positions = choose(WindowFacts(facts.ingested_to, facts.session, facts.summary, pending, tuple(found)))
            return chosen, dict(_bodies(connection, sid, positions))

        try:
            return self._database.at_hand(lambda connection: read(connection, AT_HAND))
        except NotAtHand:
            return await self._database.snapshot(read)

    def _messages(self, connection: Readable, key: SessionKey, sid: int, live: Sequence[State], evicted: Sequence[State]) -> list[Message]:
        """The messages of these states in order; only what is not known in just this state is read."""
        states = sorted([*live, *evicted], key=_position) if evicted else live
        known = self._known.take(key) or {}
        try:
            found = [known[state] for state in states]
        except KeyError:
            known = {state: known[state] for state in states if state in known}
            for some, statement in ((live, _LIVE_FACTS), (evicted, _EVICTED_FACTS)):
                since = min((state[0] for state in some if state not in known), default=None)
                if since is not None:
                    known.update((_state(row), message_of(row)) for row in statement.rows(connection, sid, since))
            found = [known[state] for state in states]
        self._known.keep(key, known, len(known))
        return found


def _head(connection: Readable, key: SessionKey) -> WindowFacts:
    (row,) = _HEAD.rows(connection, key.agent_id, key.session_id)
    if row[1] is None:
        return WindowFacts(row[0], None)
    wishes, agent_wishes = Wishes(*row[2:5]), Wishes(*row[5:8])
    end = 8 + len(_SESSION_COLUMNS)
    session = SessionFacts(row[1], wishes, agent_wishes, *row[8:end])
    return WindowFacts(row[0], session, None if row[end] is None else summary_of(row[end:]))


def summary_of(row: Sequence[Any]) -> StoredSummary:
    """A version from `SUMMARY_COLUMNS`, which are its fields in order."""
    return StoredSummary(*row)


def _states(rows: Sequence[Sequence[Any]]) -> list[State]:
    """Rows of `_CHANGING` as values that can be keys, whatever the driver makes of rows."""
    return [tuple(row) for row in rows]


def _bodies(connection: Readable, sid: int, positions: Sequence[int]) -> Iterator[tuple[int, str]]:
    """The texts of some messages, so many at a time; the last ones fill what places are left over."""
    for start in range(0, len(positions), len(_PLACES)):
        some = positions[start : start + len(_PLACES)]
        yield from ((position, body) for position, body in _BODIES.rows(connection, sid, *some, *[some[-1]] * (len(_PLACES) - len(some))))


_position = itemgetter(0)
_state = itemgetter(*(FACTS.index(column) for column in _CHANGING))
