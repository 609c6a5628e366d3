"""Compaction rows as jobs in memory: leases, fences, and commits that compare before they swap."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from turnfold.core.eviction import Due, Evict, Eviction, Trigger, decide, kept_within, load_of
from turnfold.core.precedence import Wishes
from turnfold.core.presets import Policy
from turnfold.core.sources import Previous
from turnfold.errors import LostLease
from turnfold.ports import Ending, Evicted, Job, JobInput, StoredSummary, Version
from turnfold.testing.intake import tell_eviction
from turnfold.testing.kept import Compaction, Memory, Session
from turnfold.testing.usage import Learning


class MemoryJobs:
    """See `turnfold.ports.JobStore`."""

    _memory: Memory

    async def claim(self, *, limit: int, lease_ms: int, now_ms: int, policy: Callable[[Wishes, Wishes], Policy]) -> Sequence[Job]:
        """Take sessions whose jobs are due: all their open rows, under one lease each."""
        waiting = [(due_ms, session) for session in self._memory.sessions.values() if (due_ms := _due_since(session, now_ms)) is not None]
        waiting.sort(key=lambda one: (one[0], one[1].sid))
        return [self._take(session, lease_ms, now_ms, policy) for _, session in waiting[:limit]]

    def _take(self, session: Session, lease_ms: int, now_ms: int, policy: Callable[[Wishes, Wishes], Policy]) -> Job:
        rows = [row for row in session.compactions if row.is_open]
        rows = [row for row in rows if not row.is_plan] or rows
        fence, attempt = 1 + max(row.fence for row in rows), 1 + max(row.attempts for row in rows)
        for row in rows:
            row.status, row.fence, row.attempts, row.lease_until_ms = "running", fence, attempt, now_ms + lease_ms
        ids = tuple(row.compaction_id for row in rows)
        self._memory.seal(session, "summary_start", at_ms=now_ms, compaction_id=ids[-1], attempt=attempt)
        in_force = policy(self._memory.wishes_of(session.key.agent_id), session.wishes)
        newest = rows[-1]
        plan = Due(Trigger(newest.trigger), newest.budget_tokens) if newest.is_plan else None
        return Job(session.key, session.sid, ids, fence, attempt, session.version, in_force, session.model, plan)

    async def load(self, job: Job, *, now_ms: int) -> JobInput:
        """Read what a claimed job summarises."""
        session = self._memory.sessions[job.key]
        leaving = _planned(session, job, job.planned, now_ms) if job.planned else None
        chosen = {one.position for one in leaving.evicted} if leaving else set[int]()
        evicted = [
            Evicted(one.message, one.is_error, one.body)
            for one in session.kept
            if one.message.position in chosen or one.message.compaction_id in job.compaction_ids
        ]
        base = next((one for one in session.summaries if one.version == job.base_version), None)
        previous = Previous(base.text, json.loads(base.sections), tuple(json.loads(base.ledger))) if base else None
        requests = [one.body for one in session.live if one.message.is_request]
        request = requests[-1] if requests else None
        if base is None:
            return JobInput(tuple(evicted), None, request, leaving)
        policy, depth = job.policy, session.depths[base.version]
        covered = [row for row in session.compactions if row.is_covered]
        is_due = policy.rebuild_every_versions and depth >= policy.rebuild_every_versions
        if is_due and sum(row.tokens_evicted for row in covered) <= policy.rebuild_max_tokens:
            again = {row.compaction_id for row in covered} | set(job.compaction_ids)
            evicted = [
                Evicted(one.message, one.is_error, one.body)
                for one in session.kept
                if one.message.position in chosen or one.message.compaction_id in again
            ]
            return JobInput(tuple(evicted), None, request, leaving)
        return JobInput(tuple(evicted), previous, request, leaving, depth + 1)

    async def renew(self, job: Job, *, lease_ms: int, now_ms: int) -> None:
        """Keep the lease."""
        for row in self._rows(job):
            row.lease_until_ms = now_ms + lease_ms

    async def commit(self, job: Job, version: Version, *, leaving: Eviction | None = None, reason: str | None, now_ms: int) -> int:
        """Put a new version in force over its base; the number it got."""
        session, rows = self._memory.sessions[job.key], self._rows(job)
        if session.version != job.base_version:
            raise LostLease(job.compaction_ids[-1])
        if leaving is not None:
            self._leave(session, rows[-1], leaving)
        before, number = rows[0].tokens_before, len(session.summaries) + 1
        for row in rows:
            row.status, row.is_covered, row.version, row.reason = "committed", True, number, reason
            row.lease_until_ms, row.finished_at_ms = None, now_ms
            row.tokens_after = session.live_load.tokens + version.tokens
        session.summaries.append(_stored(session, job, version, number, now_ms))
        session.version = number
        session.depths[number] = version.depth
        session.gauge = session.gauge._replace(factor=Learning(self._memory).factor(session))
        session.revision += 1
        newest, after = job.compaction_ids[-1], session.window_tokens
        told = {"tokens_before": before, "tokens_after": after}
        self._memory.seal(
            session, "summary_done", at_ms=now_ms, compaction_id=newest, reason=reason, tokens_before=before, tokens_after=after
        )
        self._memory.tell(session, "summary.updated", version=number, kind=version.draft.kind, **told)
        return number

    def _leave(self, session: Session, row: Compaction, leaving: Eviction) -> None:
        ids = {message.message_id for message in leaving.evicted}
        if not ids <= {one.message.message_id for one in session.live}:
            raise LostLease(row.compaction_id)
        leaving = replace(leaving, load=session.live_load)
        row.tokens_before, row.tokens_evicted = session.window_tokens, sum(message.tokens for message in leaving.evicted)
        row.evicted, row.is_plan = frozenset(ids), False
        session.gauge = session.gauge.evicted(by_report=leaving.due.trigger is Trigger.USAGE, factor=session.gauge.factor)
        tell_eviction(self._memory, session, row, leaving)

    async def end(self, job: Job, *, ending: Ending, reason: str | None, detail: str, now_ms: int) -> None:
        """End a planned compaction that comes to nothing."""
        session, newest = self._memory.sessions[job.key], job.compaction_ids[-1]
        for row in self._rows(job):
            row.status, row.lease_until_ms, row.reason, row.finished_at_ms = str(ending), None, reason, now_ms
        phase = {Ending.REJECTED: "rejected", Ending.FAILED: "rollback", Ending.STALE: "stale"}[ending]
        self._memory.seal(session, phase, at_ms=now_ms, compaction_id=newest, reason=reason, detail=detail)
        if ending is not Ending.STALE:
            told = {"compaction_id": newest, "reason": reason, "attempts": job.attempt, "next_attempt_at": None}
            self._memory.tell(session, "compaction.failed", **told)

    async def give_back(self, job: Job, *, reason: str, detail: str, retry_at_ms: int, now_ms: int) -> None:
        """Return a job whose attempt failed, to be tried again."""
        session, newest = self._memory.sessions[job.key], job.compaction_ids[-1]
        for row in self._rows(job):
            row.status, row.lease_until_ms, row.reason, row.next_attempt_at_ms = "pending", None, reason, retry_at_ms
        self._memory.seal(session, "attempt_failed", at_ms=now_ms, compaction_id=newest, reason=reason, detail=detail)
        told = {"compaction_id": newest, "reason": reason, "attempts": job.attempt, "next_attempt_at": retry_at_ms}
        self._memory.tell(session, "compaction.failed", **told)

    async def next_due_ms(self) -> int | None:
        """When the next job is due; None when there is none."""
        return min((due_ms for session in self._memory.sessions.values() if (due_ms := _due_at(session)) is not None), default=None)

    def _rows(self, job: Job) -> list[Compaction]:
        """The rows of a job that is still this worker's."""
        rows = [row for row in self._memory.sessions[job.key].compactions if row.compaction_id in job.compaction_ids]
        if any(row.status != "running" or row.fence != job.fence for row in rows):
            raise LostLease(job.compaction_ids[-1])
        return rows


def _planned(session: Session, job: Job, due: Due, now_ms: int) -> Eviction | None:
    live = [one.message for one in session.live]
    decision = decide(live, kept_within(job.policy, due), due.trigger, now_ms=now_ms)
    return Eviction(due, decision.evicted, len(live), load_of(live), now_ms) if isinstance(decision, Evict) else None


def _due_since(session: Session, now_ms: int) -> int | None:
    """Since when a session's job waits for a worker, None when none may take it."""
    if any(row.is_leased(now_ms) for row in session.compactions):
        return None
    ready = (row for row in session.compactions if row.status == "running" or (row.is_open and row.next_attempt_at_ms <= now_ms))
    return min((row.next_attempt_at_ms for row in ready), default=None)


def _due_at(session: Session) -> int | None:
    leases = [row.lease_until_ms for row in session.compactions if row.lease_until_ms is not None]
    return min(leases or [row.next_attempt_at_ms for row in session.compactions if row.is_open], default=None)


def _stored(session: Session, job: Job, version: Version, number: int, now_ms: int) -> StoredSummary:
    draft = version.draft
    covered = [one for one in session.kept if (row := session.evicted_by.get(one.message.message_id)) is not None and row.is_covered]
    return StoredSummary(
        number, job.base_version, draft.kind, version.style, draft.model, draft.text, json.dumps(draft.sections), json.dumps(draft.ledger),
        version.tokens, version.text_tokens, version.cuts, covered[0].message.message_id, covered[-1].message.message_id, len(covered),
        job.compaction_ids[-1], now_ms,
    )  # fmt: skip
