"""Compaction: claim due jobs and write their summaries."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable

import structlog

from turnfold.core.summary.fair_share import JobSlots
from turnfold.errors import LostLease, Unavailable
from turnfold.observability.tracing import span
from turnfold.operations.compact.compact import (
    RENEWALS,
    Committed,
    Outcome,
    Retry,
    RolledBack,
    compact,
)
from turnfold.ports.compact import Job
from turnfold.process.clock import now_ms
from turnfold.process.tasks import cancel_and_wait
from turnfold.store.compact.jobs.store import SqlJobStore
from turnfold_worker.context import WorkerContext
from turnfold_worker.loops.polling import YIELD_POLL_SECONDS, BusyDeferral, PollingLoop
from turnfold_worker.loops.wakeups import Wakeups

log = structlog.get_logger()


class Compactor(PollingLoop):
    """Run due jobs, some at once and shared fairly between agents."""

    def __init__(
        self,
        context: WorkerContext,
        *,
        store: SqlJobStore,
        wakeups: Wakeups,
        is_busy: Callable[[], bool],
    ) -> None:
        super().__init__(woken=wakeups.compactor)
        self._store = store
        self._wakeups = wakeups
        self._deferral = BusyDeferral(is_busy)
        self._summarizer = context.summarizer
        self._config = context.summary_config
        self._installation = context.installation
        self._concurrency = context.settings.summary_concurrency
        self._metrics = context.telemetry.metrics
        self._running: dict[asyncio.Task[None], Job] = {}
        self._worked_at_ms = now_ms()

    async def run(self, *, on_failure: Callable[[str], object]) -> None:
        """Work until cancelled. Other workers take over the running jobs."""
        try:
            await super().run(on_failure=on_failure)
        finally:
            await cancel_and_wait(*self._running)

    async def work(self) -> float:
        """Claim a job for each free slot."""
        await self._renew_after_sleep()
        slots = JobSlots.of(
            self._concurrency, Counter(job.key.agent_id for job in self._running.values())
        )
        if slots.free <= 0:
            return self.poll_seconds
        if self._deferral.should_wait:
            return YIELD_POLL_SECONDS
        jobs = await self._store.claim(
            slots,
            lease_ms=int(1000 * self._config.lease_seconds),
            now_ms=now_ms(),
            installation=self._installation,
        )
        for job in jobs:
            task = asyncio.create_task(self._run_job(job), name=f"compact-{job.compaction_ids[-1]}")
            self._running[task] = job
            task.add_done_callback(self._end_job)
        # A job that ends wakes this loop.
        if self._running or (due_ms := await self._store.next_due_ms()) is None:
            return self.poll_seconds
        return min(self.poll_seconds, max(0.01, (due_ms - now_ms()) / 1000))

    async def _renew_after_sleep(self) -> None:
        """Renew the leases of running jobs if the machine slept, or this would claim them again."""
        at_ms, lease_ms = now_ms(), int(1000 * self._config.lease_seconds)
        has_slept = at_ms - self._worked_at_ms > lease_ms / RENEWALS
        for job in list(self._running.values()) if has_slept else ():
            with contextlib.suppress(LostLease):
                await self._store.renew(job, lease_ms=lease_ms, now_ms=at_ms)
        self._worked_at_ms = at_ms

    def _end_job(self, task: asyncio.Task[None]) -> None:
        job = self._running.pop(task)
        self.wake()
        self._wakeups.after_job(job)

    async def _run_job(self, job: Job) -> None:
        began = time.monotonic()
        compaction_id = job.compaction_ids[-1]
        try:
            outcome = await self._attempt(job)
        except Unavailable as error:
            self._metrics.attempted("delayed")
            log.warning("compaction.delayed", compaction_id=compaction_id, error=str(error))
            return
        except Exception:
            # The lease expires, and then any worker may claim the job again.
            self._metrics.attempted("crashed")
            log.exception("compaction.crashed", compaction_id=compaction_id)
            return
        self._metrics.attempted(outcome)
        _log_outcome(job, outcome, seconds=round(time.monotonic() - began, 3))

    async def _attempt(self, job: Job) -> Outcome:
        """Make one attempt, in the trace of the event that opened the job."""
        # The newest event decides the trace; spans of the others are linked to it.
        *others, parent = job.traces or (None,)
        compaction_id = str(job.compaction_ids[-1])
        with span(
            "compact",
            kind="consumer",
            parent=parent,
            others=others,
            compaction_id=compaction_id,
            attempt=job.attempt,
        ) as compacting:
            outcome = await compact(
                job,
                store=self._store,
                summarizer=self._summarizer,
                config=self._config,
                count=self._installation.count,
                now_ms=now_ms,
            )
            compacting.set_attributes(
                outcome=type(outcome).__name__, reason=getattr(outcome, "reason", None)
            )
            return outcome


def _log_outcome(job: Job, outcome: Outcome, *, seconds: float) -> None:
    bound = log.bind(compaction_id=job.compaction_ids[-1], seconds=seconds)
    match outcome:
        case Committed(version=version, reason=reason):
            bound.info("summary.committed", version=version, reason=reason)
        case RolledBack(reason=reason):
            bound.warning("compaction.rolled_back", reason=reason)
        case Retry(reason=reason):
            bound.warning("attempt.failed", reason=reason, attempt=job.attempt)
        case _:
            bound.info("summary.discarded")
