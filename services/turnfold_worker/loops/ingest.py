"""The ingest loop: store batches from the receiver."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import structlog

from turnfold.contracts.subjects import INGESTED
from turnfold.errors import StartError, Unavailable
from turnfold.observability.tracing import is_enabled, span
from turnfold.operations.ingest.decode import DecodedBatch
from turnfold.operations.ingest.ingest import ingest
from turnfold.ports.ingest import DecodedEvent, IngestResult, IngestStore
from turnfold_worker.context import WorkerContext
from turnfold_worker.loops.polling import RETRY_SECONDS
from turnfold_worker.receiver.parent import ReceivedBatch

log = structlog.get_logger()

BUSY_EVENTS = 1_000
"""Background loops defer their work while the receiver holds at least this many events."""
FULL_EVENTS = 200
"""A batch of so many events gains little from waiting for others."""


class IngestLoop:
    """Store batches from the receiver and acknowledge them after the commit.

    `on_stored` is called after each commit, from the event loop.
    """

    def __init__(
        self,
        context: WorkerContext,
        *,
        store: IngestStore,
        on_stored: Callable[[IngestResult], object],
    ) -> None:
        self._receiver = context.receiver
        self._client = context.client
        self._installation = context.installation
        self._metrics = context.telemetry.metrics
        self._is_single = context.database.is_sqlite
        self._store = store
        self._on_stored = on_stored
        self._running: set[asyncio.Task[None]] = set()
        self._ended = 0
        self.may_begin = asyncio.Event()
        """Set once no older events are missing. New events must not be stored before them."""
        self.refusal: StartError | None = None
        """The reason this process can store no more, if any; `CatchUp` ends the worker with it."""

    def is_busy(self) -> bool:
        """Return whether background work should be deferred."""
        return self._receiver.held >= BUSY_EVENTS

    @property
    def ended(self) -> int | None:
        """The number of batches that have ended, or None while no batch is running."""
        return self._ended if self._running else None

    async def run(self) -> None:
        """Store batches until cancelled. `finish` ends the work."""
        await self._receiver.start()
        await self.may_begin.wait()
        self._receiver.receive()
        while True:
            # The receiver has only a few batches without a reply at once, which bounds these tasks.
            task = asyncio.create_task(self._process(await self._gather()), name="batch")
            self._running.add(task)
            task.add_done_callback(self._end_batch)

    async def finish(self) -> None:
        """Finish the running batches; those that were received and not begun are redelivered.

        This does not belong to `run`, which may be cancelled repeatedly: a batch that is cancelled
        during its commit would be stored and redelivered.
        """
        await self._receiver.stop()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._receiver.close()

    def _end_batch(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        # Even after an error: the watchdog wants to see that batches end.
        self._ended += 1
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("batch.crashed", exc_info=error)

    async def _gather(self) -> Sequence[ReceivedBatch]:
        """Take batches to store in one transaction.

        SQLite stores one batch at a time, and the disk takes as long for one event as for many. So
        a small batch that cannot be stored yet waits here, and takes along what comes meanwhile.
        """
        together = [await self._receiver.take()]
        try:
            if self._is_single and self._running and together[0].events < FULL_EVENTS:
                await asyncio.wait(self._running)
                together += self._receiver.take_more(FULL_EVENTS)
        except asyncio.CancelledError:
            # At once: `stop` does not see batches that were taken, and the receiver would return
            # them only when it ends.
            for received in together:
                received.nack()
            raise
        return together

    async def _process(self, together: Sequence[ReceivedBatch]) -> None:
        """Store batches and acknowledge them; if that is impossible now, have them redelivered."""
        batch = DecodedBatch.empty()
        for received in together:
            batch.add(received.message.batch)
        try:
            result = await self.store(batch)
        except BaseException as error:
            # Even if cancelled: if the commit takes place, the redelivered events are duplicates.
            for received in together:
                received.nack(delay_seconds=RETRY_SECONDS)
            if isinstance(error, StartError):
                self.refusal = error
            if not isinstance(error, Unavailable | StartError):
                raise
            log.warning("batch.requeued", events=len(batch.payloads), error=str(error))
            self._metrics.returned.inc()
            return
        # Only now: an event that is acknowledged and not committed would be lost.
        for received in together:
            received.acknowledge()
        await self.report(result)

    async def store(self, batch: DecodedBatch) -> IngestResult:
        """Store a batch, with a span for each event that carries a trace.

        Raises:
            Unavailable: nothing was stored; the same batch may be tried again.
            StartError: nothing was stored; only a new process can continue.
        """
        # An older copy of the stream gives new events the numbers that a newer copy has for others.
        # If they were stored, those others would be lost.
        if self.refusal is not None:
            raise self.refusal
        began = time.perf_counter()
        with ExitStack() as spans:
            if is_enabled():
                batch = batch._replace(events=[_with_span(event, spans) for event in batch.events])
            result = await ingest(batch, store=self._store, installation=self._installation)
        self._metrics.stored(
            result, events=len(batch.payloads), seconds=time.perf_counter() - began
        )
        return result

    async def report(self, result: IngestResult) -> None:
        """Wake the query servers and the loops that wait for a commit."""
        # First, because agents wait. A lost notice delays them only until their next look.
        await self._client.publish(INGESTED, b"")
        self._on_stored(result)
        if result.dead_letters:
            log.warning("events.dead_lettered", dead_letters=result.dead_letters)
        log.debug(
            "batch.stored",
            events=result.events,
            messages=result.messages,
            evictions=result.evictions,
        )


def _with_span(event: DecodedEvent, spans: ExitStack) -> DecodedEvent:
    """Open a span in the trace of an event, if it has one."""
    if event.trace is None:
        return event
    ingesting = spans.enter_context(
        span("ingest", kind="consumer", parent=event.trace, stream_seq=event.stream_seq)
    )
    return event._replace(trace=ingesting.trace)
