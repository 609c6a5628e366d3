"""Campaigns: regenerate the summaries of many sessions, a few at a time."""

from turnfold.process.clock import now_ms
from turnfold.store.compact.campaigns import SqlCampaignStore
from turnfold_worker.context import WorkerContext
from turnfold_worker.loops.polling import PollingLoop
from turnfold_worker.loops.wakeups import Wakeups


class CampaignRunner(PollingLoop):
    """Open jobs for the next sessions of running campaigns."""

    def __init__(
        self, context: WorkerContext, *, store: SqlCampaignStore, wakeups: Wakeups
    ) -> None:
        super().__init__(woken=wakeups.campaigns)
        self._store = store
        self._installation = context.installation
        self._wakeups = wakeups

    async def work(self) -> float:
        """Open as many jobs as the campaigns may have at once."""
        if await self._store.advance(installation=self._installation, now_ms=now_ms()):
            self._wakeups.after_due_jobs()
        return self.poll_seconds
