"""Campaigns: regenerate the summaries of many sessions, a few at a time."""

from collections.abc import Callable

import structlog

from turnfold.ports.admin import CampaignStore
from turnfold.ports.ingest import Installation
from turnfold_worker.loops.polling import PollingLoop

log = structlog.get_logger()


class CampaignRunner(PollingLoop):
    """Opens the next sessions of regenerations that go through many."""

    def __init__(
        self,
        *,
        store: CampaignStore,
        installation: Installation,
        now_ms: Callable[[], int],
        on_opened: Callable[[], object],
    ) -> None:
        super().__init__()
        self._store = store
        self._installation = installation
        self._now_ms = now_ms
        self._on_opened = on_opened

    async def work(self) -> float:
        """Open as many as there is room for."""
        if await self._store.advance(installation=self._installation, now_ms=self._now_ms()):
            self._on_opened()
        return self.poll_seconds
