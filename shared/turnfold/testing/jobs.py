"""Compaction rows as jobs in memory: leases, fences, and commits that compare before they swap."""

import json
from collections.abc import Callable, Iterable, Sequence

from turnfold.core.eviction.eviction import (
    Evict,
    Eviction,
    FiredTrigger,
    Trigger,
    clamp_keep_tokens,
    decide_eviction,
    load_of,
)
from turnfold.core.policy.overrides import PolicyOverrides
from turnfold.core.policy.presets import Policy
from turnfold.core.summary.fair_share import JobSlots
from turnfold.core.summary.sources import PreviousSummary
from turnfold.errors import LostLease
from turnfold.messages import CompactionId
from turnfold.ports.compact import (
    EvictedMessage,
    FailureStatus,
    Job,
    JobInput,
    JobKind,
    RegenerateOptions,
    Version,
)
from turnfold.ports.query import StoredSummary
from turnfold.testing.calls import MemoryCalls
from turnfold.testing.intake import tell_eviction
from turnfold.testing.kept import Compaction, Memory, Session
from turnfold.testing.usage import MemoryCalibrator

REFUSED_STAND_INS = 3


class MemoryJobs(MemoryCalls):
    """See `turnfold.ports.compact.JobStore`."""

    _memory: Memory

    async def claim(
        self,
        places: JobSlots,
        *,
        lease_ms: int,
        now_ms: int,
        policy: Callable[[PolicyOverrides, PolicyOverrides], Policy],
    ) -> Sequence[Job]:
        """Take sessions whose jobs are due: all their open rows, under one lease each."""
        waiting = [
            (due_ms, session)
            for session in self._memory.sessions.values()
            if (due_ms := _due_since(session, now_ms)) is not None
        ]
        waiting.sort(key=lambda one: (one[0], one[1].sid))
        chosen = places.allocate([(session, session.key.agent_id) for _, session in waiting])
        return [self._take(session, lease_ms, now_ms, policy) for session in chosen]

    def _take(
        self,
        session: Session,
        lease_ms: int,
        now_ms: int,
        policy: Callable[[PolicyOverrides, PolicyOverrides], Policy],
    ) -> Job:
        rows = _first_due(session, now_ms)
        for row in session.compactions:
            if row.status == "running" and row not in rows:
                row.status, row.lease_until_ms = "pending", None
        fence, attempt = 1 + max(row.fence for row in rows), 1 + max(row.attempts for row in rows)
        for row in rows:
            row.status, row.fence, row.attempts, row.lease_until_ms = (
                "running",
                fence,
                attempt,
                now_ms + lease_ms,
            )
        ids = tuple(row.compaction_id for row in rows)
        self._memory.seal(
            session, "summary_start", at_ms=now_ms, compaction_id=ids[-1], attempt=attempt
        )
        in_force = policy(self._memory.wishes_of(session.key.agent_id), session.wishes)
        newest = rows[-1]
        plan = (
            FiredTrigger(Trigger(newest.trigger), newest.budget_tokens) if newest.is_plan else None
        )
        is_cooling = (
            _writes(newest) is JobKind.NEXT and not plan and now_ms < session.cooldown_until_ms
        )
        return Job(
            session.key, session.sid, ids, fence, attempt, session.version, in_force, session.model, plan, _writes(newest),
            newest.wanted or RegenerateOptions(), session.cooldown_reason if is_cooling else None, sum(row.tokens_evicted for row in rows),
            session.summary.tokens if session.summary else 0, tuple(row.trace for row in rows if row.trace),
        )  # fmt: skip

    async def load(self, job: Job, *, now_ms: int, by_model: bool = True) -> JobInput:
        """Read what a claimed job summarises."""
        self._rows(job)
        session = self._memory.sessions[job.key]
        leaving = _planned(session, job, job.planned, now_ms) if job.planned else None
        rows, base = _adds(session, job), session.version_of(job.base_version)
        match job.writes:
            case JobKind.REGENERATED:
                base = session.version_of(job.wanted.from_version)
            case JobKind.STAND_IN:
                again, base = _retold(session, job)
                rows = again
            case JobKind.NEXT if base is not None and _is_to_be_rebuilt(session, job, base):
                rows, base = rows | session.speaks_for[job.base_version], None
            case JobKind.NEXT if base is not None and base.kind == "extractive" and by_model:
                again, base = _retold(session, job)
                rows = rows | again
            case JobKind.NEXT:
                pass
        chosen = {one.position for one in leaving.evicted} if leaving else set[int]()
        evicted = tuple(
            EvictedMessage(one.message, one.is_error, one.body)
            for one in session.kept
            if one.message.position in chosen or one.message.compaction_id in rows
        )
        previous = (
            PreviousSummary(base.text, json.loads(base.sections), tuple(json.loads(base.ledger)))
            if base
            else None
        )
        requests = [one.body for one in session.live if one.message.is_request]
        return JobInput(
            evicted,
            previous,
            requests[-1] if requests else None,
            leaving,
            session.depths[base.version] + 1 if base else 1,
        )

    async def renew(self, job: Job, *, lease_ms: int, now_ms: int) -> None:
        """Keep the lease."""
        for row in self._rows(job):
            row.lease_until_ms = now_ms + lease_ms

    async def commit(
        self,
        job: Job,
        version: Version,
        *,
        leaving: Eviction | None = None,
        reason: str | None,
        now_ms: int,
    ) -> int:
        """Store a new version, in force over its base unless it was regenerated; the number it got."""
        rows, session = self._rows(job), self._memory.sessions[job.key]
        takes_force = job.writes is not JobKind.REGENERATED
        if takes_force and session.version != job.base_version:
            raise LostLease(job.compaction_ids[-1])
        adds = _adds(session, job) | ({rows[-1].compaction_id} if leaving else set())
        if any(
            row.status == "restored" for row in session.compactions if row.compaction_id in adds
        ):
            raise LostLease(job.compaction_ids[-1])
        at_first, model = session.window_tokens, version.draft.model
        if leaving is not None:
            self._leave(session, rows[-1], leaving, model, now_ms)
        replaced = session.window_tokens
        self._forget_chunks(job)
        before, number = rows[0].tokens_before, len(session.summaries) + 1
        after = session.live_load.tokens + (
            version.tokens if takes_force else session.summary.tokens if session.summary else 0
        )
        for row in rows:
            row.status, row.version, row.reason = "committed", number, reason
            row.lease_until_ms, row.finished_at_ms, row.tokens_after = None, now_ms, after
        base = job.base_version if takes_force else job.wanted.from_version
        session.speaks_for[number] = session.speaks_for[base] | adds
        session.summaries.append(_stored(session, job, version, base, now_ms))
        session.depths[number] = version.depth
        if takes_force:
            session.reign(number, at_ms=now_ms)
            session.gauge = session.gauge._replace(
                factor=MemoryCalibrator(self._memory).factor(session)
            )
            session.revision += 1
        newest, told = job.compaction_ids[-1], {"tokens_before": before, "tokens_after": after}
        self._memory.seal(
            session, "summary_done", at_ms=now_ms, compaction_id=newest, reason=reason, tokens_before=replaced, tokens_after=after,
            model=model,
        )  # fmt: skip
        if leaving is not None:
            self._memory.seal(
                session,
                "selective_done",
                at_ms=now_ms,
                compaction_id=newest,
                tokens_before=at_first,
                tokens_after=after,
                model=model,
            )
        beside = {} if takes_force else {"in_force": False}
        self._memory.tell(
            session, "summary.updated", version=number, kind=version.draft.kind, **told, **beside
        )
        if takes_force:
            end_rewriting(self._memory, session, now_ms)
            self._remember_the_model(session, job, version, reason, now_ms)
        return number

    def _remember_the_model(
        self, session: Session, job: Job, version: Version, reason: str | None, now_ms: int
    ) -> None:
        if version.draft.kind == "llm":
            session.failures, session.cooldown_until_ms, session.cooldown_reason = 0, 0, None
        elif reason is not None:
            if job.cooling is None:
                session.failed(reason, at_ms=now_ms)
            self._stand_in(session, now_ms)

    def _stand_in(self, session: Session, now_ms: int) -> None:
        begins_ms = max(session.cooldown_until_ms, now_ms)
        open_work(
            self._memory, session, Trigger.STAND_IN, begins_ms, now_ms, wanted=RegenerateOptions()
        )

    def _leave(
        self, session: Session, row: Compaction, leaving: Eviction, model: str | None, now_ms: int
    ) -> None:
        ids = {message.message_id for message in leaving.evicted}
        if not ids <= {one.message.message_id for one in session.live}:
            raise LostLease(row.compaction_id)
        leaving = leaving.seen_at([one.message for one in session.live], session.live_load, now_ms)
        row.tokens_before, row.tokens_evicted = (
            session.window_tokens,
            sum(message.tokens for message in leaving.evicted),
        )
        row.evicted, row.is_plan, row.evicted_at_ms = frozenset(ids), False, now_ms
        session.gauge = session.gauge.evicted(
            by_report=leaving.due.trigger is Trigger.USAGE, factor=session.gauge.factor
        )
        tell_eviction(self._memory, session, row, leaving, model)

    async def fail(
        self,
        job: Job,
        *,
        ending: FailureStatus,
        reason: str | None,
        detail: str,
        now_ms: int,
        model: str | None = None,
    ) -> None:
        """End a compaction that evicted nothing and comes to nothing."""
        rows, session, newest = (
            self._rows(job),
            self._memory.sessions[job.key],
            job.compaction_ids[-1],
        )
        self._forget_chunks(job)
        for row in rows:
            row.status, row.lease_until_ms, row.reason, row.finished_at_ms = (
                str(ending),
                None,
                reason,
                now_ms,
            )
        phase = {
            FailureStatus.REJECTED: "rejected",
            FailureStatus.FAILED: "rollback",
            FailureStatus.STALE: "stale",
        }[ending]
        self._memory.seal(
            session,
            phase,
            at_ms=now_ms,
            compaction_id=newest,
            reason=reason,
            model=model,
            detail=detail,
        )
        if ending is FailureStatus.STALE:
            return
        told = {
            "compaction_id": newest,
            "reason": reason,
            "attempts": job.attempt,
            "next_attempt_at": None,
        }
        self._memory.tell(session, "compaction.failed", **told)
        if job.writes is not JobKind.REGENERATED:
            session.failed(reason or str(ending), at_ms=now_ms)
        if job.writes is JobKind.STAND_IN and (
            ending is FailureStatus.FAILED or session.failures <= REFUSED_STAND_INS
        ):
            self._stand_in(session, now_ms)

    async def retry_later(
        self,
        job: Job,
        *,
        reason: str,
        detail: str,
        retry_at_ms: int,
        now_ms: int,
        model: str | None = None,
    ) -> None:
        """Return a job whose attempt failed, to be tried again."""
        rows, session, newest = (
            self._rows(job),
            self._memory.sessions[job.key],
            job.compaction_ids[-1],
        )
        for row in rows:
            row.status, row.lease_until_ms, row.reason, row.next_attempt_at_ms = (
                "pending",
                None,
                reason,
                retry_at_ms,
            )
        self._memory.seal(
            session,
            "attempt_failed",
            at_ms=now_ms,
            compaction_id=newest,
            reason=reason,
            model=model,
            detail=detail,
        )
        told = {
            "compaction_id": newest,
            "reason": reason,
            "attempts": job.attempt,
            "next_attempt_at": retry_at_ms,
        }
        self._memory.tell(session, "compaction.failed", **told)

    async def discard(self, job: Job, *, now_ms: int) -> None:
        """Record that what was written came too late; rows that are still ours are due again."""
        session = self._memory.sessions.get(job.key)
        if session is None or session.sid != job.sid:
            return
        for row in session.compactions:
            if (
                row.compaction_id in job.compaction_ids
                and row.status == "running"
                and row.fence == job.fence
            ):
                row.status, row.lease_until_ms, row.next_attempt_at_ms = "pending", None, now_ms
        self._memory.seal(
            session,
            "stale",
            at_ms=now_ms,
            compaction_id=job.compaction_ids[-1],
            attempt=job.attempt,
        )

    async def next_due_ms(self) -> int | None:
        """When the next job is due; None when there is none."""
        return min(
            (
                due_ms
                for session in self._memory.sessions.values()
                if (due_ms := _due_at(session)) is not None
            ),
            default=None,
        )

    def _rows(self, job: Job) -> list[Compaction]:
        """The rows of a job that is still this worker's."""
        session = self._memory.sessions.get(job.key)
        rows = (
            [row for row in session.compactions if row.compaction_id in job.compaction_ids]
            if session
            else []
        )
        if not rows or any(row.status != "running" or row.fence != job.fence for row in rows):
            raise LostLease(job.compaction_ids[-1])
        return rows


def open_work(
    memory: Memory,
    session: Session,
    trigger: Trigger,
    begins_ms: int,
    now_ms: int,
    *,
    wanted: RegenerateOptions | None = None,
) -> CompactionId:
    """Open a compaction that evicts nothing; the same regeneration is not opened twice."""
    for known in session.compactions:
        if (
            known.is_open
            and trigger is Trigger.REGENERATE
            and known.trigger == trigger
            and known.wanted == wanted
        ):
            return known.compaction_id
    row = Compaction(
        CompactionId(str(memory.new_id())), len(session.compactions) + 1, str(trigger), frozenset(), 0, session.window_tokens, "", 0, now_ms,
        begins_ms, wanted=wanted,
    )  # fmt: skip
    session.compactions.append(row)
    memory.seal(
        session,
        "opened",
        at_ms=now_ms,
        compaction_id=row.compaction_id,
        tokens_before=row.tokens_before,
    )
    return row.compaction_id


def end_rewriting(memory: Memory, session: Session, now_ms: int) -> None:
    """Another version took force: stand-ins and folds on the one before come to nothing."""
    for row in session.compactions:
        if (
            row.is_open
            and not row.evicted
            and not row.is_plan
            and row.trigger != Trigger.REGENERATE
        ):
            row.status, row.lease_until_ms, row.finished_at_ms = "stale", None, now_ms
            memory.seal(session, "stale", at_ms=now_ms, compaction_id=row.compaction_id)


def _writes(row: Compaction) -> JobKind:
    return {"stand_in": JobKind.STAND_IN, "regenerate": JobKind.REGENERATED}.get(
        row.trigger, JobKind.NEXT
    )


def _first_due(session: Session, now_ms: int) -> list[Compaction]:
    """The rows of one job."""
    rows = [row for row in session.compactions if row.is_open]
    left = [row for row in rows if _writes(row) is JobKind.NEXT and not row.is_plan]
    plans = [row for row in rows if row.is_plan]
    again = [
        [row]
        for kind in (JobKind.STAND_IN, JobKind.REGENERATED)
        for row in rows
        if _writes(row) is kind
    ]
    return next(
        group for group in (left, plans, *again) if any(_is_due(row, now_ms) for row in group)
    )


def _is_due(row: Compaction, now_ms: int) -> bool:
    return row.status == "running" or row.next_attempt_at_ms <= now_ms


def _adds(session: Session, job: Job) -> frozenset[CompactionId]:
    """The evictions that a job's version speaks for besides those of its base."""
    if job.writes is JobKind.STAND_IN:
        return frozenset()
    if job.writes is JobKind.REGENERATED:
        return session.speaks_for[job.base_version] - session.speaks_for[job.wanted.from_version]
    lost = {row.compaction_id for row in session.pending if row.status == "committed"}
    return frozenset(
        lost
        | {
            row.compaction_id
            for row in session.compactions
            if row.compaction_id in job.compaction_ids and row.evicted
        }
    )


def _retold(session: Session, job: Job) -> tuple[frozenset[CompactionId], StoredSummary | None]:
    """The evictions that only extractive versions speak for, down to so many tokens, and the version below."""
    tokens = {row.compaction_id: row.tokens_evicted for row in session.compactions}
    found: frozenset[CompactionId] = frozenset()
    version = session.version_of(job.base_version)
    total = 0
    while version is not None and version.kind == "extractive":
        added = session.speaks_for[version.version] - session.speaks_for[version.base_version]
        total += sum(tokens[one] for one in added)
        if found and total > job.policy.rebuild_max_tokens:
            break
        found |= added
        version = session.version_of(version.base_version)
    return found, version


def _is_to_be_rebuilt(session: Session, job: Job, base: StoredSummary) -> bool:
    every, most = job.policy.rebuild_every_versions, job.policy.rebuild_max_tokens
    covered = [row for row in session.compactions if row.is_covered]
    return (
        bool(every)
        and session.depths[base.version] >= every
        and sum(row.tokens_evicted for row in covered) <= most
    )


def _planned(session: Session, job: Job, due: FiredTrigger, now_ms: int) -> Eviction | None:
    live = [one.message for one in session.live]
    decision = decide_eviction(live, clamp_keep_tokens(job.policy, due), due.trigger, now_ms=now_ms)
    return (
        Eviction(due, decision.evicted, len(live), load_of(live), now_ms)
        if isinstance(decision, Evict)
        else None
    )


def _due_since(session: Session, now_ms: int) -> int | None:
    """Since when a session's job waits for a worker, None when none may take it."""
    if any(row.is_leased(now_ms) for row in session.compactions):
        return None
    ready = (row for row in session.compactions if row.is_open and _is_due(row, now_ms))
    return min((row.next_attempt_at_ms for row in ready), default=None)


def _due_at(session: Session) -> int | None:
    leases = [row.lease_until_ms for row in session.compactions if row.lease_until_ms is not None]
    return min(
        leases or [row.next_attempt_at_ms for row in session.compactions if row.is_open],
        default=None,
    )


def _stored(
    session: Session, job: Job, version: Version, base: int | None, now_ms: int
) -> StoredSummary:
    draft, number = version.draft, len(session.summaries) + 1
    covered = list(_spoken_for(session, number))
    return StoredSummary(
        number, base, draft.kind, version.style, draft.model, draft.text, json.dumps(draft.sections), json.dumps(draft.ledger),
        version.tokens, version.text_tokens, version.cuts, covered[0], covered[-1], len(covered), job.compaction_ids[-1], now_ms,
    )  # fmt: skip


def _spoken_for(session: Session, version: int) -> Iterable[str]:
    by = {
        message_id: row.compaction_id
        for row in session.compactions
        if row.status != "restored"
        for message_id in row.evicted
    }
    for one in session.kept:
        if by.get(one.message.message_id) in session.speaks_for[version]:
            yield one.message.message_id
