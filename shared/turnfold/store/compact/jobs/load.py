"""Read the input of a claimed job: evicted messages, and the version to build on."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, func, literal_column, select

from turnfold.core.eviction.batch import Eviction
from turnfold.core.summary.sources import PreviousSummary
from turnfold.errors import LostLease
from turnfold.ports.compact import EvictedMessage, Job, JobInput, JobKind
from turnfold.store.compact.coverage import RewriteScope, covered_by, rewrite_scope, uncovered
from turnfold.store.compact.jobs.rows import compaction_ids, within_limits
from turnfold.store.database.message_rows import EVICTED_TEXTS, FACTS, message_of
from turnfold.store.database.predicates import (
    in_range,
    is_covered,
    is_kept,
    is_live,
    is_version,
    of_compactions,
    of_messages,
)
from turnfold.store.database.schema import compactions, messages, sessions, summaries
from turnfold.store.database.statements import Prepared, PreparedIn
from turnfold.store.ingest.evict import planned

_RANGES = PreparedIn(
    select(*(compactions.c[name] for name in ("compaction_id", "first_position", "last_position"))),
    compactions.c.compaction_id,
)


_STILL_LIVE = Prepared(
    select(*FACTS, messages.c.body)
    .where(in_range(messages), is_live)
    .order_by(messages.c.position),
    ("of_sid", "first", "last"),
)

_FOLLOWING = Prepared(
    select(messages.c.position, messages.c.body)
    .where(of_messages, is_live)
    .order_by(messages.c.position.desc())
    .limit(bindparam("most")),
    ("of_sid", "most"),
)

# Beyond the newest messages as well: a long run of tools may have followed the answer.
_ANSWERS = Prepared(
    select(messages.c.position, messages.c.body)
    .where(
        of_messages,
        is_live,
        messages.c.position > bindparam("after"),
        messages.c.role == literal_column("'assistant'"),
        messages.c.calls.is_(None),
    )
    .order_by(messages.c.position.desc())
    .limit(bindparam("most")),
    ("of_sid", "after", "most"),
)

_BASE = Prepared(
    select(*(summaries.c[name] for name in ("text", "sections", "ledger", "depth", "kind"))).where(
        is_version
    ),
    ("of_sid", "number"),
)

_EXISTS = Prepared(
    select(sessions.c.sid).where(sessions.c.sid == bindparam("of_sid"), is_kept), ("of_sid",)
)

_COVERED_TOKENS = Prepared(
    select(func.sum(compactions.c.tokens_evicted)).where(of_compactions, is_covered), ("of_sid",)
)

_EVICTING = PreparedIn(
    select(
        *(compactions.c[name] for name in ("compaction_id", "messages_evicted", "tokens_evicted"))
    )
    .where(compactions.c.messages_evicted > literal_column("0"))
    .order_by(compactions.c.ordinal),
    compactions.c.compaction_id,
)


MOST_FOLLOWING = 64
"""How many live messages are read for the names that they use, and how many for answers."""


class _Base(NamedTuple):
    """The version that a new one builds on.

    `depth` is the number of versions between it and the original messages.
    """

    previous: PreviousSummary
    depth: int
    kind: str


def load_input(connection: Connection, job: Job, *, now_ms: int, by_model: bool) -> JobInput:
    """Read what a job summarizes.

    If `by_model`, extractive versions below are read as their original messages instead.

    Raises:
        LostLease: the session was erased.
    """
    if not _EXISTS.rows(connection, job.sid):
        raise LostLease(job.compaction_ids[-1])
    job_input = _input_of_kind(connection, job, now_ms=now_ms, by_model=by_model)
    leaving = job_input.leaving
    gone = {message.position for message in leaving.evicted} if leaving else set()
    rows = _FOLLOWING.rows(connection, job.sid, MOST_FOLLOWING)
    following = [body for position, body in reversed(rows) if position not in gone]
    requests = [message.position for message, _ in job_input.evicted if message.is_request]
    rows = _ANSWERS.rows(connection, job.sid, max(requests, default=0), MOST_FOLLOWING)
    answers = [body for position, body in rows if position not in gone]
    return replace(job_input, following=tuple(following), answers=tuple(answers))


def _input_of_kind(connection: Connection, job: Job, *, now_ms: int, by_model: bool) -> JobInput:
    match job.writes:
        case JobKind.REGENERATED:
            base = _base(connection, job.sid, job.extends)
            return _input(connection, job, added_evictions(connection, job), base)
        case JobKind.STAND_IN:
            scope = _rewrite_scope(connection, job)
            base = _base(connection, job.sid, scope.base_version)
            return _input(connection, job, scope.compaction_ids, base)
        case JobKind.NEXT:
            job_input = _next_input(connection, job, by_model=by_model)
            if not job.planned:
                return job_input
            leaving = planned(
                connection, job.sid, job.planned, job.policy, now_ms=now_ms, factor=job.factor
            )
            if leaving is None:
                return job_input
            evicted = [*job_input.evicted, *_leaving_messages(connection, job, leaving)]
            return replace(job_input, evicted=_in_order(evicted), leaving=leaving)


def added_evictions(connection: Connection, job: Job) -> list[int]:
    """Return the evictions that the version of a job covers in addition to those of its base."""
    match job.writes:
        case JobKind.STAND_IN:
            return []
        case JobKind.REGENERATED:
            whole = covered_by(connection, job.sid, job.base_version)
            added = whole - covered_by(connection, job.sid, job.extends)
            rows = _EVICTING.rows(connection, sorted(added))
            # The oldest of them. The commit leaves the others to another job of the same row.
            number = within_limits((evicted, tokens) for _, evicted, tokens in rows)
            return [row[0] for row in rows[:number]]
        case JobKind.NEXT:
            own = [row[0] for row in _EVICTING.rows(connection, compaction_ids(job))]
            lost = uncovered(connection, job.sid) if job.folds else []
            # The oldest of them. The commit opens a compaction for the others.
            first = lost[: within_limits((row.messages, row.tokens) for row in lost)]
            return [*(row.compaction_id for row in first), *own]


def _next_input(connection: Connection, job: Job, *, by_model: bool) -> JobInput:
    added, base = added_evictions(connection, job), _base(connection, job.sid, job.base_version)
    if base is not None and _must_rebuild(connection, job, base.depth):
        covered = covered_by(connection, job.sid, job.base_version)
        return _input(connection, job, [*covered, *added], None)
    # Extractive text is cut from messages. A model that summarizes it again loses what was cut.
    if base is not None and base.kind == "extractive" and by_model:
        scope = _rewrite_scope(connection, job)
        added = [*scope.compaction_ids, *added]
        base = _base(connection, job.sid, scope.base_version)
    return _input(connection, job, added, base)


def _base(connection: Connection, sid: int, version: int | None) -> _Base | None:
    if version is None:
        return None
    ((text, sections, ledger, *rest),) = _BASE.rows(connection, sid, version)
    return _Base(PreviousSummary(text, json.loads(sections), tuple(json.loads(ledger))), *rest)


def _input(
    connection: Connection,
    job: Job,
    evictions: Sequence[int],
    base: _Base | None,
) -> JobInput:
    """Combine the messages of these evictions with the version below."""
    evicted = _evicted_messages(connection, job.sid, evictions)
    if base is None:
        return JobInput(evicted, None, depth=1)
    return JobInput(evicted, base.previous, depth=base.depth + 1)


def _rewrite_scope(connection: Connection, job: Job) -> RewriteScope:
    """Return the evictions that only extractive versions cover.

    There are none if a model wrote the version in force.
    """
    assert job.base_version is not None
    return rewrite_scope(
        connection, job.sid, job.base_version, max_tokens=job.policy.rebuild_max_tokens
    )


def _evicted_messages(
    connection: Connection, sid: int, evictions: Sequence[int]
) -> tuple[EvictedMessage, ...]:
    rows: list[Sequence[Any]] = []
    for compaction_id, first, last in _RANGES.rows(connection, list(evictions)):
        if first is not None:
            rows += EVICTED_TEXTS.rows(connection, sid, first, last, compaction_id)
    return _in_order([_message(row) for row in rows])


def _leaving_messages(connection: Connection, job: Job, leaving: Eviction) -> list[EvictedMessage]:
    """Read the messages that leave when the summary is committed."""
    positions = {message.position for message in leaving.evicted}
    first, last = leaving.evicted[0].position, leaving.evicted[-1].position
    # A range may contain messages that stay, such as instructions.
    rows = _STILL_LIVE.rows(connection, job.sid, first, last)
    return [_message(row) for row in rows if row[1] in positions]


def _message(row: Sequence[Any]) -> EvictedMessage:
    return EvictedMessage(message_of(row), row[-1])


def _in_order(evicted: Sequence[EvictedMessage]) -> tuple[EvictedMessage, ...]:
    return tuple(sorted(evicted, key=lambda entry: entry.message.position))


def _must_rebuild(connection: Connection, job: Job, depth: int) -> bool:
    """Return whether to read the originals again, so that errors do not add up over versions."""
    every, max_tokens = job.policy.rebuild_every_versions, job.policy.rebuild_max_tokens
    if not every or depth < every:
        return False
    ((tokens,),) = _COVERED_TOKENS.rows(connection, job.sid)
    return int(tokens or 0) <= max_tokens
