"""Claim the due compactions of a session as one job, under a lease with a rising fence."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    bindparam,
    func,
    literal_column,
    or_,
    select,
)

from turnfold.core.eviction.triggers import FiredTrigger, Trigger, is_allowed
from turnfold.core.policy.presets import Policy
from turnfold.core.policy.retention import DAY_MS
from turnfold.messages import CompactionId
from turnfold.ports.compact import Job, JobKind, JobStatus
from turnfold.ports.ingest import Installation
from turnfold.store.compact.chunks import delete_chunk_summaries
from turnfold.store.compact.coverage import newest_part, uncovered
from turnfold.store.compact.jobs.rows import exceeds_limits, within_limits
from turnfold.store.compact.rewriting import end_stale, wanted_of
from turnfold.store.database.predicates import (
    is_kept,
    is_of_kept,
    is_open,
    is_running,
    is_uncovered,
    of_compactions,
)
from turnfold.store.database.schema import compactions, sessions
from turnfold.store.database.session_rows import SessionChange, SessionRow
from turnfold.store.database.statements import Prepared, bulk_update
from turnfold.store.ingest.evict import fired_now
from turnfold.store.ingest.open_compactions import change_compactions, trigger_columns

LONGEST_WAIT_MS = DAY_MS
"""Nothing waits for longer: a later time was set while a clock was ahead, and counts as over."""

_longest_wait_ms: ColumnElement[int] = literal_column(str(LONGEST_WAIT_MS))
_busy = select(compactions.c.sid).where(
    is_running,
    compactions.c.lease_until_ms > bindparam("now_ms"),
    compactions.c.lease_until_ms - _longest_wait_ms <= bindparam("now_ms"),
)

_due = (
    select(compactions.c.sid, func.min(compactions.c.next_attempt_at_ms).label("due_ms"))
    .where(
        is_open,
        or_(
            compactions.c.next_attempt_at_ms <= bindparam("now_ms"),
            compactions.c.next_attempt_at_ms - _longest_wait_ms > bindparam("now_ms"),
            # A row whose lease is over is due, whatever time was set for its next attempt.
            is_running,
        ),
        # A session has one job at a time, because each version builds on the one before.
        compactions.c.sid.not_in(_busy),
    )
    .group_by(compactions.c.sid)
    .subquery("due")
)

_turns = (
    select(
        _due.c.sid,
        _due.c.due_ms,
        sessions.c.agent_id,
        func.row_number()
        .over(partition_by=sessions.c.agent_id, order_by=(_due.c.due_ms, _due.c.sid))
        .label("turn"),
    )
    .join(sessions, sessions.c.sid == _due.c.sid)
    .where(is_kept)
    .subquery("turns")
)
DUE = Prepared(
    select(_turns.c.sid, _turns.c.agent_id)
    .order_by(_turns.c.turn, _turns.c.due_ms, _turns.c.sid)
    .limit(bindparam("most", type_=Integer)),
    ("now_ms", "most"),
)
"""Sessions with a due compaction that no worker holds: the first of each agent, then the second."""

# A compaction that waits for another job of its session waits for the lease of that job.
NEXT_DUE = Prepared(
    select(
        func.min(func.coalesce(compactions.c.lease_until_ms, compactions.c.next_attempt_at_ms))
    ).where(
        is_open,
        is_of_kept(compactions.c.sid),
        is_running | compactions.c.sid.not_in(select(compactions.c.sid).where(is_running)),
    ),
    (),
)

_BEGIN = bulk_update(
    compactions, where=("compaction_id",), values=("status", "fence", "attempts", "lease_until_ms")
)


class _OpenRow(NamedTuple):
    """The columns of an open compaction that a claim needs."""

    compaction_id: int
    status: str
    fence: int
    attempts: int
    lease_until_ms: int | None
    next_attempt_at_ms: int
    first_position: int | None
    trigger: str
    is_by_budget: bool | None
    budget_tokens: int
    wanted: str | None
    messages_evicted: int
    tokens_evicted: int
    trace: str | None

    @property
    def kind(self) -> JobKind:
        return _KINDS.get(self.trigger, JobKind.NEXT)

    @property
    def is_plan(self) -> bool:
        return self.kind is JobKind.NEXT and self.first_position is None

    @property
    def is_evicted(self) -> bool:
        """Whether its messages have left the window."""
        return self.kind is JobKind.NEXT and not self.is_plan

    @property
    def is_fold(self) -> bool:
        """Whether it evicts nothing, and is for evictions that lost their version."""
        return self.is_evicted and not self.messages_evicted

    @property
    def fired(self) -> FiredTrigger:
        trigger = Trigger.BUDGET if self.is_by_budget else Trigger(self.trigger)
        return FiredTrigger(trigger, self.budget_tokens)

    def is_leased(self, now_ms: int) -> bool:
        return _is_ahead(self.lease_until_ms or 0, now_ms)

    def is_due(self, now_ms: int) -> bool:
        return self.status == JobStatus.RUNNING or not _is_ahead(self.next_attempt_at_ms, now_ms)


def _is_ahead(time_ms: int, now_ms: int) -> bool:
    return now_ms < time_ms <= now_ms + LONGEST_WAIT_MS


_OPEN_ROWS = Prepared(
    select(*(compactions.c[name] for name in _OpenRow._fields))
    .where(of_compactions, is_open, is_uncovered)
    # Oldest first: a job with a limit takes the first rows, and its version names the last one.
    .order_by(compactions.c.ordinal),
    ("of_sid",),
)
_KINDS = {str(Trigger.STAND_IN): JobKind.STAND_IN, str(Trigger.REGENERATE): JobKind.REGENERATED}


def claim_session(
    change: SessionChange, installation: Installation, *, lease_ms: int
) -> Job | None:
    """Claim the open compactions of a locked session, at most as many as one job may summarize.

    Return None if nothing is due, or if a worker holds the session.
    """
    connection, session, _, now_ms = change
    rows = [_OpenRow(*row) for row in _OPEN_ROWS.rows(connection, session.sid)]
    # The list of due sessions was read before the lock: another worker may have claimed this one.
    if any(row.is_leased(now_ms) for row in rows):
        return None
    policy = session.policy(installation)
    due = _due_now(change, rows, policy, installation)
    if not due:
        return None
    claimed = _of_one_job(connection, session.sid, due)
    job = _job_of(session, claimed, policy, now_ms, folds=any(row.is_fold for row in due))
    if job.writes is JobKind.REGENERATED:
        part = newest_part(connection, session.sid, claimed[-1].compaction_id)
        job = replace(job, extends=part or job.wanted.from_version)
    ids = [row.compaction_id for row in claimed]
    _release_others(connection, rows, ids)
    lease_until_ms = now_ms + lease_ms
    _BEGIN.run(
        connection,
        [(JobStatus.RUNNING, job.fence, job.attempt, lease_until_ms, row_id) for row_id in ids],
    )
    change.add_audit_row(
        "summary_start",
        compaction_id=claimed[-1].compaction_id,
        attempt=job.attempt,
        fence=job.fence,
        compactions=len(ids),
        session_model=session.model,
    )
    return job


def _due_now(
    change: SessionChange, rows: Sequence[_OpenRow], policy: Policy, installation: Installation
) -> Sequence[_OpenRow]:
    """Return the open compactions to claim; postpone or end those that have to wait or are void."""
    connection, session, _, now_ms = change
    due = _first_due(rows, now_ms, is_cooling=session.is_cooling(now_ms))
    if not due:
        return []
    folds = [row.next_attempt_at_ms for row in rows if row.is_fold]
    if due[0].kind is JobKind.REGENERATED and folds:
        # Without the fold, it would cover too little, or nothing. The fold ends even if the model
        # stays away: with a stand-in, after one cooldown.
        change_compactions(
            connection, [due[0].compaction_id], status=JobStatus.PENDING, lease_until_ms=None,
            next_attempt_at_ms=min(folds),
        )  # fmt: skip
        return []
    if not due[0].is_plan:
        return due
    plan = _plan_of_now(change, due[0], policy, installation)
    if plan is None:
        detail = f"no trigger fires any more, the mode is {policy.mode}"
        end_stale(change, due[0].compaction_id, detail)
        delete_chunk_summaries(connection, session.sid)
        return []
    return [plan]


def _plan_of_now(
    change: SessionChange, plan: _OpenRow, policy: Policy, installation: Installation
) -> _OpenRow | None:
    """Return a plan with the trigger that fires now; None if none fires, or the mode forbids it.

    Since it was planned, and all the more since it failed, policy, budgets and messages may differ.
    """
    fired = fired_now(change.session, plan.fired, installation, now_ms=change.now_ms)
    if fired is None or not is_allowed(fired.trigger, policy.mode):
        return None
    if fired == plan.fired:
        return plan
    trigger, is_by_budget = trigger_columns(fired.trigger)
    values: dict[str, Any] = {
        "trigger": trigger, "is_by_budget": is_by_budget, "budget_tokens": fired.budget_tokens,
    }  # fmt: skip
    change_compactions(change.connection, [plan.compaction_id], **values)
    return plan._replace(**values)


def _of_one_job(connection: Connection, sid: int, due: Sequence[_OpenRow]) -> Sequence[_OpenRow]:
    """Return the oldest of these rows that one job may summarize; a large fold goes by itself."""
    folds = [row for row in due if row.is_fold]
    lost = uncovered(connection, sid) if folds else []
    messages, tokens = sum([row.messages for row in lost]), sum([row.tokens for row in lost])
    first = due[0]
    if folds and exceeds_limits(messages + first.messages_evicted, tokens + first.tokens_evicted):
        return folds[:1]
    sizes = [(row.messages_evicted, row.tokens_evicted) for row in due]
    return due[: within_limits(sizes, messages=messages, tokens=tokens)]


def _job_of(
    session: SessionRow, claimed: Sequence[_OpenRow], policy: Policy, now_ms: int, *, folds: bool
) -> Job:
    """Describe the job of claimed rows. Its newest row decides what it writes."""
    newest = claimed[-1]
    writes_messages = newest.kind is JobKind.NEXT and not newest.is_plan
    is_cooling = writes_messages and session.is_cooling(now_ms)
    return Job(
        key=session.key,
        sid=session.sid,
        compaction_ids=tuple(CompactionId(str(row.compaction_id)) for row in claimed),
        # Higher than any fence before: writes of a worker that lost its lease are rejected.
        fence=max(row.fence for row in claimed) + 1,
        attempt=max(row.attempts for row in claimed) + 1,
        base_version=session.version,
        policy=policy,
        model=session.model,
        planned=newest.fired if newest.is_plan else None,
        writes=newest.kind,
        folds=folds,
        wanted=wanted_of(newest.wanted),
        cooling=session.cooldown_reason if is_cooling else None,
        tokens_evicted=sum([row.tokens_evicted for row in claimed]),
        summary_tokens=session.summary_tokens,
        factor=session.factor,
        traces=tuple([row.trace for row in claimed if row.trace]),
    )


def _release_others(
    connection: Connection, rows: Sequence[_OpenRow], claimed_ids: Sequence[int]
) -> None:
    """Take running rows from a worker whose lease is over: a session has one job at a time."""
    lost = [
        row.compaction_id
        for row in rows
        if row.status == JobStatus.RUNNING and row.compaction_id not in claimed_ids
    ]
    if lost:
        change_compactions(connection, lost, status=JobStatus.PENDING, lease_until_ms=None)


def _first_due(rows: Sequence[_OpenRow], now_ms: int, *, is_cooling: bool) -> Sequence[_OpenRow]:
    """Select the rows of one job: evicted messages first, then planned evictions, then rewrites."""
    evicted = [row for row in rows if row.is_evicted]
    if is_cooling:
        # A fold waits for the model, while what is evicted meanwhile gets a stand-in at once.
        evicted = [row for row in evicted if row.is_due(now_ms) or not row.is_fold]
    for group in (evicted, [row for row in rows if row.is_plan]):
        if any(row.is_due(now_ms) for row in group):
            return group
    rewrites = [row for row in rows if row.kind is not JobKind.NEXT and row.is_due(now_ms)]
    rewrites.sort(key=lambda row: row.kind is JobKind.REGENERATED)
    # One at a time: each rewrite changes what the next one starts from.
    return rewrites[:1]
