"""Compaction: claim due jobs and write their summaries."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable

import structlog

from turnfold.core.summary.fair_share import JobSlots
from turnfold.core.text.tokens import Count
from turnfold.errors import Unavailable
from turnfold.observability.tracing import span
from turnfold.operations.compact.attempt import SummaryConfig
from turnfold.operations.compact.compact import Committed, Outcome, Retry, RolledBack, compact
from turnfold.ports.compact import Job, JobStore, Summarizer
from turnfold.ports.ingest import PolicyResolver
from turnfold.process.tasks import cancel_and_wait
from turnfold_worker.loops.polling import YIELDS_AGAIN_SECONDS, BusyDeferral, PollingLoop

log = structlog.get_logger()


class Compactor(PollingLoop):
    """Claims due jobs, a few at once and no agent's alone, and has them written."""

    def __init__(
        self,
        *,
        store: JobStore,
        summarizer: Summarizer,
        writing: SummaryConfig,
        count: Count,
        policy: PolicyResolver,
        now_ms: Callable[[], int],
        concurrency: int,
        is_busy: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._store = store
        self._summarizer = summarizer
        self._writing = writing
        self._count = count
        self._policy = policy
        self._now_ms = now_ms
        self._concurrency = concurrency
        self._events = BusyDeferral(is_busy)
        self._running: dict[asyncio.Task[None], Job] = {}
        self.on_done: Callable[[Job], object] = lambda _: None
        self.on_attempt: Callable[[Outcome | str], object] = lambda _: None

    async def run(self) -> None:
        """Work until cancelled; running jobs are left to whoever comes next."""
        try:
            await super().run()
        finally:
            await cancel_and_wait(*self._running)

    async def work(self) -> float:
        """Claim as many jobs as there are free places."""
        places = JobSlots.of(
            self._concurrency, Counter(job.key.agent_id for job in self._running.values())
        )
        if places.free <= 0:
            return self.poll_seconds
        if self._events.go_first:
            return YIELDS_AGAIN_SECONDS
        lease_ms = int(1000 * self._writing.lease_seconds)
        for job in await self._store.claim(
            places, lease_ms=lease_ms, now_ms=self._now_ms(), policy=self._policy
        ):
            task = asyncio.create_task(self._compact(job), name=f"compact-{job.compaction_ids[-1]}")
            self._running[task] = job
            task.add_done_callback(self._finished)
        # Whoever finishes looks again.
        if self._running or (due_ms := await self._store.next_due_ms()) is None:
            return self.poll_seconds
        return min(self.poll_seconds, max(0.01, (due_ms - self._now_ms()) / 1000))

    def _finished(self, task: asyncio.Task[None]) -> None:
        job = self._running.pop(task)
        self.wake()
        self.on_done(job)

    async def _compact(self, job: Job) -> None:
        began = time.monotonic()
        try:
            outcome = await self._traced(job)
        except Unavailable as error:
            self.on_attempt("delayed")
            log.warning(
                "compaction.delayed", compaction_id=job.compaction_ids[-1], error=str(error)
            )
            return
        except Exception:
            # The lease runs out and the job is tried again, by whoever comes first.
            self.on_attempt("crashed")
            log.exception("compaction.crashed", compaction_id=job.compaction_ids[-1])
            return
        self.on_attempt(outcome)
        seconds = round(time.monotonic() - began, 3)
        match outcome:
            case Committed(version=version, reason=reason):
                log.info(
                    "summary.committed",
                    compaction_id=job.compaction_ids[-1],
                    version=version,
                    reason=reason,
                    seconds=seconds,
                )
            case RolledBack(reason=reason):
                log.warning(
                    "compaction.rolled_back",
                    compaction_id=job.compaction_ids[-1],
                    reason=reason,
                    seconds=seconds,
                )
            case Retry(reason=reason):
                log.warning(
                    "attempt.failed",
                    compaction_id=job.compaction_ids[-1],
                    reason=reason,
                    attempt=job.attempt,
                    seconds=seconds,
                )
            case _:
                log.info("summary.discarded", compaction_id=job.compaction_ids[-1], seconds=seconds)

    async def _traced(self, job: Job) -> Outcome:
        """One attempt, in the trace of the event that set it off."""
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
                writing=self._writing,
                count=self._count,
                now_ms=self._now_ms,
            )
            compacting.set_attributes(
                outcome=type(outcome).__name__, reason=getattr(outcome, "reason", None)
            )
            return outcome
