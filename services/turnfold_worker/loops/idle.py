"""Eviction from sessions that have become idle."""

from collections.abc import Callable

import structlog

from turnfold.ports.ingest import IdleStore, Installation
from turnfold_worker.loops.polling import PollingLoop

log = structlog.get_logger()


class IdleEvictor(PollingLoop):
    """Has sessions evicted from that nobody speaks in any more."""

    poll_seconds = 5.0
    at_once = 20

    def __init__(
        self,
        *,
        store: IdleStore,
        installation: Installation,
        now_ms: Callable[[], int],
        on_evicted: Callable[[], object],
    ) -> None:
        super().__init__()
        self._store = store
        self._installation = installation
        self._now_ms = now_ms
        self._on_evicted = on_evicted

    async def work(self) -> float:
        """Look at the sessions that have fallen idle."""
        while await self._store.evict_idle(
            limit=self.at_once, installation=self._installation, now_ms=self._now_ms()
        ):
            self._on_evicted()
        at_ms = await self._store.next_idle_ms()
        if at_ms is None:
            return self.poll_seconds
        return min(self.poll_seconds, max(0.05, (at_ms - self._now_ms()) / 1000))
