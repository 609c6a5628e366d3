"""End a job without a version: it failed, is tried again later, or was written too late."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, literal, literal_column, select, update

from turnfold.core.eviction.triggers import FiredTrigger, Trigger
from turnfold.errors import LostLease
from turnfold.ports.compact import FailureStatus, Job, JobKind, JobStatus
from turnfold.store.compact.chunks import delete_chunk_summaries, move_chunk_summaries
from turnfold.store.compact.jobs.rows import is_held, update_held
from turnfold.store.compact.rewriting import open_stand_in
from turnfold.store.database.predicates import of_compactions
from turnfold.store.database.schema import compactions
from turnfold.store.database.session_rows import (
    SessionChange,
    SessionJournal,
    SessionRow,
    lock_by_sid,
)
from turnfold.store.database.statements import Prepared
from turnfold.store.ingest.open_compactions import delay_after_failure

REFUSED_STAND_INS = 3
"""The attempts in a row to replace a stand-in while the gate rejects the model's answers.

The next eviction starts again. A provider that is unavailable is retried without limit.
"""

_NEWEST = Prepared(
    select(compactions.c.trigger, compactions.c.status)
    .where(of_compactions, compactions.c.trigger != literal_column(f"'{Trigger.REGENERATE}'"))
    .order_by(compactions.c.ordinal.desc())
    .limit(literal_column(str(REFUSED_STAND_INS))),
    ("of_sid",),
)

_KEPT = (
    "sid", "trigger", "is_by_budget", "budget_tokens", "messages_evicted", "tokens_evicted",
    "digest", "digest_tokens", "trace", "actor",
)  # fmt: skip
"""The columns that a plan has in common with the one that failed."""

_PHASES = {
    JobStatus.REJECTED: "rejected",
    JobStatus.FAILED: "rollback",
    JobStatus.STALE: "stale",
}
"""The audit phase of each way in which a job fails."""


def fail_job(
    connection: Connection,
    job: Job,
    status: FailureStatus,
    *,
    reason: str | None,
    detail: str,
    model: str | None,
    now_ms: int,
    new_id: Callable[[], int],
) -> None:
    """End a job without a version.

    Raises:
        LostLease: another worker holds the job.
    """
    session = _release(connection, job, status=status, reason=reason, finished_at_ms=now_ms)
    change = SessionChange(connection, session, SessionJournal(), now_ms)
    _journal_failure(change, job, _PHASES[status], reason=reason, detail=detail, model=model)
    # A stale job is nobody's failure: another version took effect while it was written.
    if status is not JobStatus.STALE:
        _notify_failure(change, job, reason=reason, next_attempt_at_ms=None)
        # A regeneration is an offer. Its failure must not delay the summaries that windows need.
        if job.writes is not JobKind.REGENERATED:
            session.begin_cooldown(reason or str(status), at_ms=now_ms)
        if job.planned and status is JobStatus.FAILED:
            plan_id = new_id()
            _plan_again(change, job, job.planned, plan_id)
            move_chunk_summaries(connection, job, plan_id)
        if job.writes is JobKind.STAND_IN and not _is_refused_for_good(connection, job.sid):
            stand_in_id = new_id()
            open_stand_in(change, stand_in_id)
            if status is JobStatus.FAILED:
                move_chunk_summaries(connection, job, stand_in_id)
    # Last, because answers for open rows are kept.
    delete_chunk_summaries(connection, job.sid)
    change.journal.write(connection, [session])


def _is_refused_for_good(connection: Connection, sid: int) -> bool:
    """Return whether the gate rejected one attempt after another since the last eviction."""
    newest = [tuple(row) for row in _NEWEST.rows(connection, sid)]
    return newest == [(Trigger.STAND_IN, JobStatus.REJECTED)] * REFUSED_STAND_INS


def _plan_again(change: SessionChange, job: Job, planned: FiredTrigger, compaction_id: int) -> None:
    """Plan an eviction again for when the provider is back: until then no event may arrive."""
    session = change.session
    session.compactions += 1
    changed = {
        "compaction_id": compaction_id, "ordinal": session.compactions,
        "status": JobStatus.PENDING, "tokens_before": session.window_tokens,
        "next_attempt_at_ms": session.cooldown_until_ms, "requested_at_ms": change.now_ms,
    }  # fmt: skip
    copied = select(
        *(literal(value, compactions.c[name].type) for name, value in changed.items()),
        *(compactions.c[name] for name in _KEPT),
    ).where(compactions.c.compaction_id == int(job.compaction_ids[-1]))
    change.connection.execute(compactions.insert().from_select([*changed, *_KEPT], copied))
    change.add_audit_row(
        "selective_start", compaction_id=compaction_id, tokens_before=session.window_tokens,
        trigger=str(planned.trigger), live=session.live_messages, session_model=session.model,
    )  # fmt: skip


def retry_job(
    connection: Connection,
    job: Job,
    *,
    reason: str,
    detail: str,
    model: str | None,
    retry_at_ms: int,
    now_ms: int,
    is_attempt: bool,
) -> None:
    """Return a job after a failed attempt.

    Raises:
        LostLease: another worker holds the job.
    """
    session = _release(
        connection,
        job,
        status=JobStatus.PENDING,
        reason=reason,
        next_attempt_at_ms=retry_at_ms,
        # While the day's tokens are spent, no model is asked.
        attempts=job.attempt - (not is_attempt),
    )
    delay_after_failure(connection, [job.sid])
    change = SessionChange(connection, session, SessionJournal(), now_ms)
    _journal_failure(change, job, "attempt_failed", reason=reason, detail=detail, model=model)
    _notify_failure(change, job, reason=reason, next_attempt_at_ms=retry_at_ms)
    change.journal.write(connection, [session])


def _release(connection: Connection, job: Job, **values: Any) -> SessionRow:
    """Change the rows of a job, end their lease, and return the locked session.

    Raises:
        LostLease: another worker holds the job, or the session was erased.
    """
    session = lock_by_sid(connection, [job.sid]).get(job.sid)
    update_held(connection, job, lease_until_ms=None, **values)
    if session is None:
        raise LostLease(job.compaction_ids[-1])
    return session


def return_job(connection: Connection, job: Job, *, now_ms: int) -> None:
    """Make the rows that a worker still holds due again; this does not count as an attempt."""
    connection.execute(
        update(compactions)
        .where(is_held(job))
        .values(
            status=JobStatus.PENDING,
            lease_until_ms=None,
            next_attempt_at_ms=now_ms,
            attempts=job.attempt - 1,
        )
    )


def discard_result(connection: Connection, job: Job, *, now_ms: int) -> None:
    """Record that a version was written too late; rows that this worker still holds become due."""
    session = lock_by_sid(connection, [job.sid]).get(job.sid)
    if session is None:
        return
    return_job(connection, job, now_ms=now_ms)
    journal = SessionJournal()
    journal.add_audit_row(
        session,
        "stale",
        at_ms=now_ms,
        compaction_id=int(job.compaction_ids[-1]),
        attempt=job.attempt,
        fence=job.fence,
        base_version=job.base_version,
        detail="written too late",
    )
    journal.write(connection, [session])


def _journal_failure(
    change: SessionChange,
    job: Job,
    phase: str,
    *,
    reason: str | None,
    detail: str,
    model: str | None,
) -> None:
    change.add_audit_row(
        phase,
        compaction_id=int(job.compaction_ids[-1]),
        reason=reason,
        attempt=job.attempt,
        model=model,
        # Providers return whole pages as error texts.
        detail=detail[:300],
    )


def _notify_failure(
    change: SessionChange, job: Job, *, reason: str | None, next_attempt_at_ms: int | None
) -> None:
    change.journal.add_notice(
        change.session,
        "compaction.failed",
        compaction_id=str(job.compaction_ids[-1]),
        reason=reason,
        attempts=job.attempt,
        next_attempt_at=next_attempt_at_ms,
    )
