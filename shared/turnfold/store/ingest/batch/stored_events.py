"""Events of a batch that are stored already: compare both, and move the event to a lower sequence.

The stream may deliver a duplicate of an event before the event itself. The lower sequence counts,
so that every order of arrival ends with the same rows.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    delete,
    func,
    select,
    union_all,
    update,
)

from turnfold.core.eviction.usage import UsageReading, read_report
from turnfold.core.policy.meta import without_mark
from turnfold.core.shapes.packing import unpack
from turnfold.messages import MESSAGES_PER_EVENT, ROLES, Role, position_of
from turnfold.ports.ingest import DeadLetter, DecodedEvent
from turnfold.ports.query import END_POSITION, END_SEQ
from turnfold.store.database.message_rows import storable_key
from turnfold.store.database.predicates import answer_place, in_range
from turnfold.store.database.schema import (
    compactions,
    events,
    messages,
    reported_limits,
    restorations,
    retracted_messages,
    retractions,
    summaries,
    tool_calls,
    usage_reports,
)
from turnfold.store.database.statements import PAIRS, BulkInsert, PreparedPairs, bulk_update
from turnfold.store.ingest.tombstones import in_portions
from turnfold.store.ingest.word_index.removal import delete_indexed

KNOWN_EVENTS = PreparedPairs(
    select(
        events.c.agent_id, events.c.event_id, events.c.sid, events.c.stream_seq, events.c.digest
    ).where(events.c.agent_id == PAIRS.c.a, events.c.event_id == PAIRS.c.b),
    (events.c.agent_id.type, events.c.event_id.type),
)


_EVENTS_AT_ONCE: Final = 100
MOST_TIMES: Final = 12
"""How much longer a text of the same JSON may be, without blanks: if all characters are escaped."""


class StoredEventKey(NamedTuple):
    """The columns of a stored event that a duplicate is compared with."""

    sid: int
    stream_seq: int
    digest: bytes


first_two = itemgetter(0, 1)


def dead_letter_row(letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter as a row of its table."""
    row = letter._asdict()
    agent_id, session_id = row.pop("key") or (None, None)
    return {**row, "agent_id": agent_id, "session_id": session_id}


def first_of_each(
    arrivals: Sequence[DecodedEvent],
) -> tuple[list[DecodedEvent], list[DecodedEvent]]:
    """Split a batch into the first occurrence of each event and the repeated ones."""
    first: dict[tuple[str, str], DecodedEvent] = {}
    repeated = [
        arrival
        for arrival in arrivals
        if first.setdefault((arrival.key.agent_id, arrival.event_id), arrival) is not arrival
    ]
    return list(first.values()), repeated


def _bodies(table: Table) -> Select[*tuple[Any, ...]]:
    names = ("position", "body", "is_error", "original", "element")
    return select(*(table.c[name] for name in names)).where(in_range(table))


# Retracted messages, too: a copy of an event that was retracted is still a copy.
_BODIES = union_all(_bodies(messages), _bodies(retracted_messages)).order_by("position")
_MARK_EVICTED = bulk_update(messages, where=("sid", "position"), values=("compaction_id",))
_RESTORED = BulkInsert(restorations, ("sid", "compaction_id", "first_position", "last_position"))


class EventSpan(NamedTuple):
    """The range of positions that belongs to one stored event."""

    sid: int
    stream_seq: int

    @property
    def first(self) -> int:
        """The lowest position that a message of the event may have."""
        return position_of(self.stream_seq, 0)

    @property
    def last(self) -> int:
        """The highest position that a message of the event may have."""
        return position_of(self.stream_seq, MESSAGES_PER_EVENT - 1)

    def rows_of(self, table: Table) -> ColumnElement[bool]:
        """Select the rows of the event in a table that has positions."""
        return (table.c.sid == self.sid) & table.c.position.between(self.first, self.last)


class EventCounts(NamedTuple):
    """The shares that the messages of an event have in the counters of their session."""

    tokens: int
    live_tokens: int
    rounds: int


def is_equal_content(connection: Connection, span: EventSpan, arrival: DecodedEvent) -> bool:
    """Return whether an event says the same as the stored one, in other JSON."""
    # An event without messages stores no content that could be compared.
    if not arrival.messages:
        return False
    parameters = {"of_sid": span.sid, "first": span.first, "last": span.last}
    stored: Sequence[Any] = connection.execute(_BODIES, parameters).all()
    return len(stored) == len(arrival.messages) and all(
        bool(is_error) == (arrival.is_error or message.is_error)
        and (element or 0) == (message.element or 0)
        and _is_same_json(
            (body, original, element), (message.body, message.original, message.element)
        )
        for (_, body, is_error, original, element), message in zip(
            stored, arrival.messages, strict=True
        )
    )


_Texts = tuple[str, str | None, int | None]
"""The body of a message, its original text, and the index of its element."""


def _is_same_json(one: _Texts, other: _Texts) -> bool:
    short, long = sorted((_published(*one), _published(*other)), key=len)
    # First, because it takes a second to parse the largest text, and each of thousands of small
    # events may have its id.
    if len(long) - sum(map(long.count, " \n\r\t")) > MOST_TIMES * len(short):
        return False
    return _value(*one) == _value(*other)


def _published(body: str, original: str | None, element: int | None) -> str:
    """Return the text that was published of a message."""
    return unpack(original, body) if element else body


def _value(body: str, original: str | None, element: int | None) -> dict[str, Any]:
    # Older releases kept the mark of a program's message in its body.
    value = without_mark(_decode(_published(body, original, element)))
    # A result of JSON is compared by its value, not by the text that windows show.
    return value if element or original is None else {**value, "content": _decode(original)}


def _decode(text: str) -> Any:
    # Numbers within tuples: for Python, 1 is equal to True.
    return json.loads(
        text, parse_int=lambda digits: (int(digits),), parse_float=lambda digits: (float(digits),)
    )


def newest_event_at_ms(
    connection: Connection, sid: int, *, first: int = 0, last: int = END_POSITION
) -> int:
    """Return when the newest event between two positions was published, or 0 if unknown.

    Unknown is the time of an overflow that was reported without a limit.
    """
    moments: list[tuple[Table, ColumnElement[int], Any]] = [
        (table, table.c.position, table.c.created_at_ms) for table in (messages, retracted_messages)
    ]
    moments.append((usage_reports, usage_reports.c.position, usage_reports.c.at_ms))
    moments += [
        (table, table.c.stream_seq * MESSAGES_PER_EVENT, table.c.at_ms)
        for table in (retractions, reported_limits)
    ]
    times = [
        select(func.max(at_ms)).where(table.c.sid == sid, place.between(first, last))
        for table, place, at_ms in moments
    ]
    found = connection.execute(union_all(*times)).scalars()
    return max([at_ms for at_ms in found if at_ms is not None], default=0)


def is_newest_event(connection: Connection, span: EventSpan, newest_at_ms: int | None) -> bool:
    """Return whether a stored event is the newest of its session, which was published then."""
    if at_ms := newest_event_at_ms(connection, span.sid, first=span.first, last=span.last):
        return at_ms == newest_at_ms
    newest = select(func.max(events.c.stream_seq)).where(events.c.sid == span.sid)
    return bool(connection.execute(newest).scalar() == span.stream_seq)


def newest_after_move(
    connection: Connection, sid: int, moved: DecodedEvent, at_ms: int | None
) -> int | None:
    """Return when the newest event of a session was published after one moved; `at_ms` if unknown.

    An earlier time than that of the newest event would let retention erase it too early.
    """
    newest = select(func.max(events.c.stream_seq)).where(events.c.sid == sid)
    span = EventSpan(sid, connection.execute(newest).scalar_one())
    is_known = span.stream_seq == moved.stream_seq or newest_event_at_ms(
        connection, sid, first=span.first, last=span.last
    )
    return max(moved.at_ms, newest_event_at_ms(connection, sid)) if is_known else at_ms


def newest_model(connection: Connection, sid: int) -> tuple[str | None, int]:
    """Return the model that the newest event naming one names, and its sequence; 0 without one."""
    for seq, envelope in _envelopes(connection, sid, "model"):
        if isinstance(model := envelope.get("model"), str) and model:
            return storable_key(model), seq
    return None, 0


def newest_reading(connection: Connection, sid: int) -> UsageReading:
    """Return the usage that the newest event with a report states; zeros without one."""
    for seq, envelope in _envelopes(connection, sid, "usage"):
        usage = envelope["usage"]
        report = read_report(usage) if isinstance(usage, dict) else None
        if report is not None and envelope.get("is_overflow") is not True:
            span = EventSpan(sid, seq)
            at_ms = newest_event_at_ms(connection, sid, first=span.first, last=span.last)
            return UsageReading(seq, at_ms, report.tokens)
    return UsageReading(0, 0, 0)


def _envelopes(
    connection: Connection, sid: int, name: str
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the envelopes of a session that have such a member, newest first."""
    rows = (
        select(events.c.stream_seq, events.c.envelope)
        .where(events.c.sid == sid, events.c.envelope.contains(f'"{name}"'))
        .order_by(events.c.stream_seq.desc())
        .limit(_EVENTS_AT_ONCE)
    )
    before = END_SEQ
    while found := connection.execute(rows.where(events.c.stream_seq < before)).all():
        for before, text in found:
            envelope = json.loads(text)
            if name in envelope:
                yield before, envelope


def counts_of_event(connection: Connection, span: EventSpan) -> EventCounts:
    """Return what the stored messages of an event count for, as the worker counts new ones."""
    columns = (
        messages.c.position, messages.c.role, messages.c.tokens, messages.c.compaction_id,
        messages.c.is_meta,
    )  # fmt: skip
    total = live = rounds = 0
    for position, role, tokens, evicted_by, is_meta in connection.execute(
        select(*columns).where(span.rows_of(messages))
    ):
        total += tokens
        if evicted_by is None and (position > span.first or not ROLES[role].is_system):
            live += tokens
            rounds += ROLES[role] is Role.USER and not is_meta
    return EventCounts(total, live, rounds)


def evicted_positions(connection: Connection, span: EventSpan) -> Sequence[Any]:
    """Return where the messages of an event that left the window stand, and by which eviction."""
    rows = select(messages.c.position, messages.c.compaction_id).where(
        span.rows_of(messages), messages.c.compaction_id.is_not(None)
    )
    return connection.execute(rows).all()


def delete_event(connection: Connection, span: EventSpan, arrival: DecodedEvent) -> None:
    """Delete all rows of a stored event, to store them again under another sequence."""
    # First, because the index is told what to remove by the texts of the messages.
    stored = select(messages.c.position).where(span.rows_of(messages))
    for portion in in_portions(connection.execute(stored).scalars().all()):
        delete_indexed(connection, span.sid, portion)
    for table in (messages, tool_calls, usage_reports):
        connection.execute(delete(table).where(span.rows_of(table)))
    # Reports of its answers wait for these again.
    of_answers = answer_place(usage_reports).between(span.first, span.last)
    named = update(usage_reports).where(usage_reports.c.sid == span.sid, of_answers)
    connection.execute(named.values(answer_position=usage_reports.c.position))
    is_limit = (reported_limits.c.sid == span.sid) & (
        reported_limits.c.stream_seq == span.stream_seq
    )
    connection.execute(delete(reported_limits).where(is_limit))
    is_event = (events.c.agent_id == arrival.key.agent_id) & (events.c.event_id == arrival.event_id)
    connection.execute(delete(events).where(is_event))


def evict_again(
    connection: Connection, span: EventSpan, evicted: Sequence[Any], first: int
) -> None:
    """Mark moved messages as evicted again; `first` is the new first position of their event."""
    # Positions of one event keep their distances, whatever its sequence is.
    moved = [(row.compaction_id, span.sid, first + row.position - span.first) for row in evicted]
    _MARK_EVICTED.run(connection, moved)
    holders = {row.compaction_id for row in evicted} | _move_restored(connection, span, first)
    # A compaction finds its messages between two positions, so its range must include the new ones.
    is_short = compactions.c.compaction_id.in_(holders) & (compactions.c.first_position > first)
    connection.execute(update(compactions).where(is_short).values(first_position=first))
    _end_at_a_message(connection, span)


def _move_restored(connection: Connection, span: EventSpan, first: int) -> set[int]:
    """Move an event within the ranges of restorations; return the compactions that had evicted it.

    A range that the event moves into without having been in it no longer includes its new place.
    """
    shift, holders = first - span.first, set()
    concerned = (
        (restorations.c.sid == span.sid)
        & (restorations.c.last_position >= first)
        & (restorations.c.first_position <= span.last)
    )
    ranges = connection.execute(select(restorations).where(concerned)).all()
    connection.execute(delete(restorations).where(concerned))
    for sid, by, low, high in ranges:
        parts = [(low, min(high, first - 1)), (max(low, span.last + shift + 1), high)]
        of_event = (max(low, span.first) + shift, min(high, span.last) + shift)
        if of_event[0] <= of_event[1]:
            holders.add(by)
            parts.append(of_event)
        _RESTORED.run(connection, [(sid, by, *part) for part in parts if part[0] <= part[1]])
    return holders


def _end_at_a_message(connection: Connection, span: EventSpan) -> None:
    """Have evictions and versions end at a message again if they ended within a moved event.

    Before the next event, they would seem to concern messages that have not come yet.
    """
    newest = [
        select(func.max(table.c.position)).where(
            table.c.sid == span.sid, table.c.position <= span.last
        )
        for table in (messages, retracted_messages)
    ]
    positions = connection.execute(union_all(*newest)).scalars()
    last = max([position for position in positions if position is not None], default=span.first)
    for table in (compactions, summaries):
        ends_there = table.c.last_position.between(span.first, span.last)
        moved = update(table).where(table.c.sid == span.sid, ends_there)
        connection.execute(moved.values(last_position=last))
