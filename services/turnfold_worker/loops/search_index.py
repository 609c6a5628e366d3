"""Indexing of stored messages for search."""

import time
from collections.abc import Callable

import structlog

from turnfold.ports.ingest import SearchIndex
from turnfold_worker.loops.polling import PollingLoop

log = structlog.get_logger()


class Indexer(PollingLoop):
    """Has messages indexed for search, a few at a time, while no full batch of events is in hand."""

    longest_pause_seconds = 10.0

    def __init__(self, *, store: SearchIndex, is_busy: Callable[[], bool]) -> None:
        super().__init__()
        self._store = store
        self._is_busy = is_busy
        self._since = time.monotonic()

    async def work(self) -> float:
        """Index what waits. What is not indexed yet is found all the same, so events go first; but no backlog stops it for good.

        What comes meanwhile is left for the next look: a transaction for each turn would cost more than what is in it.
        """
        while not self._is_busy() or time.monotonic() - self._since > self.longest_pause_seconds:
            self._since = time.monotonic()
            if not await self._store.index_some():
                break
        return self.poll_seconds
