"""Hints of query servers: remember the budgets of windows, and evict where they are too small."""

from collections.abc import Callable

from nats.aio.msg import Msg

from turnfold.bus.hints import PendingHints
from turnfold.contracts.hints import read_hint
from turnfold.contracts.subjects import ASKED, WORKER_QUEUE
from turnfold.nats_client.connection import NatsClient
from turnfold.process.clock import now_ms
from turnfold.store.ingest.budgets import SqlBudgetStore
from turnfold_worker.context import WorkerContext
from turnfold_worker.loops.polling import YIELD_POLL_SECONDS, BusyDeferral, PollingLoop
from turnfold_worker.loops.wakeups import Wakeups


class BudgetFollower(PollingLoop):
    """Act on hints, some sessions per transaction, while ingest is not busy."""

    poll_seconds = 60.0
    batch_sessions = 50

    def __init__(
        self,
        context: WorkerContext,
        *,
        store: SqlBudgetStore,
        wakeups: Wakeups,
        is_busy: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._store = store
        self._installation = context.installation
        self._wakeups = wakeups
        self._deferral = BusyDeferral(is_busy)
        self._pending = PendingHints()

    async def listen(self, client: NatsClient) -> None:
        """Receive hints. All workers share one queue group, so that one of them gets each."""
        await client.subscribe(f"{ASKED}.*.*", queue=WORKER_QUEUE, cb=self._on_hint)

    async def work(self) -> float:
        """Act on the hints that wait. If the database fails, those at hand are lost."""
        while len(self._pending):
            if self._deferral.should_wait:
                return YIELD_POLL_SECONDS
            opened = await self._store.follow(
                self._pending.take(self.batch_sessions),
                installation=self._installation,
                now_ms=now_ms(),
            )
            if opened:
                self._wakeups.after_new_jobs()
        return self.poll_seconds

    async def _on_hint(self, message: Msg) -> None:
        read = read_hint(message.subject, message.data)
        if read is not None and self._pending.add(*read):
            self.wake()
