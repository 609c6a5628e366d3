"""The ingest loop: store batches from the receiver."""

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack

import structlog
from nats.aio.client import Client

from turnfold.contracts.subjects import INGESTED
from turnfold.errors import Unavailable
from turnfold.observability.tracing import is_enabled, span
from turnfold.operations.ingest.decode import DecodedBatch
from turnfold.operations.ingest.ingest import ingest
from turnfold.ports.ingest import DecodedEvent, IngestResult, IngestStore, Installation
from turnfold_worker.metrics import WorkerMetrics
from turnfold_worker.receiver import Receiver
from turnfold_worker.receiver.parent import ReceivedBatch

log = structlog.get_logger()

BUSY = 1_000
"""With so many events in hand or waiting, what is not an event waits a little."""
RETRY_SECONDS = 1.0


class IngestLoop:
    """Batches from the receiver into the store; acknowledged after the commit, never before."""

    def __init__(
        self,
        *,
        receiver: Receiver,
        client: Client,
        store: IngestStore,
        installation: Installation,
        metrics: WorkerMetrics,
    ) -> None:
        self._receiver = receiver
        self._client = client
        self._store = store
        self._installation = installation
        self._metrics = metrics
        self._in_hand: set[asyncio.Task[None]] = set()
        self._ended = 0
        self.may_begin = asyncio.Event()
        """Set once no older events are missing, which new ones would overtake."""
        self.on_stored: Callable[[IngestResult], object] = lambda _: None

    @property
    def is_busy(self) -> bool:
        """Whether many events are in hand or wait."""
        return self._receiver.held >= BUSY

    @property
    def ended(self) -> int | None:
        """How many batches came to an end, good or bad; None while none is in hand."""
        return self._ended if self._in_hand else None

    async def run(self) -> None:
        """Take batches until cancelled; what is in hand then is finished first, and what is not comes again."""
        await self._receiver.start()
        try:
            await self.may_begin.wait()
            self._receiver.receive()
            while True:
                received = await self._receiver.take()
                task = asyncio.create_task(self._take(received), name="batch")
                self._in_hand.add(task)
                task.add_done_callback(self._finished)
        finally:
            await self._receiver.stop()
            await asyncio.gather(*self._in_hand, return_exceptions=True)
            await self._receiver.close()

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._in_hand.discard(task)
        self._ended += 1
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("batch.crashed", exc_info=error)

    async def _take(self, received: ReceivedBatch) -> None:
        """Store a batch, acknowledge it, and say so; what cannot be stored now comes again a little later."""
        try:
            done = await self.store(received.parcel.batch)
        except Unavailable as error:
            log.warning(
                "batch.requeued", events=len(received.parcel.batch.payloads), error=str(error)
            )
            self._metrics.returned()
            received.give_back(delay_seconds=RETRY_SECONDS)
            return
        except BaseException:
            received.give_back(delay_seconds=RETRY_SECONDS)
            raise
        received.acknowledge()
        await self.tell(done)

    async def store(self, batch: DecodedBatch) -> IngestResult:
        """Store a batch, in the trace of each event that has one.

        Raises:
            Unavailable: nothing was stored; the same may be tried again.
        """
        began = time.perf_counter()
        with ExitStack() as traced:
            if is_enabled():
                batch = batch._replace(
                    arrivals=[_traced(arrival, traced) for arrival in batch.arrivals]
                )
            done = await ingest(batch, store=self._store, installation=self._installation)
        self._metrics.stored(done, events=len(batch.payloads), seconds=time.perf_counter() - began)
        return done

    async def tell(self, done: IngestResult) -> None:
        """Say what was stored."""
        self.on_stored(done)
        await self._client.publish(INGESTED, b"")
        if done.dead_letters:
            log.warning("events.dead_lettered", dead_letters=done.dead_letters)
        log.debug(
            "batch.stored", events=done.events, messages=done.messages, evictions=done.evictions
        )


def _traced(arrival: DecodedEvent, traced: ExitStack) -> DecodedEvent:
    """The event with a span of its own, in the trace that it came with; without one it has none."""
    if arrival.trace is None:
        return arrival
    ingesting = traced.enter_context(
        span("ingest", kind="consumer", parent=arrival.trace, stream_seq=arrival.stream_seq)
    )
    return arrival._replace(trace=ingesting.trace)
