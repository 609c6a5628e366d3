"""Indexing of stored messages for search."""

import time
from collections.abc import Callable

from turnfold.ports.ingest import SearchIndex
from turnfold_worker.loops.polling import PollingLoop


class Indexer(PollingLoop):
    """Index messages for search in small transactions, while ingest is not busy."""

    max_pause_seconds = 10.0

    def __init__(self, *, store: SearchIndex, is_busy: Callable[[], bool]) -> None:
        super().__init__()
        self._store = store
        self._is_busy = is_busy
        self._since = time.monotonic()

    async def work(self) -> float:
        """Index the messages that wait.

        Search also finds messages that are not indexed, so ingest goes first, but a backlog
        delays indexing for at most `max_pause_seconds`. Messages that arrive during the call
        are left for the next one: one transaction per turn costs more than the indexing.
        """
        while not self._is_busy() or time.monotonic() - self._since > self.max_pause_seconds:
            self._since = time.monotonic()
            if not await self._store.index_some():
                break
        return self.poll_seconds
