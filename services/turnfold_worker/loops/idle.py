"""Eviction from sessions that have become idle."""

from turnfold.process.clock import now_ms
from turnfold.store.ingest.idle import SqlIdleStore
from turnfold_worker.context import WorkerContext
from turnfold_worker.loops.known import known_to_ms
from turnfold_worker.loops.polling import PollingLoop
from turnfold_worker.loops.wakeups import Wakeups


class IdleEvictor(PollingLoop):
    """Evict messages from sessions that have become idle."""

    poll_seconds = 5.0
    batch_sessions = 20

    def __init__(self, context: WorkerContext, *, store: SqlIdleStore, wakeups: Wakeups) -> None:
        super().__init__(woken=wakeups.idle)
        self._store = store
        self._context = context
        self._wakeups = wakeups

    async def work(self) -> float:
        """Evict from all sessions that are due, some per transaction; not while old events wait."""
        at_ms = now_ms()
        until_ms = await known_to_ms(self._context, now_ms=at_ms)
        if at_ms - until_ms > 1000 * self.poll_seconds:
            return self.poll_seconds
        while await self._store.evict_idle(
            limit=self.batch_sessions, installation=self._context.installation, now_ms=until_ms
        ):
            self._wakeups.after_due_jobs()
        next_ms = await self._store.next_idle_ms()
        if next_ms is None:
            return self.poll_seconds
        return min(self.poll_seconds, max(0.05, (next_ms - now_ms()) / 1000))
