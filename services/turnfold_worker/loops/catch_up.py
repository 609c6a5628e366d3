"""Catch-up: store acknowledged events that the database lacks."""

import asyncio
from collections.abc import Callable, Sequence

import structlog
from nats.aio.client import Client

from turnfold.bus.streams import ack_floor, read_events
from turnfold.errors import Unavailable
from turnfold.operations.ingest.decode import DecodedBatch, Delivery
from turnfold.ports.ingest import IngestStore
from turnfold_worker.loops.ingest import IngestLoop
from turnfold_worker.loops.polling import PollingLoop
from turnfold_worker.receiver.wire import BATCH

log = structlog.get_logger()


Weigh = Callable[[Sequence[Delivery]], DecodedBatch]


class CatchUp(PollingLoop):
    """Stores again what the consumer counts as acknowledged and the database lacks: it was restored from a backup, or is a new one.

    It is read from the stream in order, and one worker after the other takes a batch of it: a history is rebuilt as it came.
    """

    poll_seconds = 2.0

    def __init__(
        self, *, store: IngestStore, client: Client, intake: IngestLoop, weigh: Weigh
    ) -> None:
        super().__init__()
        self._store = store
        self._client = client
        self._intake = intake
        self._weigh = weigh

    async def work(self) -> float:
        """Go through what is missing, once."""
        at, events = 1, 0
        while (batch := await self._batch(at)) is not None:
            at, stored = batch
            events += stored
        if events:
            log.warning("events.caught_up", events=events, up_to_seq=at - 1)
        self._intake.may_begin.set()
        return self.poll_seconds

    async def _batch(self, at: int) -> tuple[int, int] | None:
        """Store the next events that are missing from here on: where to go on, and how many they were; None at the end."""
        async with self._store.backfill_lock():
            # In this order: what was acknowledged when we asked was committed before we look.
            acknowledged = await ack_floor(self._client)
            gaps = await self._store.gaps(up_to=acknowledged)
            missing = ((max(first, at), min(last, acknowledged)) for first, last in gaps)
            span = next(((first, last) for first, last in missing if first <= last), None)
            if span is None:
                return None
            found = await read_events(self._client, first_seq=span[0], last_seq=span[1], most=BATCH)
            if not found:
                # The Sweeper asks whether the stream holds them no more.
                return span[1] + 1, 0
            try:
                weighed = await asyncio.to_thread(
                    self._weigh, [Delivery(*event) for event in found]
                )
                await self._intake.tell(await self._intake.store(weighed))
            except Unavailable:
                raise
            except Exception:
                # As with any batch: the others go on, and this one is tried again.
                log.exception("batch.crashed")
            return found[-1].stream_seq + 1, len(found)
