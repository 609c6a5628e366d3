"""Retention: remove old stored events from the event stream."""

from turnfold.bus.retention import prune_stream
from turnfold.store.ingest.ingest import SqlIngestStore
from turnfold_worker.context import WorkerContext
from turnfold_worker.loops.polling import PollingLoop


class Pruner(PollingLoop):
    """Purge stored events from the stream after its retention period; 0 hours keep all."""

    poll_seconds = 600.0

    def __init__(self, context: WorkerContext, *, store: SqlIngestStore) -> None:
        super().__init__()
        self._store = store
        self._client = context.client
        self._hours = context.settings.stream_retention_hours

    async def work(self) -> float:
        """Purge the events that are stored and old enough."""
        if self._hours:
            await prune_stream(
                self._client, ingested_to=await self._store.ingested_to(), hours=self._hours
            )
        return self.poll_seconds
