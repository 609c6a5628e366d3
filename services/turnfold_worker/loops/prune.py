"""Retention: remove old stored events from the event stream."""

import structlog
from nats.aio.client import Client

from turnfold.bus.retention import prune_stream
from turnfold.ports.ingest import IngestStore
from turnfold_worker.loops.polling import PollingLoop

log = structlog.get_logger()


class Pruner(PollingLoop):
    """Has the stream forget events that have long been stored."""

    poll_seconds = 600.0

    def __init__(self, *, store: IngestStore, client: Client, hours: int) -> None:
        super().__init__()
        self._store = store
        self._client = client
        self._hours = hours

    async def work(self) -> float:
        """Purge what is old and stored."""
        if self._hours:
            await prune_stream(
                self._client, ingested_to=await self._store.ingested_to(), hours=self._hours
            )
        return self.poll_seconds
