"""Catch-up: store acknowledged events that the database lacks."""

import asyncio
from functools import partial

import structlog

from turnfold.bus.stream_state import ack_floor, last_sequence, read_events
from turnfold.errors import StartError, Unavailable
from turnfold.operations.ingest.decode import Delivery
from turnfold.store.database.instance_lock import refuse_older_stream
from turnfold.store.ingest.ingest import SqlIngestStore
from turnfold_worker.context import WorkerContext
from turnfold_worker.loops.ingest import IngestLoop
from turnfold_worker.loops.polling import PollingLoop
from turnfold_worker.receiver.wire import BATCH

log = structlog.get_logger()

DOUBTS = 7
"""Rounds in a row after which a stream counts as older than the database.

A server that lost its cluster takes itself for the leader of the stream for up to ten seconds.
"""


class CatchUp(PollingLoop):
    """Store events again that the consumer has acknowledged and the database lacks.

    That happens after the database was restored from a backup or replaced by an empty one. The
    events are read from the stream in order. One worker at a time stores a batch of them, so
    that a history is rebuilt in its original order.
    """

    poll_seconds = 2.0

    def __init__(
        self, context: WorkerContext, *, store: SqlIngestStore, ingest: IngestLoop
    ) -> None:
        super().__init__()
        self._store = store
        self._ingest = ingest
        self._client = context.client
        self._decode = context.decode
        self._most = BATCH
        self._begin_at = 1
        self._database = context.database
        self._confirmed: int | None = None
        """The connection over which the stream was found to be as new as the database."""
        self._doubts = 0

    async def work(self) -> float:
        """Store all missing events, then let the ingest loop begin."""
        if self._ingest.refusal is not None:
            raise self._ingest.refusal
        if not await self._confirm_stream():
            return self.poll_seconds
        next_seq, events = self._begin_at, 0
        self._begin_at = 1
        while (batch := await self._store_batch(next_seq)) is not None:
            next_seq, stored = batch
            events += stored
        if events:
            log.warning("events.caught_up", events=events, up_to_seq=next_seq - 1)
        self._ingest.may_begin.set()
        return self.poll_seconds

    async def _confirm_stream(self) -> bool:
        """Return whether the stream has all stored events; after a reconnection it may be older.

        Raises:
            StartError: it has not, for several rounds.
        """
        connection = self._client.stats["reconnects"]
        if connection == self._confirmed:
            return True
        try:
            await refuse_older_stream(
                self._database, partial(last_sequence, self._client), seconds=0
            )
        except StartError:
            self._doubts += 1
            if self._doubts < DOUBTS:
                return False
            raise
        self._confirmed, self._doubts = connection, 0
        return True

    async def _store_batch(self, start_seq: int) -> tuple[int, int] | None:
        """Store the next missing events from `start_seq` on.

        Return the sequence to continue from and the number of events, or None at the end.
        """
        async with self._store.backfill_lock():
            # The order matters: events below the floor were committed before it was read.
            acknowledged = await ack_floor(self._client)
            gaps = await self._store.gaps(up_to=acknowledged)
            missing = ((max(first, start_seq), min(last, acknowledged)) for first, last in gaps)
            gap = next(((first, last) for first, last in missing if first <= last), None)
            if gap is None:
                return None
            events = await read_events(
                self._client, first_seq=gap[0], last_seq=gap[1], most=self._most
            )
            if not events:
                # GapFinder checks whether the stream still holds these events.
                return gap[1] + 1, 0
            try:
                batch = await asyncio.to_thread(
                    self._decode, [Delivery(*event) for event in events]
                )
                await self._ingest.report(await self._ingest.store(batch))
            except StartError:
                raise
            except Exception as error:
                # One event may be to blame. Alone, it is passed over until the next round.
                next_seq = gap[0] if len(events) > 1 else events[0].stream_seq + 1
                self._most = 1
                if isinstance(error, Unavailable):
                    self._begin_at = next_seq
                    raise
                log.exception("batch.crashed")
                return next_seq, 0
            self._most = min(2 * self._most, BATCH)
            return events[-1].stream_seq + 1, len(events)
