"""Commit the version of a job: the summary, what it covers, and the audit row and notice of it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, bindparam, func, literal_column, select

from turnfold.core.eviction.batch import Eviction
from turnfold.core.eviction.triggers import is_allowed
from turnfold.core.policy.presets import Mode
from turnfold.errors import LostLease
from turnfold.messages import MESSAGES_PER_EVENT
from turnfold.ports.compact import Job, JobKind, JobStatus, Version
from turnfold.store.compact.chunks import delete_chunk_summaries, move_chunk_summaries
from turnfold.store.compact.coverage import ADD, any_restored, record_activation
from turnfold.store.compact.jobs.load import added_evictions
from turnfold.store.compact.jobs.rows import compaction_ids, lock_held
from turnfold.store.compact.rewriting import (
    continue_fold,
    end_rewriting,
    open_stand_in,
)
from turnfold.store.database.predicates import is_version, of_messages
from turnfold.store.database.schema import compactions, messages, summaries
from turnfold.store.database.session_rows import SessionChange, SessionJournal, lock_by_sid
from turnfold.store.database.statements import Prepared, PreparedIn, bulk_update
from turnfold.store.ingest.evict import mark_evicted
from turnfold.store.ingest.open_compactions import change_compactions

_ADDED = PreparedIn(
    select(
        func.min(compactions.c.first_position),
        func.max(compactions.c.last_position),
        func.sum(compactions.c.messages_evicted),
    ),
    compactions.c.compaction_id,
)

_TOKENS_BEFORE = PreparedIn(select(compactions.c.tokens_before), compactions.c.compaction_id)

_first_id = select(messages.c.event_id, messages.c.position).limit(literal_column("1"))

# The messages at the ends of a span may have been retracted: then their neighbors stand for them.
_AT_OR_AFTER = Prepared(
    _first_id.where(of_messages, messages.c.position >= bindparam("at")).order_by(
        messages.c.position
    ),
    ("of_sid", "at"),
)

_AT_OR_BEFORE = Prepared(
    _first_id.where(of_messages, messages.c.position <= bindparam("at")).order_by(
        messages.c.position.desc()
    ),
    ("of_sid", "at"),
)

_BASE_SPAN = Prepared(
    select(
        *(summaries.c[name] for name in ("first_position", "last_position", "messages_covered"))
    ).where(is_version),
    ("of_sid", "number"),
)

_FINISH = bulk_update(
    compactions,
    where=("compaction_id",),
    values=(
        "status",
        "lease_until_ms",
        "version",
        "reason",
        "finished_at_ms",
        "tokens_after",
    ),
)

_COVER = bulk_update(compactions, where=("compaction_id",), values=("is_covered",))


def commit_version(
    connection: Connection,
    job: Job,
    version: Version,
    *,
    leaving: Eviction | None,
    reason: str | None,
    now_ms: int,
    new_id: Callable[[], int],
) -> int:
    """Store a version and return its number.

    The version is in force from now on, except a regenerated one.

    Raises:
        LostLease: another worker holds the job, or another version is in force. Nothing was
            changed.
    """
    # Every transaction locks the session before its compactions. Another order could deadlock.
    session = lock_by_sid(connection, [job.sid]).get(job.sid)
    is_activated = job.writes is not JobKind.REGENERATED
    if session is None or (is_activated and session.version != job.base_version):
        raise LostLease(job.compaction_ids[-1])
    # Version numbers are never reused, even those of versions that were never in force.
    session.versions += 1
    number, change = session.versions, SessionChange(connection, session, SessionJournal(), now_ms)
    tokens_before_leaving = session.window_tokens
    if leaving is not None:
        _carry_out(change, job, version, leaving)
    tokens_replaced = session.window_tokens
    added = added_evictions(connection, job)
    # Messages that were restored meanwhile are live: a version must not cover them as well.
    if any_restored(connection, added):
        raise LostLease(job.compaction_ids[-1])
    summary_tokens = version.tokens if is_activated else session.summary_tokens
    tokens_after = session.live_tokens + summary_tokens
    _finish_rows(connection, job, (number, reason, now_ms, tokens_after))
    _add_summary(connection, job, version, number, added, now_ms)
    if is_activated:
        _COVER.run(connection, [(True, compaction_id) for compaction_id in added])
        record_activation(change, number, version.tokens)
    is_part = not is_activated and _goes_on(connection, job, number, now_ms=now_ms)
    tokens = (tokens_replaced, tokens_after)
    _journal_version(change, job, version, is_part=is_part, reason=reason, tokens=tokens)
    if leaving is not None:
        tokens = (tokens_before_leaving, tokens_after)
        _journal_leaving(change, job, version, leaving, tokens=tokens)
    _notify_version(change, job, version, tokens_after)
    if is_activated:
        _plan_rewriting(change, job, version, reason, new_id)
    # Only a stand-in leaves another attempt to be made, for which the parts of the answer are kept.
    delete_chunk_summaries(connection, job.sid)
    change.journal.write(connection, [session])
    return number


def _carry_out(change: SessionChange, job: Job, version: Version, leaving: Eviction) -> None:
    """Carry out a planned eviction.

    Raises:
        LostLease: the mode no longer allows it, or one of its messages is not live any more.
    """
    session = change.session
    mode = Mode(session.wishes.mode or session.agent_wishes.mode or job.policy.mode)
    if not is_allowed(leaving.due.trigger, mode):
        raise LostLease(job.compaction_ids[-1])
    mark_evicted(change, int(job.compaction_ids[-1]), leaving, model=version.draft.model)


def _finish_rows(connection: Connection, job: Job, finished: tuple[Any, ...]) -> None:
    """Mark the rows of the job committed.

    Raises:
        LostLease: another worker holds the job.
    """
    # The fence decides here: a worker whose lease ended may have written the version all the same.
    rows = lock_held(connection, job)
    _FINISH.run(connection, [(JobStatus.COMMITTED, None, *finished, row) for row in rows])


def _goes_on(connection: Connection, job: Job, number: int, *, now_ms: int) -> bool:
    """Open the row of a regeneration again if a job has left evictions of it; return whether.

    The next version builds on this one. Only the last is the one that the row has written.
    """
    if not added_evictions(connection, replace(job, extends=number)):
        return False
    # While the row has ended, because answers for open rows are kept.
    delete_chunk_summaries(connection, job.sid)
    change_compactions(
        connection, compaction_ids(job), status=JobStatus.PENDING, next_attempt_at_ms=now_ms,
        attempts=0, version=None, tokens_after=None, finished_at_ms=None,
    )  # fmt: skip
    return True


def _notify_version(change: SessionChange, job: Job, version: Version, tokens_after: int) -> None:
    in_force = {"in_force": False} if job.writes is JobKind.REGENERATED else {}
    # Before the first eviction of the job.
    ((tokens_before,),) = _TOKENS_BEFORE.rows(change.connection, compaction_ids(job)[:1])
    change.journal.add_notice(
        change.session,
        "summary.updated",
        version=change.session.versions,
        kind=version.draft.kind,
        tokens_before=int(tokens_before),
        tokens_after=tokens_after,
        **in_force,
    )


def _base_version(job: Job) -> int | None:
    return job.extends if job.writes is JobKind.REGENERATED else job.base_version


def _journal_version(
    change: SessionChange,
    job: Job,
    version: Version,
    *,
    is_part: bool,
    reason: str | None,
    tokens: tuple[int, int],
) -> None:
    """Record a version; `tokens` are those of the window before and after it."""
    draft = version.draft
    part: dict[str, Any] = {"is_part": True} if is_part else {}
    change.add_audit_row(
        "summary_done",
        compaction_id=int(job.compaction_ids[-1]),
        reason=reason,
        tokens_before=tokens[0],
        tokens_after=tokens[1],
        version=change.session.versions,
        base_version=_base_version(job),
        in_force=job.writes is not JobKind.REGENERATED,
        **part,
        kind=draft.kind,
        model=draft.model,
        style=version.style,
        prompt_version=version.prompt_version,
        compactions=len(job.compaction_ids),
        attempts=job.attempt,
        prompt_tokens=draft.prompt_tokens,
        completion_tokens=draft.completion_tokens,
        cost=draft.cost,
        calls_truncated=version.calls_truncated,
        results_truncated=version.results_truncated,
        seconds=version.seconds,
    )


def _journal_leaving(
    change: SessionChange,
    job: Job,
    version: Version,
    leaving: Eviction,
    *,
    tokens: tuple[int, int],
) -> None:
    change.add_audit_row(
        "selective_done",
        compaction_id=int(job.compaction_ids[-1]),
        tokens_before=tokens[0],
        tokens_after=tokens[1],
        version=change.session.versions,
        evicted=len(leaving.evicted),
        model=version.draft.model,
    )


def _plan_rewriting(
    change: SessionChange,
    job: Job,
    version: Version,
    reason: str | None,
    new_id: Callable[[], int],
) -> None:
    """End the cooldown if the model answered.

    Otherwise begin a cooldown, and plan to replace the stand-in. Another fold takes over the rest.
    """
    end_rewriting(change)
    if version.draft.kind == "llm":
        change.session.end_cooldown()
    elif reason is not None:
        # During a cooldown the model was not called, so this is not another failure.
        if job.cooling is None:
            change.session.begin_cooldown(reason, at_ms=change.now_ms)
        stand_in_id = new_id()
        open_stand_in(change, stand_in_id)
        move_chunk_summaries(change.connection, job, stand_in_id)
    continue_fold(change, new_id)


def _add_summary(
    connection: Connection,
    job: Job,
    version: Version,
    number: int,
    added: Sequence[int],
    now_ms: int,
) -> None:
    draft, base_version = version.draft, _base_version(job)
    row = {
        "sid": job.sid,
        "version": number,
        "base_version": base_version,
        "compaction_id": int(job.compaction_ids[-1]),
        "kind": draft.kind,
        "style": version.style,
        "model": draft.model,
        "prompt_version": version.prompt_version,
        "text": draft.text,
        "sections": json.dumps(draft.sections),
        "ledger": json.dumps(draft.ledger),
        "tokens": version.tokens,
        "text_tokens": version.text_tokens,
        "cuts": version.cuts or None,
        "depth": version.depth,
        "prompt_tokens": draft.prompt_tokens,
        "completion_tokens": draft.completion_tokens,
        "cost": draft.cost,
        "created_at_ms": now_ms,
        **_covered_span(connection, job.sid, base_version, added),
    }
    connection.execute(summaries.insert(), row)
    ADD.run(connection, [(job.sid, number, compaction_id) for compaction_id in added])


def _covered_span(
    connection: Connection, sid: int, base_version: int | None, added: Sequence[int]
) -> dict[str, Any]:
    """Return what a version covers: the span of its base, and the evictions that it adds."""
    rows = list(_ADDED.rows(connection, list(added)))
    if base_version is not None:
        rows += _BASE_SPAN.rows(connection, sid, base_version)
    spans = [
        (int(first), int(last), int(count)) for first, last, count in rows if first is not None
    ]
    first, last = min(span[0] for span in spans), max(span[1] for span in spans)
    return {
        "first_position": first,
        "last_position": last,
        "covers_first": _message_id(*_AT_OR_AFTER.rows(connection, sid, first)),
        "covers_last": _message_id(*_AT_OR_BEFORE.rows(connection, sid, last)),
        "messages_covered": sum(span[2] for span in spans),
    }


def _message_id(row: Sequence[Any]) -> str:
    event_id, position = row
    return f"{event_id}#{position % MESSAGES_PER_EVENT}"
