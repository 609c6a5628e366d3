"""Pair tool results with calls again, for the call ids that an event touched."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, Table, select

from turnfold.core.history.pairing import CallPosition, MatchedResult, ResultPosition, match_results
from turnfold.messages import CallRef
from turnfold.store.database.schema import messages, retracted_messages, tool_calls
from turnfold.store.database.statements import PreparedPairs, bulk_update

Touched = tuple[int, str]
"""The number of a session and one of its call ids."""

_pairs = PreparedPairs.pairs
_KINDS = (tool_calls.c.sid.type, tool_calls.c.call_id.type)
_CALLS = PreparedPairs(
    select(tool_calls).where(tool_calls.c.sid == _pairs.c.a, tool_calls.c.call_id == _pairs.c.b),
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
    _results(retracted_messages)
    .add_columns(retracted_messages.c.is_named)
    .where(retracted_messages.c.is_paired),
    _KINDS,
)
_DECIDED = bulk_update(
    messages, where=("sid", "position"), values=("answers_position", "answers_slot", "is_copy")
)
AT_ONCE = 400


class RepairedPairs(NamedTuple):
    """The sessions in which an evicted message changed, and results that lost a retracted call."""

    changed_sids: set[int]
    released: set[int]


def repair_pairs(
    connection: Connection, touched: Iterable[Touched], *, has_retracted: bool = False
) -> RepairedPairs:
    """Recompute the pairs of these call ids in stream order, and store changes.

    Evicted messages are included. So are retracted calls, and with `has_retracted` the retracted
    results that answer them; those that now answer another call are returned and not changed.
    """
    wanted = sorted(set(touched))
    pairs = RepairedPairs(set(), set())
    for start in range(0, len(wanted), AT_ONCE):
        _pair_some(connection, wanted[start : start + AT_ONCE], pairs, has_retracted=has_retracted)
    return pairs


_Place = tuple[int, int]


class _StoredPairs:
    """The calls and results of some call ids; `retracted` results are named by a retraction or not.

    `evicted` results are in caches of queries.
    """

    def __init__(
        self, connection: Connection, touched: list[Touched], *, has_retracted: bool
    ) -> None:
        self.calls: defaultdict[Touched, list[CallPosition]] = defaultdict(list)
        self.results: defaultdict[Touched, list[ResultPosition]] = defaultdict(list)
        self.stored: dict[_Place, MatchedResult] = {}
        self.evicted: set[_Place] = set()
        self.retracted: dict[_Place, bool] = {}
        for sid, call_id, position, slot in _CALLS.rows(connection, touched):
            self.calls[sid, call_id].append(CallPosition(position, slot))
        self._read_results(connection, touched, has_retracted=has_retracted)

    def _read_results(
        self, connection: Connection, touched: list[Touched], *, has_retracted: bool
    ) -> None:
        rows = [(*row, None) for row in _RESULTS.rows(connection, touched)]
        if has_retracted:
            rows += [tuple(row) for row in _RETRACTED.rows(connection, touched)]
        for sid, call_id, position, digest, answers, slot, is_copy, compaction_id, is_named in rows:
            self.results[sid, call_id].append(ResultPosition(position, digest))
            self.stored[sid, position] = MatchedResult(
                None if answers is None else CallRef(answers, slot), bool(is_copy)
            )
            if is_named is not None:
                self.retracted[sid, position] = bool(is_named)
            elif compaction_id is not None:
                self.evicted.add((sid, position))

    def changed(self) -> list[tuple[int | None, int | None, bool, int, int]]:
        """Return what is to be stored: the call that a result answers, whether it is a copy, it."""
        return [
            (answers.position, answers.slot, verdict.is_copy, sid, position)
            if (answers := verdict.answers) is not None
            else (None, None, verdict.is_copy, sid, position)
            for (sid, call_id), seen in self.results.items()
            for position, verdict in match_results(self.calls[sid, call_id], seen).items()
            if self.stored[sid, position] != verdict
        ]


def _pair_some(
    connection: Connection, touched: list[Touched], pairs: RepairedPairs, *, has_retracted: bool
) -> None:
    found = _StoredPairs(connection, touched, has_retracted=has_retracted)
    changed = found.changed()
    _DECIDED.run(connection, [row for row in changed if row[-2:] not in found.retracted])
    # Queries cache evicted messages. The caller counts the change, which invalidates the cache.
    pairs.changed_sids.update(row[-2] for row in changed if row[-2:] in found.evicted)
    # Those that a retraction names stay retracted, whatever they answer.
    pairs.released.update(row[-1] for row in changed if not found.retracted.get(row[-2:], True))
