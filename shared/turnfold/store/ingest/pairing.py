"""Pair tool results with calls again, for the call ids that an event touched."""

from collections import defaultdict
from collections.abc import Iterable

from sqlalchemy import Connection, select

from turnfold.core.history.pairing import CallPosition, MatchedResult, ResultPosition, match_results
from turnfold.messages import CallRef
from turnfold.store.database.schema import messages, tool_calls
from turnfold.store.database.statements import PreparedPairs, bulk_update

Touched = tuple[int, str]
"""The number of a session and one of its call ids."""

_pairs = PreparedPairs.pairs
_KINDS = (tool_calls.c.sid.type, tool_calls.c.call_id.type)
_CALLS = PreparedPairs(
    select(tool_calls).where(tool_calls.c.sid == _pairs.c.a, tool_calls.c.call_id == _pairs.c.b),
    _KINDS,
)
_RESULTS = PreparedPairs(
    select(
        messages.c.sid,
        messages.c.tool_call_id,
        messages.c.position,
        messages.c.content_digest,
        messages.c.answers_position,
        messages.c.answers_slot,
        messages.c.is_copy,
        messages.c.compaction_id,
    ).where(messages.c.sid == _pairs.c.a, messages.c.tool_call_id == _pairs.c.b),
    _KINDS,
)
_DECIDED = bulk_update(
    messages, where=("sid", "position"), values=("answers_position", "answers_slot", "is_copy")
)
AT_ONCE = 400


def repair_pairs(connection: Connection, touched: Iterable[Touched]) -> set[int]:
    """Recompute the pairs of these call ids in stream order, and store changes.

    Evicted messages are included. Returns the sessions in which an evicted message changed.
    """
    wanted = sorted(set(touched))
    changed: set[int] = set()
    for start in range(0, len(wanted), AT_ONCE):
        changed |= _pair_some(connection, wanted[start : start + AT_ONCE])
    return changed


def _pair_some(connection: Connection, touched: list[Touched]) -> set[int]:
    calls: defaultdict[Touched, list[CallPosition]] = defaultdict(list)
    results: defaultdict[Touched, list[ResultPosition]] = defaultdict(list)
    stored: dict[tuple[int, int], MatchedResult] = {}
    evicted: set[tuple[int, int]] = set()
    for sid, call_id, position, slot in _CALLS.rows(connection, touched):
        calls[sid, call_id].append(CallPosition(position, slot))
    for sid, call_id, position, digest, answers, slot, is_copy, compaction_id in _RESULTS.rows(
        connection, touched
    ):
        results[sid, call_id].append(ResultPosition(position, digest))
        stored[sid, position] = MatchedResult(
            None if answers is None else CallRef(answers, slot), bool(is_copy)
        )
        # Queries cache evicted messages. The caller counts the change, which invalidates the cache.
        if compaction_id is not None:
            evicted.add((sid, position))
    changed = [
        (*(verdict.answers or (None, None)), verdict.is_copy, sid, position)
        for (sid, call_id), seen in results.items()
        for position, verdict in match_results(calls[sid, call_id], seen).items()
        if stored[sid, position] != verdict
    ]
    _DECIDED.run(connection, changed)
    return {sid for *_, sid, position in changed if (sid, position) in evicted}
