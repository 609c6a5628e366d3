"""Read a session as it was: the version in force, pending evictions and live messages."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

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
from turnfold.messages import MESSAGES_PER_EVENT, CompactionId, Message, SessionKey, position_of
from turnfold.store.database.message_rows import FACTS, message_of
from turnfold.store.database.predicates import is_live
from turnfold.store.database.schema import (
    compactions,
    coverage,
    events,
    messages,
    restorations,
    summaries,
    summary_activations,
)
from turnfold.store.database.statements import Prepared, SupportsStatements

_of_messages = messages.c.sid == bindparam("of_sid")
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
            )
        )
    )
    .where(
        compactions.c.sid == bindparam("of_sid"),
        compactions.c.messages_evicted > literal_column("0"),
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
    select(*FACTS)
    .where(
        messages.c.sid == bindparam("of_sid"),
        messages.c.position.between(bindparam("first"), bindparam("last")),
    )
    .order_by(messages.c.position),
    ("of_sid", "first", "last"),
)
_PLACE = Prepared(
    select(events.c.stream_seq).where(
        events.c.agent_id == bindparam("agent_id"),
        events.c.event_id == bindparam("event_id"),
        events.c.sid == bindparam("of_sid"),
    ),
    ("agent_id", "event_id", "of_sid"),
)
_TIME = Prepared(
    select(messages.c.created_at_ms).where(_of_messages, messages.c.position == bindparam("at")),
    ("of_sid", "at"),
)
_NEWEST_BY = Prepared(
    select(messages.c.position)
    .where(_of_messages, messages.c.created_at_ms <= bindparam("at_ms"))
    .order_by(messages.c.position.desc())
    .limit(literal_column("1")),
    ("of_sid", "at_ms"),
)
_LIVE = Prepared(
    select(*FACTS)
    .where(_of_messages, is_live, messages.c.position <= bindparam("until"))
    .order_by(messages.c.position),
    ("of_sid", "until"),
)
_EVICTED = Prepared(
    select(*FACTS)
    .where(
        _of_messages,
        messages.c.position.between(bindparam("first"), bindparam("last")),
        messages.c.compaction_id == bindparam("by"),
    )
    .order_by(messages.c.position),
    ("of_sid", "first", "last", "by"),
)
LATEST_MS = 2**62


def timeline_state(
    connection: SupportsStatements, key: SessionKey, sid: int, moment: AsOf
) -> StateAsOf:
    """Return the state of a session at a moment.

    Raises:
        BadRequest: the session has no such version or message.
    """
    past = _past(connection, sid)
    match moment:
        case AtVersion(version=number):
            named = next((version for version in past.versions if version.version == number), None)
            if named is None:
                raise BadRequest(f"as_of: there is no version {number} in this session")
            # What a version speaks for had come before it, whatever the clocks say.
            until = max(_newest_by(connection, sid, named.created_at_ms), named.last_position)
            return state_as_of(named.created_at_ms, until, past, in_force=number)
        case AtMessage(event_id=event_id, index=index):
            spans = [
                position_of(seq, index)
                for (seq,) in _PLACE.rows(connection, key.agent_id, event_id, sid)
            ]
            for until in spans if index < MESSAGES_PER_EVENT else ():
                for (at_ms,) in _TIME.rows(connection, sid, until):
                    return state_as_of(at_ms, until, past)
            raise BadRequest("as_of: this session has no message of that id")
        case AtTime(at_ms=at_ms):
            return state_as_of(at_ms, _newest_by(connection, sid, at_ms), past)


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
    undone = {
        eviction.compaction_id: _taken_by(connection, sid, eviction) for eviction in state.undone
    }
    # These are live now and were evicted then.
    away = {message.position for taken in undone.values() for message in taken}
    messages_then = [message_of(row) for row in _LIVE.rows(connection, sid, state.until)]
    # These are evicted now and were live then.
    for span in state.later:
        messages_then += [
            replace(message_of(row), compaction_id=None)
            for row in _rows_of(connection, sid, span, state.until)
        ]
    messages_then = [message for message in messages_then if message.position not in away]
    for span in state.pending:
        messages_then += undone.get(span.compaction_id) or [
            message_of(row) for row in _rows_of(connection, sid, span, state.until)
        ]
    messages_then.sort(key=attrgetter("position"))
    # A result cannot have stood beside a call that had not come.
    return [
        replace(m, answers=None)
        if m.answers is not None and m.answers.position > state.until
        else m
        for m in messages_then
    ]


def _taken_by(connection: SupportsStatements, sid: int, eviction: EvictionSpan) -> list[Message]:
    """Return the messages of an eviction that was undone later."""
    mark = CompactionId(str(eviction.compaction_id))
    return [
        replace(message_of(row), compaction_id=mark)
        for first, last in _RESTORED.rows(connection, sid, eviction.compaction_id)
        for row in _AMONG.rows(connection, sid, first, last)
    ]


def _rows_of(
    connection: SupportsStatements, sid: int, eviction: EvictionSpan, until: int
) -> Sequence[Sequence[Any]]:
    last = min(eviction.last_position, until)
    return _EVICTED.rows(connection, sid, eviction.first_position, last, eviction.compaction_id)


def _newest_by(connection: SupportsStatements, sid: int, at_ms: int) -> int:
    """Return the position of the newest message at or before a time; 0 if there is none."""
    return next(
        (
            position
            for (position,) in _NEWEST_BY.rows(
                # A number beyond 64 bits would fail in the driver.
                connection,
                sid,
                max(-LATEST_MS, min(at_ms, LATEST_MS)),
            )
        ),
        0,
    )
