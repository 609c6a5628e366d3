"""Indexing of stored messages for search."""

import asyncio
from collections.abc import Callable

from turnfold.store.ingest.word_index.search_index import SqlSearchIndex
from turnfold_worker.loops.polling import BusyDeferral, PollingLoop


class Indexer(PollingLoop):
    """Index messages for search in small transactions, while ingest is not busy."""

    deferral_seconds = 10.0
    gathering_seconds = 0.1
    """Messages that arrive within this time are indexed in one transaction."""

    def __init__(
        self, *, store: SqlSearchIndex, woken: asyncio.Event, is_busy: Callable[[], bool]
    ) -> None:
        super().__init__(woken=woken)
        self._store = store
        self._deferral = BusyDeferral(is_busy, self.deferral_seconds)

    async def work(self) -> float:
        """Index the messages that wait.

        Search also finds messages that are not indexed, so ingest goes first, but a backlog
        delays indexing for at most `deferral_seconds`. A recall block is decided once in a turn,
        so it should find the messages before it. But one transaction per event costs more than
        the indexing.
        """
        await asyncio.sleep(self.gathering_seconds)
        while not self._deferral.should_wait and await self._store.index_some():
            pass
        return self.poll_seconds
