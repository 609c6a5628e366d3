"""Which evictions each version covers, and which version is in force."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import (
    CTE,
    ColumnElement,
    Connection,
    Select,
    bindparam,
    func,
    literal_column,
    select,
    update,
)

from turnfold.ports.compact import JobStatus
from turnfold.store.database.predicates import (
    has_status,
    is_uncovered,
    is_version,
    of_compactions,
)
from turnfold.store.database.schema import (
    compactions,
    coverage,
    summaries,
    summary_activations,
)
from turnfold.store.database.session_rows import SessionChange
from turnfold.store.database.statements import BulkInsert, Prepared, PreparedIn
from turnfold.store.ingest.usage import Calibrator

ADD = BulkInsert(coverage, ("sid", "version", "compaction_id"))
"""Insert the evictions that a version covers in addition to those of its base."""

_ACTIVATION = BulkInsert(summary_activations, ("sid", "ordinal", "at_ms", "version"))
_of_sid: ColumnElement[int] = bindparam("of_sid")


def _chain(*, while_extractive: bool = False) -> CTE:
    """Select a version and its bases; optionally stop at the first that a model wrote."""
    columns = (
        summaries.c.version,
        summaries.c.base_version,
        summaries.c.kind,
        summaries.c.messages_covered,
    )
    start = select(*columns).where(is_version).cte("chain", recursive=True)
    below: list[ColumnElement[bool]] = [
        summaries.c.sid == _of_sid,
        summaries.c.version == start.c.base_version,
    ]
    if while_extractive:
        below.append(start.c.kind == literal_column("'extractive'"))
    # A version has one base, so no row repeats, and UNION would only sort.
    return start.union_all(select(*columns).where(*below))


_versions = _chain()
_covered = (
    select(coverage.c.compaction_id)
    .join(_versions, _versions.c.version == coverage.c.version)
    .where(coverage.c.sid == _of_sid)
)
_COVERED_BY = Prepared(_covered, ("of_sid", "number"))
_WRITTEN = Prepared(
    select(func.max(summaries.c.version)).where(
        summaries.c.sid == _of_sid, summaries.c.compaction_id == bindparam("by")
    ),
    ("of_sid", "by"),
)
_BASE = Prepared(select(summaries.c.base_version).where(is_version), ("of_sid", "number"))
_extractive = _chain(while_extractive=True)
_EXTRACTIVE = Prepared(
    select(
        _extractive.c.version,
        _extractive.c.kind,
        compactions.c.compaction_id,
        compactions.c.tokens_evicted,
    )
    .outerjoin(
        coverage, (coverage.c.sid == _of_sid) & (coverage.c.version == _extractive.c.version)
    )
    .outerjoin(compactions, compactions.c.compaction_id == coverage.c.compaction_id)
    .order_by(_extractive.c.version.desc()),
    ("of_sid", "number"),
)
_evicting = (of_compactions, compactions.c.messages_evicted > literal_column("0"))
_is_committed = has_status(JobStatus.COMMITTED)
_RESTORED = PreparedIn(
    select(compactions.c.compaction_id).where(has_status(JobStatus.RESTORED)),
    compactions.c.compaction_id,
)
# For each version: how many messages it covered when it was written, and how many of those that it
# added to its base are left.
_COVERED_COUNTS = Prepared(
    select(
        _versions.c.version,
        _versions.c.messages_covered,
        func.coalesce(func.sum(compactions.c.messages_evicted), literal_column("0")),
    )
    # A version that replaces a stand-in adds no eviction to its base, so it has no such row.
    .outerjoin(coverage, (coverage.c.sid == _of_sid) & (coverage.c.version == _versions.c.version))
    .outerjoin(compactions, compactions.c.compaction_id == coverage.c.compaction_id)
    .group_by(_versions.c.version, _versions.c.messages_covered)
    .order_by(_versions.c.version),
    ("of_sid", "number"),
)
_UNCOVERED = Prepared(
    select(
        *(compactions.c[name] for name in ("compaction_id", "messages_evicted", "tokens_evicted"))
    )
    .where(*_evicting, _is_committed, is_uncovered)
    .order_by(compactions.c.ordinal),
    ("of_sid",),
)
_SUMMARY_TOKENS = Prepared(
    select(summaries.c.tokens).where(is_version),
    ("of_sid", "number"),
)
_KIND = Prepared(select(summaries.c.kind).where(is_version), ("of_sid", "number"))


def covered_by(connection: Connection, sid: int, version: int | None) -> frozenset[int]:
    """Return the evictions that a version covers, including those that were restored since."""
    if version is None:
        return frozenset()
    return frozenset(
        compaction_id for (compaction_id,) in _COVERED_BY.rows(connection, sid, version)
    )


def covered_compactions(sid: int, version: int) -> Select[tuple[int]]:
    """Return `covered_by` as a subquery of another statement."""
    return _covered.params(of_sid=sid, number=version)


class UncoveredEviction(NamedTuple):
    """An eviction that was summarized, and that the version in force does not cover."""

    compaction_id: int
    messages: int
    tokens: int


def uncovered(connection: Connection, sid: int) -> list[UncoveredEviction]:
    """Return summarized evictions that the version in force does not cover, oldest first."""
    return [UncoveredEviction(*row) for row in _UNCOVERED.rows(connection, sid)]


def any_restored(connection: Connection, compaction_ids: Sequence[int]) -> bool:
    """Return whether the messages of one of these evictions are live again."""
    return bool(_RESTORED.rows(connection, compaction_ids))


def valid_version(connection: Connection, sid: int, version: int | None) -> int | None:
    """Return a version, or the newest below it that covers no message retracted since; or None.

    Retracting lowers the count of an eviction, and nothing raises it again.
    """
    if version is None:
        return None
    valid, left = None, 0
    # A base has a lower number than its version, so the counts add up from the oldest on.
    for number, covered, added in _COVERED_COUNTS.rows(connection, sid, version):
        left += int(added)
        if left >= covered:
            valid = int(number)
    return valid


def newest_part(connection: Connection, sid: int, compaction_id: int) -> int | None:
    """Return the newest version of a compaction, or the newest below that may be extended."""
    number: int | None
    ((number,),) = _WRITTEN.rows(connection, sid, compaction_id)
    while number is not None and not may_be_extended(connection, sid, number):
        ((number,),) = _BASE.rows(connection, sid, number)
    return number


def may_be_extended(connection: Connection, sid: int, version: int) -> bool:
    """Return whether a version covers no message that was retracted or restored since."""
    return valid_version(connection, sid, version) == version and not any_restored(
        connection, sorted(covered_by(connection, sid, version))
    )


class RewriteScope(NamedTuple):
    """Evictions that only extractive versions cover, and the version below those versions."""

    compaction_ids: tuple[int, ...]
    base_version: int | None


def rewrite_scope(
    connection: Connection, sid: int, version: int, *, max_tokens: int
) -> RewriteScope:
    """Choose the extractive versions to replace: the newest, and older ones up to `max_tokens`."""
    added: dict[int, list[int]] = {}
    tokens: dict[int, int] = {}
    kinds: dict[int, str] = {}
    for number, kind, compaction_id, evicted in _EXTRACTIVE.rows(connection, sid, version):
        kinds[number] = kind
        added.setdefault(number, [])
        if compaction_id is not None:
            added[number].append(compaction_id)
            tokens[number] = tokens.get(number, 0) + int(evicted)
    chosen: list[int] = []
    total = 0
    for number in sorted(kinds, reverse=True):
        total += tokens.get(number, 0)
        # The newest version always, however long: without it, nothing would be rewritten.
        if kinds[number] != "extractive" or (chosen and total > max_tokens):
            return RewriteScope(tuple(chosen), number)
        chosen += added[number]
    return RewriteScope(tuple(chosen), None)


def activate_version(change: SessionChange, version: int | None) -> None:
    """Put a version in force, or none; exactly the evictions that it covers are covered."""
    connection, sid = change.connection, change.session.sid
    # Set for all evictions anew: which ones a version covers cannot be told from its number.
    is_covered: ColumnElement[bool] = literal_column("false")
    tokens = 0
    if version is not None:
        is_covered = compactions.c.compaction_id.in_(_covered)
        ((tokens,),) = _SUMMARY_TOKENS.rows(connection, sid, version)
    changed = update(compactions).where(*_evicting, _is_committed).values(is_covered=is_covered)
    connection.execute(changed, {"of_sid": sid, "number": version or 0})
    record_activation(change, version, int(tokens))


def notify_activation(change: SessionChange, *, tokens_before: int) -> None:
    """Add the notice of the version that is in force now, or of none, after its audit row."""
    connection, session = change.connection, change.session
    kinds = () if session.version is None else _KIND.rows(connection, session.sid, session.version)
    change.journal.add_notice(
        session,
        "summary.updated",
        version=session.version,
        kind=next((kind for (kind,) in kinds), None),
        tokens_before=tokens_before,
        tokens_after=session.window_tokens,
    )


def record_activation(change: SessionChange, version: int | None, summary_tokens: int) -> None:
    """Record the version now in force. The caller appends the audit row afterwards."""
    connection, session = change.connection, change.session
    session.version, session.summary_tokens = version, summary_tokens
    # Factors change only here and with an eviction, so that windows keep their first bytes.
    session.factor = Calibrator(connection).factor(session.key.agent_id, session.model)
    session.revision += 1
    # The ordinal is that of the audit row which follows: the past is read in that order.
    _ACTIVATION.run(connection, [(session.sid, session.audit_rows + 1, change.now_ms, version)])
