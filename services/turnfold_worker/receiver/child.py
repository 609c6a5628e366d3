"""The receiver's side: events come from the bus, are weighed, go to the worker, and are acknowledged once it has stored them."""

import asyncio
import contextlib
import gc
import signal
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import nats.errors
import structlog
import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg

from turnfold.bus.connection import connect
from turnfold.bus.pull import PullConsumer
from turnfold.contracts.subjects import EVENTS_CONSUMER, EVENTS_STREAM
from turnfold.errors import StartError
from turnfold.model_info.tokenizer import load_counter
from turnfold.observability.tracing import extract_traceparent
from turnfold.operations.ingest.decode import DecodedBatch, Delivery, decode_batch
from turnfold.process.child_process import check_started, service_of
from turnfold.process.tasks import cancel_and_wait
from turnfold.settings import Settings
from turnfold_worker.receiver import wire

log = structlog.get_logger()

SIDE_BY_SIDE = 3
"""Parcels under way: one is being weighed, one committed, and one waits for its turn at either."""
AT_ONCE = 100
"""Events that are weighed before anything else gets its turn: some milliseconds."""
CONNECT_SECONDS = 24 * 3600.0
"""The worker had a connection when it began; whatever happened to the bus since then, it is waited for."""
RETRY_SECONDS = 1.0
ACK_TOKENS = 9

Weigh = Callable[[Sequence[Delivery]], DecodedBatch]


def main(settings: Settings) -> int:
    """Receive for the worker at the other end of standard input, until it is gone; the status to exit with.

    Raises:
        StartError: no worker started this.
    """
    check_started("receiver")
    for number in (signal.SIGINT, signal.SIGTERM):
        # Who is told to stop is the worker; it lets its receiver finish what is in hand.
        signal.signal(number, signal.SIG_IGN)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(settings))
    return 0


async def _run(settings: Settings) -> None:
    reader, writer = await service_of("receiver")
    count = load_counter()

    def weigh(deliveries: Sequence[Delivery]) -> DecodedBatch:
        return decode_batch(
            deliveries,
            count=count,
            limits=settings.event_limits,
            image_tokens=settings.policy.image_tokens,
        )

    # As in the worker: what was imported stays, and batches make many short-lived values and no cycles.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    await ReceiverChild(reader, writer, weigh, settings).run()


class ReceiverChild:
    """The parcels under way, and the two ends they go between."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        weigh: Weigh,
        settings: Settings,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._weigh = weigh
        self._settings = settings
        self._client: Client | None = None
        self._pull: PullConsumer | None = None
        self._places = asyncio.Semaphore(SIDE_BY_SIDE)
        self._sent: dict[int, Sequence[Msg]] = {}
        self._may_receive = asyncio.Event()
        self._receiving = asyncio.create_task(self._receive(), name="parcels")
        self._is_heard = False
        self._greeted = asyncio.Event()

    async def run(self) -> None:
        """Receive for the worker until it is gone, or silent for too long; what it has not answered for then may come elsewhere."""
        parts = [
            asyncio.create_task(self._listen(), name="worker"),
            asyncio.create_task(self._beat(), name="beat"),
        ]
        try:
            await asyncio.wait([*parts, self._receiving], return_when=asyncio.FIRST_COMPLETED)
            if self._receiving.done() and (
                self._receiving.cancelled() or self._receiving.exception() is None
            ):
                await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for task in (*parts, self._receiving):
                if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                    log.error("receiver.crashed", exc_info=error)
        finally:
            await cancel_and_wait(*parts)
            await self._leave()

    async def _leave(self) -> None:
        with contextlib.suppress(nats.errors.Error, TimeoutError):
            await self._take_no_more()
            for messages in self._sent.values():
                await self._answered().nack(messages)
            if self._client is not None:
                await self._client.flush()
        if self._client is not None:
            await self._client.close()

    async def _receive(self) -> None:
        await self._may_receive.wait()
        try:
            self._client = await connect(self._settings, name="receiver", seconds=CONNECT_SECONDS)
            self._pull = PullConsumer(self._client, stream=EVENTS_STREAM, consumer=EVENTS_CONSUMER)
            await self._pull.start()
            await self._send(self._pull)
        except StartError as error:
            await self._say(wire.Failed(str(error)))

    async def _send(self, pull: PullConsumer) -> None:
        """Weigh what comes, and hand it over.

        Raises:
            StartError: the consumer is gone.
        """
        number = 0
        while True:
            await self._places.acquire()
            messages = await pull.take(wire.BATCH)
            try:
                batch = await self._weighed(self._deliveries(pull, messages))
            except asyncio.CancelledError:
                await pull.nack(messages)
                raise
            except Exception:
                log.exception("batch.crashed", events=len(messages))
                await pull.nack(messages, delay_seconds=RETRY_SECONDS)
                self._places.release()
                continue
            number += 1
            self._sent[number] = messages
            await self._say(wire.BatchReady(number, batch, pull.in_flight))

    def _deliveries(self, pull: PullConsumer, messages: list[Msg]) -> list[Delivery]:
        """Return the deliveries among the messages, and remove those that no stream delivered."""
        has_trace = self._settings.traces
        try:
            return [delivery_of(message, has_trace=has_trace) for message in messages]
        except (ValueError, IndexError):
            strange = [message for message in messages if not _is_delivery(message)]
            log.warning("messages.dropped", messages=len(strange))
            pull.drop(strange)
            messages[:] = [message for message in messages if _is_delivery(message)]
            return [delivery_of(message, has_trace=has_trace) for message in messages]

    async def _weighed(self, deliveries: Sequence[Delivery]) -> DecodedBatch:
        batch = DecodedBatch([], [], {})
        for start in range(0, len(deliveries), AT_ONCE):
            some = self._weigh(deliveries[start : start + AT_ONCE])
            batch.arrivals.extend(some.arrivals)
            batch.dead.extend(some.dead)
            batch.payloads.update(some.payloads)
            await asyncio.sleep(0)
        return batch

    async def _listen(self) -> None:
        while (word := await wire.read_word(self._reader)) is not None:
            self._is_heard = True
            self._greeted.set()
            match word:
                case wire.StartReceiving():
                    self._may_receive.set()
                case wire.Ack(number):
                    await self._finished(number, self._answered().acknowledge)
                case wire.Nack(number, delay_seconds):
                    await self._finished(
                        number, partial(self._answered().nack, delay_seconds=delay_seconds)
                    )
                case wire.Stop():
                    await self._take_no_more()
                    await self._say(wire.Stopped())
                case _:
                    pass

    async def _finished(
        self, number: int, tell: Callable[[Sequence[Msg]], Awaitable[None]]
    ) -> None:
        """Tell the stream what became of a parcel; what it does not learn is delivered again."""
        try:
            await tell(self._sent.pop(number))
        except Exception:
            log.exception("parcel.untold")
        finally:
            self._places.release()

    def _answered(self) -> PullConsumer:
        """Where the parcels came from that the worker speaks of."""
        assert self._pull is not None
        return self._pull

    async def _take_no_more(self) -> None:
        """What the worker has not got yet goes back; what it has is still waited for."""
        await cancel_and_wait(self._receiving)
        if self._pull is not None:
            await self._pull.stop()

    async def _beat(self) -> None:
        """Say that we are here, until the worker is silent for too long; how long it takes until its first word is its own affair."""
        await self._greeted.wait()
        missed = 0
        while missed < wire.SILENT_BEATS:
            pull = self._pull
            await self._say(
                wire.Heartbeat()
                if pull is None
                else wire.Heartbeat(pull.in_flight, pull.activity, pull.idle_seconds)
            )
            await asyncio.sleep(wire.BEAT_SECONDS)
            missed = 0 if self._is_heard else missed + 1
            self._is_heard = False
        log.warning("receiver.worker_lost", seconds=wire.SILENT_BEATS * wire.BEAT_SECONDS)

    async def _say(self, word: wire.ReceiverMessage) -> None:
        with contextlib.suppress(ConnectionError):
            self._writer.write(wire.framed(word))
            await self._writer.drain()


def _is_delivery(message: Msg) -> bool:
    try:
        delivery_of(message, has_trace=False)
    except (ValueError, IndexError):
        return False
    return True


def delivery_of(message: Msg, *, has_trace: bool) -> Delivery:
    """What the stream delivered, with the sequence and the time (ns) that its reply subject carries.

    `$JS.ACK.<stream>.<consumer>.<deliveries>.<sequence>.<consumer sequence>.<time>.<pending>`; the newer form has the
    domain and the account before the stream, and one token more at the end.
    """
    tokens = message.reply.split(".")
    shift = 0 if len(tokens) == ACK_TOKENS else 2
    trace = extract_traceparent(message.headers) if has_trace else None
    return Delivery(
        message.subject,
        message.data,
        int(tokens[5 + shift]),
        int(tokens[7 + shift]) // 1_000_000,
        trace,
    )
