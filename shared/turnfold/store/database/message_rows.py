"""Convert message rows to values of the core, and back."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Table,
    bindparam,
    case,
    func,
    literal_column,
    select,
)

from turnfold.contracts.subjects import id_fault
from turnfold.core.history.gist import SHORT_CHARACTERS
from turnfold.core.history.pairing import (
    WAITS,
    CallPosition,
    MatchedResult,
    ResultPosition,
    match_results,
)
from turnfold.messages import (
    ELEMENTS,
    MESSAGES_PER_EVENT,
    ROLES,
    CallRef,
    CompactionId,
    EventId,
    Message,
    Priority,
    ToolCall,
    position_of,
    split_message_id,
)
from turnfold.ports.ingest import DecodedEvent
from turnfold.store.database.predicates import in_range
from turnfold.store.database.schema import messages
from turnfold.store.database.statements import Prepared

_FACT_NAMES = (
    "sid", "position", "event_id", "role", "tokens", "content_tokens", "reasoning_tokens",
    "characters", "lines", "priority", "is_meta", "is_irregular", "is_truncated", "calls",
    "answers_position", "answers_slot", "is_copy", "created_at_ms", "compaction_id", "cuts",
    "is_error", "gist", "element",
)  # fmt: skip


def facts_of(table: Table) -> list[ColumnElement[Any]]:
    """Return the columns of messages, or of retracted ones, that `message_of` reads."""
    # A gist that is not a list leaves the rest to the body; see `core.history.gist`.
    is_short = (
        (table.c.role == literal_column("'user'"))
        & (table.c.characters <= literal_column(str(SHORT_CHARACTERS)))
        & (
            func.coalesce(func.substr(table.c.gist, 1, 1), literal_column("''"))
            != literal_column("'['")
        )
    )
    short_body = case((is_short, table.c.body)).label("short_body")
    return [*(table.c[name] for name in _FACT_NAMES), short_body]


def estimated_length(table: FromClause) -> ColumnElement[int]:
    """Return about the length of a message, from columns that stand before its text.

    SQLite counts the characters of a text by reading all of it.
    """
    return table.c.characters + literal_column("4") * table.c.tokens


FACTS = facts_of(messages)
"""The columns of a message without its text, in the order that `message_of` reads."""


def _of_eviction(*more: ColumnElement[Any]) -> Prepared:
    # No index has the compaction of a message: the range of positions finds the rows.
    return Prepared(
        select(*FACTS, *more)
        .where(in_range(messages), messages.c.compaction_id == bindparam("by"))
        .order_by(messages.c.position),
        ("of_sid", "first", "last", "by"),
    )


EVICTED, EVICTED_TEXTS = _of_eviction(), _of_eviction(messages.c.body)
"""The messages of an eviction in order, without and with their texts in the last column."""

_PRIORITIES = tuple(Priority)
# Members of an enumeration are found slowly.
_NORMAL, _CHAT = Priority.NORMAL, ELEMENTS[0]


@lru_cache(maxsize=1_024)
def _named(compaction_id: int) -> CompactionId:
    """Return an eviction id as text. Cached, because thousands of messages share one."""
    return CompactionId(str(compaction_id))


def message_of(row: Sequence[Any]) -> Message:
    """Build a message from a row of `FACTS`."""
    (
        _, position, event_id, role, tokens, content_tokens, reasoning_tokens, characters, lines,
        priority, is_meta, is_irregular, is_truncated, calls, answers_position, answers_slot,
        is_copy, created_at_ms, compaction_id, cuts, is_error, gist, element, short_body,
    ) = row[: len(FACTS)]  # fmt: skip
    return Message(
        position,
        EventId(event_id),
        position % MESSAGES_PER_EVENT,
        ROLES[role],
        tokens,
        content_tokens,
        reasoning_tokens,
        characters,
        lines,
        _PRIORITIES[priority],
        tuple(ToolCall(*call) for call in json.loads(calls)) if calls else (),
        None if answers_position is None else CallRef(answers_position, answers_slot),
        bool(is_copy),
        bool(is_meta),
        bool(is_irregular),
        bool(is_truncated),
        cuts or "",
        created_at_ms,
        None if compaction_id is None else _named(compaction_id),
        bool(is_error),
        gist or "",
        short_body or "",
        ELEMENTS[element or 0],
    )


EVICTABLE = [
    messages.c[name]
    for name in (
        "sid", "position", "event_id", "role", "tokens", "is_meta", "created_at_ms", "calls",
        "answers_position", "answers_slot", "element",
    )
]  # fmt: skip
"""The columns that decide an eviction, in the order that `evictable_of` reads."""


def evictable_of(row: Sequence[Any]) -> Message:
    """Build a message from a row of `EVICTABLE`, with what evictions need."""
    (
        _,
        position,
        event_id,
        role,
        tokens,
        is_meta,
        created_at_ms,
        calls,
        answers_position,
        answers_slot,
        element,
    ) = row
    # By position: with names it takes half as long again.
    return Message(
        position,
        event_id,
        position % MESSAGES_PER_EVENT,
        ROLES[role],
        tokens,
        0, 0, 0, 0, _NORMAL,
        tuple([ToolCall(*call) for call in json.loads(calls)]) if calls else (),
        None if answers_position is None else CallRef(answers_position, answers_slot),
        False,
        bool(is_meta),
        False, False, "",
        created_at_ms,
        None, False, "", "",
        ELEMENTS[element] if element else _CHAT,
    )  # fmt: skip


RECALLED = [
    messages.c[name]
    for name in (
        "position", "event_id", "role", "tokens", "content_tokens", "reasoning_tokens",
        "characters", "calls", "answers_position", "answers_slot", "is_copy", "created_at_ms",
        "gist", "body",
    )
]  # fmt: skip
"""The columns that a recall block is written from, in the order that `recalled_of` reads."""


def recalled_of(row: Sequence[Any]) -> tuple[Message, str]:
    """Build a message from a row of `RECALLED`, with what recall needs, and return its body."""
    (
        position, event_id, role, tokens, content_tokens, reasoning_tokens, characters, calls,
        answers_position, answers_slot, is_copy, created_at_ms, gist, body,
    ) = row  # fmt: skip
    # By position: with names it takes half as long again.
    message = Message(
        position,
        event_id,
        position % MESSAGES_PER_EVENT,
        ROLES[role],
        tokens,
        content_tokens,
        reasoning_tokens,
        characters,
        0, _NORMAL,
        tuple([ToolCall(*call) for call in json.loads(calls)]) if calls else (),
        None if answers_position is None else CallRef(answers_position, answers_slot),
        bool(is_copy),
        False, False, False, "",
        created_at_ms,
        None, False,
        gist or "",
    )  # fmt: skip
    return message, body


STORED = (
    "sid", "position", "event_id", "role", "tokens", "content_tokens", "reasoning_tokens",
    "characters", "lines", "priority", "is_meta", "is_irregular", "is_truncated", "is_error",
    "calls", "tool_call_id", "content_digest", "answers_position", "answers_slot", "is_copy",
    "created_at_ms", "cuts", "original", "body", "gist", "element",
)  # fmt: skip
"""The columns that ingest fills."""
_Pair = tuple[int | None, int | None, bool]
"""The columns of a result: the position and slot of its call, and whether it is a copy."""


def add_message_rows(arrival: DecodedEvent, sid: int, rows: list[tuple[Any, ...]]) -> None:
    """Add the rows of an event's messages, of columns `STORED`.

    They have the pairs of the event alone. Most results come with their calls, and pairing then
    changes no row.
    """
    event_id, at_ms, is_truncated, has_failed = (
        arrival.event_id,
        arrival.at_ms,
        arrival.is_truncated,
        arrival.is_error,
    )
    pairs = _pairs_within(arrival)
    for position, (
        role, tokens, content_tokens, reasoning_tokens, characters, lines, priority, is_meta,
        is_irregular, calls, cuts, tool_call_id, digest, original, body, gist, element, is_error,
    ) in enumerate(arrival.messages, position_of(arrival.stream_seq, 0)):  # fmt: skip
        answers_position, answers_slot, is_copy = pairs.get(position, _WAITS)
        rows.append(
            (
                sid, position, event_id, role, tokens, content_tokens, reasoning_tokens,
                characters, lines, priority, is_meta, is_irregular, is_truncated,
                has_failed | is_error, json.dumps(calls) if calls else None,
                tool_call_id and storable_key(tool_call_id), digest,
                answers_position, answers_slot, is_copy, at_ms,
                cuts or None, original, body, gist or None, element or None,
            )
        )  # fmt: skip


def _pairs_within(arrival: DecodedEvent) -> Mapping[int, _Pair]:
    """Return the columns of pairs by position, of the results that answer calls of the event."""
    first = position_of(arrival.stream_seq, 0)
    calls: dict[str, list[CallPosition]] = {}
    for position, message in enumerate(arrival.messages, first):
        for call in message.calls:
            calls.setdefault(call.call_id, []).append(CallPosition(position, call.slot))
    results: dict[str, list[ResultPosition]] = {}
    for position, message in enumerate(arrival.messages, first) if calls else ():
        call_id, digest = message.tool_call_id, message.content_digest
        if call_id in calls and digest is not None:
            results.setdefault(call_id, []).append(ResultPosition(position, digest))
    pairs: dict[int, MatchedResult] = {}
    for call_id, of_call in results.items():
        pairs |= match_results(calls[call_id], of_call)
    return {position: _pair_columns(pair) for position, pair in pairs.items()}


def _pair_columns(pair: MatchedResult) -> _Pair:
    answers, is_copy, _ = pair
    return (None, None, is_copy) if answers is None else (answers.position, answers.slot, is_copy)


_WAITS = _pair_columns(WAITS)


def named_place(message_id: str) -> tuple[EventId, int] | None:
    """Return the event and the index that a message id names; None if no message can have it."""
    place = split_message_id(message_id)
    if place is None or place[1] >= MESSAGES_PER_EVENT or id_fault(place[0]):
        return None
    return place


_KEY_CHARACTERS: Final = 256
_KEY_PREFIX_CHARACTERS: Final = 192


def storable_key(text: str) -> str:
    """Return a text that both databases accept in an index; a long one as its beginning and hash.

    PostgreSQL refuses index rows of more than 2,704 bytes. Messages keep the whole text.
    """
    key = _storable(text)
    if len(key) <= _KEY_CHARACTERS:
        return key
    # One character longer than any key that was not shortened, so that it equals none of them.
    return f"{key[:_KEY_PREFIX_CHARACTERS]}#{sha256(key.encode()).hexdigest()}"


def _storable(text: str) -> str:
    """Return a text that both databases accept; NUL and lone surrogates are escaped as JSON."""
    # Nearly every text. Encoding it to find a surrogate costs more than both tests.
    if text.isascii() and "\0" not in text:
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(text)
    return json.dumps(text) if "\0" in text else text
