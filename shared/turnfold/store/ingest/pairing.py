"""Pair tool results with calls again, for the call ids that an event touched."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
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
    literal_column,
    select,
)

from turnfold.core.history.pairing import (
    CallPosition,
    MatchedResult,
    ResultPosition,
    has_later_answer,
    match_after_calls,
    match_results,
    match_since,
)
from turnfold.messages import MESSAGES_PER_EVENT, CallRef, position_of
from turnfold.store.database.schema import messages, retracted_messages, retractions, tool_calls
from turnfold.store.database.statements import PAIRS, Prepared, PreparedPairs, bulk_update
from turnfold.store.ingest.tombstones import in_portions

Touched = tuple[int, str]
"""The number of a session and one of its call ids."""

RECENT = 32
"""If an id has more calls or results, these are read first: some hosts use a tool's name as id."""

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


_KINDS = (tool_calls.c.sid.type, tool_calls.c.call_id.type)
_IS_TOUCHED = (tool_calls.c.sid == PAIRS.c.a, tool_calls.c.call_id == PAIRS.c.b)
_CALLS = PreparedPairs(select(tool_calls).where(*_IS_TOUCHED), _KINDS)


def _is_recent(table: Table, call_id: str) -> ColumnElement[bool]:
    """Select the newest rows of each pair, one more than `RECENT`."""
    newer = table.alias("newer")
    first = (
        select(newer.c.position)
        .where(newer.c.sid == PAIRS.c.a, newer.c[call_id] == PAIRS.c.b)
        .order_by(newer.c.position.desc())
        .limit(literal_column("1"))
        .offset(literal_column(str(RECENT)))
        .correlate(PAIRS)
        .scalar_subquery()
    )
    return table.c.position >= func.coalesce(first, literal_column("0"))


_RECENT_CALLS = PreparedPairs(
    select(tool_calls).where(*_IS_TOUCHED, _is_recent(tool_calls, "call_id")), _KINDS
)
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


def _result_columns(table: Table) -> Select[*tuple[Any, ...]]:
    names = (
        "sid", "tool_call_id", "position", "content_digest", "answers_position", "answers_slot",
        "is_copy", "compaction_id",
    )  # fmt: skip
    return select(*(table.c[name] for name in names))


def _results(table: Table) -> Select[*tuple[Any, ...]]:
    return _result_columns(table).where(table.c.sid == PAIRS.c.a, table.c.tool_call_id == PAIRS.c.b)


_RESULTS = PreparedPairs(_results(messages), _KINDS)
_RECENT_RESULTS = PreparedPairs(
    _results(messages).where(_is_recent(messages, "tool_call_id")), _KINDS
)
_RETRACTED = PreparedPairs(
    _results(retracted_messages).add_columns(first_named_seq, retracted_messages.c.retracted_seq),
    _KINDS,
)
_of_calls = (
    tool_calls.c.sid == bindparam("of_sid"),
    tool_calls.c.call_id == bindparam("of_call"),
)
_START = Prepared(
    select(tool_calls.c.position)
    .where(*_of_calls, tool_calls.c.position < bindparam("first"))
    .order_by(tool_calls.c.position.desc())
    .limit(literal_column("1"))
    .offset(literal_column(str(RECENT - 1))),
    ("of_sid", "of_call", "first"),
)
_CALLS_SINCE = Prepared(
    select(tool_calls)
    .where(*_of_calls, tool_calls.c.position >= bindparam("start"))
    .order_by(tool_calls.c.position, tool_calls.c.slot),
    ("of_sid", "of_call", "start"),
)
_of_results = (
    messages.c.sid == bindparam("of_sid"),
    messages.c.tool_call_id == bindparam("of_call"),
)
_RESULT_START = Prepared(
    select(messages.c.position)
    .where(*_of_results, messages.c.position < bindparam("first"))
    .order_by(messages.c.position.desc())
    .limit(literal_column("1"))
    .offset(literal_column(str(RECENT - 1))),
    ("of_sid", "of_call", "first"),
)
_RESULTS_SINCE = Prepared(
    _result_columns(messages).where(*_of_results, messages.c.position >= bindparam("start")),
    ("of_sid", "of_call", "start"),
)
_WAITING = Prepared(
    _result_columns(messages).where(
        *_of_results,
        messages.c.position < bindparam("start"),
        messages.c.is_copy.is_(False),
        func.coalesce(messages.c.answers_position, bindparam("start")) >= bindparam("start"),
    ),
    ("of_sid", "of_call", "start"),
)
_RETRACTED_OF_LATER = Prepared(
    select(retracted_messages.c.position).where(
        retracted_messages.c.sid == bindparam("of_sid"),
        retracted_messages.c.tool_call_id == bindparam("of_call"),
        (retracted_messages.c.position >= bindparam("start"))
        | (
            retracted_messages.c.answers_position.is_(None)
            & retracted_messages.c.is_copy.is_(False)
        ),
    ),
    ("of_sid", "of_call", "start"),
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


def repair_pairs(
    connection: Connection, touched: Iterable[Touched], first: int
) -> list[PairChange]:
    """Recompute the pairs of these call ids in stream order; store and return changes.

    Evicted messages are included. The sessions have no retractions. Only messages stored from the
    position `first` on may lack their right pairs.
    """
    changes: list[PairChange] = []
    for portion in in_portions(sorted(set(touched))):
        calls = _by_id(_RECENT_CALLS.rows(connection, portion))
        found = _RECENT_RESULTS.rows(connection, portion)
        many = _many(found)
        recent, unread = _from_recent(connection, portion, calls, many, first)
        changes += recent
        more = [pair for pair in unread if len(calls[pair]) > RECENT]
        calls |= _by_id(_CALLS.rows(connection, more))
        few = {*unread} - many
        rows = [row for row in found if (row[0], row[1]) in few]
        rows += _RESULTS.rows(connection, [pair for pair in unread if pair in many])
        changes += _changed(calls, rows)
    store_pairs(connection, changes)
    return changes


def pairs_with_retracted(
    connection: Connection, touched: Iterable[Touched], *, first: int = 0, retracted_seq: int = 0
) -> list[PairChange]:
    """Recompute the pairs of these call ids in stream order, and return the changes.

    Pairs are right but for what was stored from the position `first` on, and `retracted_seq` is the
    newest retraction of their session.
    """
    changes: list[PairChange] = []
    # What was stored before the newest retraction may change what it retracts.
    after = position_of(retracted_seq + 1, 0)
    for portion in in_portions(sorted(set(touched))):
        unread = portion
        if after <= first:
            calls = _by_id(_RECENT_CALLS.rows(connection, portion))
            found = _RECENT_RESULTS.rows(connection, portion)
            recent, unread = _from_recent(connection, portion, calls, _many(found), first, after)
            changes += recent
        calls = _by_id(_CALLS_AND_RETRACTIONS.rows(connection, unread))
        rows = [read.rows(connection, unread) for read in (_RESULTS, _RETRACTED)]
        changes += _changed(calls, chain(*rows))
    return changes


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


def _many(results: Sequence[Sequence[Any]]) -> set[Touched]:
    """Return the call ids that have more results than these recent ones."""
    number = Counter((sid, call_id) for sid, call_id, *_ in results)
    return {pair for pair, results in number.items() if results > RECENT}


def _from_recent(
    connection: Connection,
    touched: Sequence[Touched],
    calls: Mapping[Touched, Sequence[CallPosition]],
    many: Collection[Touched],
    first: int,
    after: int = 0,
) -> tuple[list[PairChange], Sequence[Touched]]:
    """Recompute the pairs of ids with many calls, or `many` results.

    Return the changes and the ids left to read.
    """
    changes: list[PairChange] = []
    unread: list[Touched] = []
    for pair in touched:
        of_pair, recent = calls.get(pair, ()), None
        if pair in many:
            newest = max([call.position for call in of_pair], default=0)
            recent = _after_calls(connection, pair, first, max(newest, after))
        if recent is None and len(of_pair) > RECENT:
            recent = _recent(connection, pair, first, after)
        if recent is None:
            unread.append(pair)
        else:
            changes += recent
    return changes, unread


def _after_calls(
    connection: Connection, pair: Touched, first: int, since: int
) -> list[PairChange] | None:
    """Recompute the pairs of one call id from its recent results; None if these do not tell them.

    All calls and retractions of the id come before the position `since`.
    """
    begins = _RESULT_START.rows(connection, *pair, first)
    if not begins or begins[0][0] < since:
        return None
    results, stored = _stored(_RESULTS_SINCE.rows(connection, *pair, begins[0][0]))
    matches = match_after_calls(results[pair], _known(stored), first=first)
    return None if matches is None else list(_changes(pair[0], matches, stored))


def _recent(
    connection: Connection, pair: Touched, first: int, after: int
) -> list[PairChange] | None:
    """Recompute the pairs of one call id from its recent calls; None if these do not tell them.

    Retractions concern only messages before the position `after`.
    """
    begins = _START.rows(connection, *pair, first)
    if not begins:
        return None
    ((position,),) = begins
    start = max(position // MESSAGES_PER_EVENT * MESSAGES_PER_EVENT, after)
    # A later result may follow a retracted call. If results waited, a copy may wait instead.
    if after and _RETRACTED_OF_LATER.rows(connection, *pair, start):
        return None
    calls = _by_id(_CALLS_SINCE.rows(connection, *pair, start))[pair]
    found = _RESULTS_SINCE.rows(connection, *pair, start)
    results, stored = _stored(found)
    if not calls or not has_later_answer(calls[0], _known(stored)):
        results, stored = _stored([*found, *_WAITING.rows(connection, *pair, start)])
    matches = match_since(calls, results[pair], _known(stored), start=start, first=first)
    return None if matches is None else list(_changes(pair[0], matches, stored))


def _by_id(rows: Iterable[Sequence[Any]]) -> defaultdict[Touched, list[CallPosition]]:
    calls: defaultdict[Touched, list[CallPosition]] = defaultdict(list)
    for sid, call_id, *call in rows:
        calls[sid, call_id].append(CallPosition(*call))
    return calls


_Stored = dict[tuple[int, int], tuple[MatchedResult, bool]]


def _stored(
    rows: Iterable[Sequence[Any]],
) -> tuple[defaultdict[Touched, list[ResultPosition]], _Stored]:
    """Return the results by call id; their stored matches, and whether they are evicted."""
    results: defaultdict[Touched, list[ResultPosition]] = defaultdict(list)
    stored: _Stored = {}
    for sid, call_id, position, digest, answers, slot, is_copy, by, *retraction in rows:
        named_seq, retracted = retraction or (None, None)
        results[sid, call_id].append(ResultPosition(position, digest, named_seq))
        answered = None if answers is None else CallRef(answers, slot)
        # A retracted row keeps the id of its eviction, but counts as evicted no more.
        is_evicted = by is not None and retracted is None
        stored[sid, position] = MatchedResult(answered, bool(is_copy), retracted), is_evicted
    return results, stored


def _known(stored: _Stored) -> dict[int, MatchedResult]:
    return {position: match for (_, position), (match, _) in stored.items()}


def _changed(
    calls: Mapping[Touched, Sequence[CallPosition]], rows: Iterable[Sequence[Any]]
) -> Iterator[PairChange]:
    results, stored = _stored(rows)
    for (sid, call_id), of_call in results.items():
        matches = match_results(calls.get((sid, call_id), ()), of_call)
        yield from _changes(sid, matches, stored)


def _changes(
    sid: int, matches: Mapping[int, MatchedResult], stored: _Stored
) -> Iterator[PairChange]:
    for position, match in matches.items():
        was, is_evicted = stored[sid, position]
        if match != was:
            yield PairChange(sid, position, match, was, is_evicted)
