"""Read a session as of a time: the version in force, pending evictions and live messages."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import bindparam, literal_column, select

from turnfold.core.history.as_of import (
    Activation,
    AsOf,
    AtMessage,
    AtTime,
    AtVersion,
    EvictionSpan,
    SessionTimeline,
    StateAsOf,
    VersionSpan,
    state_as_of,
)
from turnfold.errors import BadRequest
from turnfold.messages import (
    MESSAGES_PER_EVENT,
    CompactionId,
    Message,
    SessionKey,
    State,
    position_of,
)
from turnfold.ports.query import END_SEQ, PendingEviction, StatesThen
from turnfold.store.database.message_rows import EVICTED, FACTS, facts_of, message_of
from turnfold.store.database.predicates import in_range, is_live, of_compactions, of_messages
from turnfold.store.database.schema import (
    compactions,
    coverage,
    events,
    messages,
    restorations,
    retracted_messages,
    summaries,
    summary_activations,
)
from turnfold.store.database.statements import Prepared, SupportsStatements

PENDING_EVICTIONS = select(
    compactions.c.compaction_id,
    compactions.c.messages_evicted,
    compactions.c.tokens_evicted,
    compactions.c.digest,
    compactions.c.digest_tokens,
    compactions.c.requested_at_ms,
    compactions.c.first_position,
    compactions.c.last_position,
)
"""The columns of evictions; those of `PendingEviction` stand first."""

_VERSIONS = Prepared(
    select(
        summaries.c.version,
        summaries.c.base_version,
        summaries.c.created_at_ms,
        summaries.c.last_position,
    )
    .where(summaries.c.sid == bindparam("of_sid"))
    .order_by(summaries.c.version),
    ("of_sid",),
)
_COVERAGE = Prepared(
    select(coverage.c.version, coverage.c.compaction_id).where(
        coverage.c.sid == bindparam("of_sid")
    ),
    ("of_sid",),
)
_ACTIVATIONS = Prepared(
    select(summary_activations.c.at_ms, summary_activations.c.version)
    .where(summary_activations.c.sid == bindparam("of_sid"))
    .order_by(summary_activations.c.ordinal),
    ("of_sid",),
)
_EVICTIONS = Prepared(
    select(
        *(
            compactions.c[name]
            for name in (
                "compaction_id",
                "first_position",
                "last_position",
                "messages_evicted",
                "evicted_at_ms",
                "restored_at_ms",
                "tokens_evicted",
            )
        )
    )
    .where(
        of_compactions,
        compactions.c.evicted_at_ms.is_not(None),
    )
    .order_by(compactions.c.ordinal),
    ("of_sid",),
)
_RESTORED = Prepared(
    select(restorations.c.first_position, restorations.c.last_position)
    .where(
        restorations.c.sid == bindparam("of_sid"), restorations.c.compaction_id == bindparam("by")
    )
    .order_by(restorations.c.first_position),
    ("of_sid", "by"),
)
_AMONG = Prepared(
    select(*FACTS).where(in_range(messages)).order_by(messages.c.position),
    ("of_sid", "first", "last"),
)
# Events may share a millisecond. Then the sequence of the retraction decides.
_retracted_later = (retracted_messages.c.retracted_at_ms > bindparam("at_ms")) | (
    (retracted_messages.c.retracted_at_ms == bindparam("at_ms"))
    & (retracted_messages.c.retracted_seq > bindparam("seq"))
)
_RETRACTED_LATER = Prepared(
    select(*facts_of(retracted_messages))
    .where(
        retracted_messages.c.sid == bindparam("of_sid"),
        _retracted_later,
        retracted_messages.c.position <= bindparam("until"),
    )
    .order_by(retracted_messages.c.position),
    ("of_sid", "at_ms", "seq", "until"),
)
_PLACE = Prepared(
    select(events.c.stream_seq).where(
        events.c.agent_id == bindparam("agent_id"),
        events.c.event_id == bindparam("event_id"),
        events.c.sid == bindparam("of_sid"),
    ),
    ("agent_id", "event_id", "of_sid"),
)
_TIMES = [
    Prepared(
        select(table.c.created_at_ms).where(
            table.c.sid == bindparam("of_sid"), table.c.position == bindparam("at")
        ),
        ("of_sid", "at"),
    )
    for table in (messages, retracted_messages)
]
_NEWEST_BY = [
    Prepared(
        select(table.c.position)
        .where(table.c.sid == bindparam("of_sid"), table.c.created_at_ms <= bindparam("at_ms"))
        .order_by(table.c.position.desc())
        .limit(literal_column("1")),
        ("of_sid", "at_ms"),
    )
    for table in (messages, retracted_messages)
]
_LIVE = Prepared(
    select(*FACTS)
    .where(of_messages, is_live, messages.c.position <= bindparam("until"))
    .order_by(messages.c.position),
    ("of_sid", "until"),
)
_EVICTION = Prepared(
    PENDING_EVICTIONS.where(compactions.c.compaction_id == bindparam("by")), ("by",)
)
LATEST_MS = 2**62


def timeline_state(
    connection: SupportsStatements,
    key: SessionKey,
    sid: int,
    moment: AsOf,
    check: Callable[[Sequence[EvictionSpan]], object] = bool,
) -> StateAsOf:
    """Return the state of a session at a moment.

    `check` sees the evictions whose messages are looked through, and then those whose messages are
    read, before that is done.

    Raises:
        BadRequest: the session has no such version or message.
    """
    past = _past(connection, sid)
    match moment:
        case AtVersion(version=number):
            named = next((version for version in past.versions if version.version == number), None)
            if named is None:
                raise BadRequest(f"as_of: there is no version {number} in this session")
            # A version is newer than the messages it covers, even if the clocks disagree.
            at_ms = named.created_at_ms
            check(past.evicted_since(at_ms))
            until = max(_newest_by(connection, sid, at_ms), named.last_position)
            place = _Place(at_ms, until)
            return _state(connection, sid, past, place, check, in_force=number)
        case AtMessage(event_id=event_id, index=index):
            seqs = _PLACE.rows(connection, key.agent_id, event_id, sid)
            # A larger index would be the position of a message of a later event.
            for (seq,) in seqs if index < MESSAGES_PER_EVENT else ():
                until = position_of(seq, index)
                for found in _TIMES:
                    for (at_ms,) in found.rows(connection, sid, until):
                        place = _Place(at_ms, until, seq)
                        return _state(connection, sid, past, place, check)
            raise BadRequest("as_of: this session has no message with that id")
        case AtTime(at_ms=at_ms):
            # A number beyond 64 bits would fail in the driver.
            at_ms = max(-LATEST_MS, min(at_ms, LATEST_MS))
            check(past.evicted_since(at_ms))
            until = _newest_by(connection, sid, at_ms)
            return _state(connection, sid, past, _Place(at_ms, until), check)


class _Place(NamedTuple):
    """A moment, its last position, and which retractions of its millisecond it includes."""

    at_ms: int
    until: int
    seq: int = END_SEQ


def _state(
    connection: SupportsStatements,
    sid: int,
    past: SessionTimeline,
    place: _Place,
    check: Callable[[Sequence[EvictionSpan]], object],
    *,
    in_force: int | None = None,
) -> StateAsOf:
    """Return the state at a place, with the messages that were retracted since."""
    state = state_as_of(place.at_ms, place.until, past, in_force=in_force)
    check(state.shown)
    rows = _RETRACTED_LATER.rows(connection, sid, place.at_ms, place.seq, place.until)
    retracted = tuple([message_of(row) for row in rows])
    left_with = Counter([message.compaction_id for message in retracted])
    taken = _taken(connection, sid, state, retracted)
    # A restored eviction does not count retracted messages, whenever they were retracted.
    evictions = tuple(
        [
            replace(
                span,
                messages=len(taken[span.compaction_id])
                if span.compaction_id in taken
                else span.messages + left_with[CompactionId(str(span.compaction_id))],
            )
            for span in past.evictions
        ]
    )
    state = state_as_of(
        place.at_ms, place.until, replace(past, evictions=evictions), in_force=in_force
    )
    return replace(state, retracted=retracted, taken=taken)


def retracted_from(state: StateAsOf, compaction_id: int | None) -> list[Message]:
    """Return the messages of an eviction, or the live ones, that were retracted since."""
    mark = None if compaction_id is None else CompactionId(str(compaction_id))
    return [message for message in state.retracted if message.compaction_id == mark]


def _past(connection: SupportsStatements, sid: int) -> SessionTimeline:
    adds: defaultdict[int, set[int]] = defaultdict(set)
    for version, compaction_id in _COVERAGE.rows(connection, sid):
        adds[version].add(compaction_id)
    return SessionTimeline(
        tuple(
            [
                VersionSpan(version, base, at_ms, last, frozenset(adds[version]))
                for version, base, at_ms, last in _VERSIONS.rows(connection, sid)
            ]
        ),
        tuple([Activation(*row) for row in _ACTIVATIONS.rows(connection, sid)]),
        tuple([EvictionSpan(*row) for row in _EVICTIONS.rows(connection, sid)]),
    )


def messages_as_of(connection: SupportsStatements, sid: int, state: StateAsOf) -> list[Message]:
    """Return the messages that were live or pending at a moment, in order, as they were."""
    undone = {span.compaction_id: state.taken[span.compaction_id] for span in state.undone}
    # These were evicted then, by other evictions than today.
    away = {message.position for taken in undone.values() for message in taken}
    messages_then = [message_of(row) for row in _LIVE.rows(connection, sid, state.until)]
    messages_then += retracted_from(state, None)
    # These are evicted now and were live then.
    for span in state.later:
        messages_then += [
            replace(message, compaction_id=None)
            for message in _messages_of(connection, sid, span, state)
        ]
    messages_then = [message for message in messages_then if message.position not in away]
    for span in state.pending:
        messages_then += undone.get(span.compaction_id) or _messages_of(
            connection, sid, span, state
        )
    messages_then.sort(key=attrgetter("position"))
    # A result cannot have stood beside a call that had not come.
    return [
        replace(m, answers=None)
        if m.answers is not None and m.answers.position > state.until
        else m
        for m in messages_then
    ]


def states_as_of(connection: SupportsStatements, sid: int, state: StateAsOf) -> StatesThen:
    """Return the states of the messages at a moment."""
    return StatesThen(
        state.until,
        {
            message.position: State.LIVE if message.compaction_id is None else State.PENDING
            for message in messages_as_of(connection, sid, state)
        },
        frozenset([message.position for message in state.retracted]),
    )


def pending_as_of(connection: SupportsStatements, state: StateAsOf) -> tuple[PendingEviction, ...]:
    """Return the evictions that were pending, with the counts that they had then."""
    pending = []
    # Those that lost all their messages to earlier retractions are left out, as they were then.
    for span in filter(attrgetter("messages"), state.pending):
        taken = state.taken.get(span.compaction_id)
        more = retracted_from(state, span.compaction_id) if taken is None else taken
        tokens = sum([message.tokens for message in more])
        for row in _EVICTION.rows(connection, span.compaction_id):
            eviction = pending_of(row)
            if taken is None:
                tokens += eviction.tokens
            pending.append(eviction._replace(messages=span.messages, tokens=tokens))
    return tuple(pending)


def _taken(
    connection: SupportsStatements, sid: int, state: StateAsOf, retracted: Sequence[Message]
) -> dict[int, Sequence[Message]]:
    """Return the messages of the evictions that were undone later, each of the last that had it.

    The clocks of workers and of the stream differ, so another eviction of restored messages may be
    dated before their restoration.
    """
    live_then = {None, *(CompactionId(str(span.compaction_id)) for span in state.later)}
    held: set[int] = set()
    taken: dict[int, Sequence[Message]] = {}
    for span in reversed(state.undone):
        mark = CompactionId(str(span.compaction_id))
        taken[span.compaction_id] = [
            replace(message, compaction_id=mark)
            for message in _taken_by(connection, sid, span, retracted)
            if message.compaction_id in live_then and message.position not in held
        ]
        held.update([message.position for message in taken[span.compaction_id]])
    return taken


def _taken_by(
    connection: SupportsStatements, sid: int, eviction: EvictionSpan, retracted: Sequence[Message]
) -> Sequence[Message]:
    """Return the messages that an eviction had until it was undone, as they are marked today."""
    taken: list[Message] = []
    for first, last in _RESTORED.rows(connection, sid, eviction.compaction_id):
        taken += [message_of(row) for row in _AMONG.rows(connection, sid, first, last)]
        taken += [message for message in retracted if first <= message.position <= last]
    return taken


def _messages_of(
    connection: SupportsStatements, sid: int, eviction: EvictionSpan, state: StateAsOf
) -> list[Message]:
    """Return the messages of an eviction, up to the moment's last position."""
    by, last = eviction.compaction_id, min(eviction.last_position, state.until)
    rows = EVICTED.rows(connection, sid, eviction.first_position, last, by)
    return [*(message_of(row) for row in rows), *retracted_from(state, by)]


def _newest_by(connection: SupportsStatements, sid: int, at_ms: int) -> int:
    """Return the position of the newest message at or before a time; 0 if there is none.

    All newer messages are looked through.
    """
    return max(
        [
            int(position)
            for found in _NEWEST_BY
            for (position,) in found.rows(connection, sid, at_ms)
        ],
        default=0,
    )


def pending_of(row: Sequence[Any]) -> PendingEviction:
    """Build an eviction from a row of `PENDING_EVICTIONS`."""
    return PendingEviction(CompactionId(str(row[0])), *row[1:6])
