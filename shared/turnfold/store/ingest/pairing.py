"""Pair tool results with calls again, for the call ids that an event touched."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    ScalarSelect,
    Select,
    Table,
    bindparam,
    case,
    func,
    select,
)

from turnfold.core.history.pairing import CallPosition, MatchedResult, ResultPosition, match_results
from turnfold.messages import CallRef
from turnfold.store.database.schema import messages, retracted_messages, retractions, tool_calls
from turnfold.store.database.statements import PreparedPairs, bulk_update
from turnfold.store.ingest.tombstones import in_portions

Touched = tuple[int, str]
"""The number of a session and one of its call ids."""

first_named_seq: ColumnElement[int | None] = func.coalesce(
    retracted_messages.c.named_seq,
    # Rows of workers before revision 1012.
    case((retracted_messages.c.is_named, retracted_messages.c.retracted_seq)),
).label("first_named_seq")
"""The first retraction that names a retracted message, or null: it only follows its call."""


def retracted_at_ms(sid: ColumnElement[int], seq: ColumnElement[int]) -> ScalarSelect[int]:
    """Select the time of a retraction."""
    of_retraction = (retractions.c.sid == sid) & (retractions.c.stream_seq == seq)
    return select(retractions.c.at_ms).where(of_retraction).scalar_subquery()


_pairs = PreparedPairs.pairs
_KINDS = (tool_calls.c.sid.type, tool_calls.c.call_id.type)
_IS_TOUCHED = (tool_calls.c.sid == _pairs.c.a, tool_calls.c.call_id == _pairs.c.b)
_CALLS = PreparedPairs(select(tool_calls).where(*_IS_TOUCHED), _KINDS)
_CALLS_AND_RETRACTIONS = PreparedPairs(
    select(tool_calls, first_named_seq)
    .outerjoin(
        retracted_messages,
        (retracted_messages.c.sid == tool_calls.c.sid)
        & (retracted_messages.c.position == tool_calls.c.position),
    )
    .where(*_IS_TOUCHED),
    _KINDS,
)


def _results(table: Table) -> Select[*tuple[Any, ...]]:
    names = (
        "sid", "tool_call_id", "position", "content_digest", "answers_position", "answers_slot",
        "is_copy", "compaction_id",
    )  # fmt: skip
    return select(*(table.c[name] for name in names)).where(
        table.c.sid == _pairs.c.a, table.c.tool_call_id == _pairs.c.b
    )


_RESULTS = PreparedPairs(_results(messages), _KINDS)
_RETRACTED = PreparedPairs(
    _results(retracted_messages).add_columns(first_named_seq, retracted_messages.c.retracted_seq),
    _KINDS,
)
_DECIDED = bulk_update(
    messages, where=("sid", "position"), values=("answers_position", "answers_slot", "is_copy")
)
_DECIDED_RETRACTED = bulk_update(
    retracted_messages,
    where=("sid", "position"),
    values=("answers_position", "answers_slot", "is_copy", "retracted_seq"),
    computed={
        "retracted_at_ms": retracted_at_ms(bindparam("old_sid"), bindparam("new_retracted_seq"))
    },
)


class PairChange(NamedTuple):
    """A result whose match is not the stored one; an evicted result is in caches of queries."""

    sid: int
    position: int
    match: MatchedResult
    stored: MatchedResult
    is_evicted: bool


def repair_pairs(connection: Connection, touched: Iterable[Touched]) -> list[PairChange]:
    """Recompute the pairs of these call ids in stream order; store and return changes.

    Evicted messages are included. The sessions have no retractions.
    """
    changes = changed_pairs(connection, touched)
    store_pairs(connection, changes)
    return changes


def changed_pairs(
    connection: Connection, touched: Iterable[Touched], *, has_retracted: bool = False
) -> list[PairChange]:
    """Recompute the pairs of these call ids in stream order, and return the changes."""
    return [
        change
        for portion in in_portions(sorted(set(touched)))
        for change in _changed(connection, portion, has_retracted=has_retracted)
    ]


def store_pairs(connection: Connection, changes: Sequence[PairChange]) -> None:
    """Store changed pairs. Messages that these retract or bring back were moved before."""
    live, retracted = [], []
    for sid, position, match, *_ in changes:
        answers = (None, None) if match.answers is None else match.answers
        row = (*answers, match.is_copy)
        if match.retracted_seq is None:
            live.append((*row, sid, position))
        else:
            retracted.append((*row, match.retracted_seq, sid, position))
    _DECIDED.run(connection, live)
    _DECIDED_RETRACTED.run(connection, retracted)


def _changed(
    connection: Connection, touched: Sequence[Touched], *, has_retracted: bool
) -> Iterator[PairChange]:
    calls: defaultdict[Touched, list[CallPosition]] = defaultdict(list)
    results: defaultdict[Touched, list[ResultPosition]] = defaultdict(list)
    stored: dict[tuple[int, int], tuple[MatchedResult, bool]] = {}
    read = _CALLS_AND_RETRACTIONS if has_retracted else _CALLS
    for sid, call_id, *call in read.rows(connection, touched):
        calls[sid, call_id].append(CallPosition(*call))
    rows = [(*row, None, None) for row in _RESULTS.rows(connection, touched)]
    if has_retracted:
        rows += [tuple(row) for row in _RETRACTED.rows(connection, touched)]
    for sid, call_id, position, digest, answers, slot, is_copy, by, named_seq, retracted in rows:
        results[sid, call_id].append(ResultPosition(position, digest, named_seq))
        answered = None if answers is None else CallRef(answers, slot)
        # A retracted row keeps the id of its eviction, but counts as evicted no more.
        is_evicted = by is not None and retracted is None
        stored[sid, position] = MatchedResult(answered, bool(is_copy), retracted), is_evicted
    for (sid, call_id), of_call in results.items():
        for position, match in match_results(calls[sid, call_id], of_call).items():
            was, is_evicted = stored[sid, position]
            if match != was:
                yield PairChange(sid, position, match, was, is_evicted)
