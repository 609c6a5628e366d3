"""The receiver process: pull events, decode them for the worker, and acknowledge what it stores."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from turnfold.access.actors import ACTOR_HEADER
from turnfold.bus.connection import connect
from turnfold.bus.pull import PullConsumer
from turnfold.bus.repeated import acknowledgement_tokens
from turnfold.contracts.subjects import EVENTS_CONSUMER, EVENTS_STREAM, replayed_seq
from turnfold.core.text.tokens import Count
from turnfold.errors import StartError
from turnfold.model_info.tokenizer import load_counter
from turnfold.observability.tracing import extract_traceparent
from turnfold.operations.ingest.decode import DecodedBatch, Delivery, decode_batch
from turnfold.process.child_process import (
    HeartbeatMonitor,
    encode_frame,
    open_stream,
    parent_socket,
    read_frame,
    serve_parent,
)
from turnfold.process.memory import forget_and_return_memory
from turnfold.process.scheduling import tune_interpreter
from turnfold.process.tasks import cancel_and_wait
from turnfold.settings import Settings
from turnfold_worker.receiver import wire

log = structlog.get_logger()

CONCURRENT_BATCHES = 3
"""Batches under way: one is decoded, one committed, and one waits for either."""
DECODE_EVENTS = 100
DECODE_BYTES = 256 * 1024
"""Events decoded before other tasks may run, and their size. Decoding takes some milliseconds."""
CONNECT_SECONDS = 24 * 3600.0
"""The worker was connected when it started, so the receiver waits for the bus."""
LEAVE_SECONDS = 1
RETRY_SECONDS = 1.0

Decode = Callable[[Sequence[Delivery]], DecodedBatch]


def decoder(settings: Settings, count: Count) -> Decode:
    """Return the function that decodes deliveries as an installation is configured."""
    return partial(
        decode_batch,
        count=count,
        limits=settings.event_limits,
        image_tokens=settings.policy.image_tokens,
    )


def main(settings: Settings) -> int:
    """Receive for the worker at the other end of standard input, and return the exit status.

    Raises:
        StartError: no worker started this process.
    """
    return serve_parent("receiver", partial(_run, settings))


async def _run(settings: Settings) -> None:
    reader, writer = await open_stream(parent_socket())
    decode = decoder(settings, load_counter())
    tune_interpreter(has_batches=True)
    await ReceiverChild(reader, writer, decode, settings).run()


class ReceiverChild:
    """Pull and decode batches, send them to the worker, and acknowledge them on its replies."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        decode: Decode,
        settings: Settings,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decode = decode
        self._settings = settings
        self._client: Client | None = None
        self._consumer: PullConsumer | None = None
        self._slots = asyncio.Semaphore(CONCURRENT_BATCHES)
        self._decoding: Sequence[Msg] = ()
        self._sent: dict[int, Sequence[Msg]] = {}
        self._may_receive = asyncio.Event()
        self._receiving = asyncio.create_task(self._receive(), name="batches")
        self._is_greeted = asyncio.Event()
        self._heartbeat = HeartbeatMonitor(self._send_heartbeat)

    async def run(self) -> None:
        """Receive until the worker has gone or is silent, then return unfinished events."""
        tasks = [
            asyncio.create_task(self._listen(), name="worker"),
            asyncio.create_task(self._beat(), name="heartbeat"),
        ]
        trimming = asyncio.create_task(forget_and_return_memory(), name="memory")
        try:
            await asyncio.wait([*tasks, self._receiving], return_when=asyncio.FIRST_COMPLETED)
            # `Stop`, or a consumer that is gone, ends receiving alone. The worker may still
            # report the results of batches that were sent before.
            if self._receiving.done() and (
                self._receiving.cancelled() or self._receiving.exception() is None
            ):
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in (*tasks, self._receiving):
                if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                    log.error("receiver.crashed", exc_info=error)
        finally:
            await cancel_and_wait(*tasks, trimming)
            await self._leave()

    async def _leave(self) -> None:
        with contextlib.suppress(nats.errors.Error, TimeoutError):
            await self._stop_receiving()
            # The worker may have committed some of them: redelivered, they are duplicates.
            for messages in self._sent.values():
                await self._active_consumer().nack(messages)
            if self._client is not None:
                await self._client.flush(LEAVE_SECONDS)
        if self._client is not None:
            await self._client.close()

    async def _receive(self) -> None:
        await self._may_receive.wait()
        try:
            self._client = await connect(self._settings, name="receiver", seconds=CONNECT_SECONDS)
            consumer = PullConsumer(self._client, stream=EVENTS_STREAM, consumer=EVENTS_CONSUMER)
            self._consumer = consumer
            await consumer.start()
            await self._send_batches(consumer)
        except StartError as error:
            await self._send(wire.Failed(str(error)))

    async def _send_batches(self, consumer: PullConsumer) -> None:
        """Decode the messages that arrive, and send them to the worker.

        Raises:
            StartError: the consumer is gone.
        """
        number = 0
        while True:
            # Before the messages are taken: what nobody takes stays with the consumer, and is
            # returned at once when the worker stops.
            await self._slots.acquire()
            messages = await consumer.take(wire.BATCH, most_bytes=wire.BATCH_BYTES)
            self._decoding = messages
            try:
                batch = await self._decoded(self._deliveries(consumer, messages))
            except Exception:
                log.exception("batch.crashed", events=len(messages))
                await consumer.nack(messages, delay_seconds=RETRY_SECONDS)
                self._decoding = ()
                self._slots.release()
                continue
            number += 1
            # Before it is sent, because the reply may arrive while `_send` waits.
            self._sent[number], self._decoding = messages, ()
            await self._send(wire.BatchReady(number, batch, consumer.in_flight))

    def _deliveries(self, consumer: PullConsumer, messages: list[Msg]) -> list[Delivery]:
        """Return the deliveries among the messages, and remove those that no stream delivered."""
        deliveries: list[Delivery] = []
        delivered: list[Msg] = []
        foreign: list[Msg] = []
        for message in messages:
            try:
                deliveries.append(delivery_of(message, has_trace=self._settings.traces))
                delivered.append(message)
            except (ValueError, IndexError):
                foreign.append(message)
        if foreign:
            log.warning("messages.dropped", messages=len(foreign))
            consumer.drop(foreign)
            # In place: the caller and `_decoding` hold this list, too.
            messages[:] = delivered
        return deliveries

    async def _decoded(self, deliveries: Sequence[Delivery]) -> DecodedBatch:
        batch = DecodedBatch.empty()
        for portion in portions(deliveries):
            if len(portion[0].payload) > DECODE_BYTES:
                # It may take seconds, and a receiver without heartbeats would be ended: the event
                # would be delivered again, and intake would stop for good.
                batch.add(await asyncio.to_thread(self._decode, portion))
                continue
            batch.add(self._decode(portion))
            # Heartbeats and acknowledgements run in between.
            await asyncio.sleep(0)
        return batch

    async def _listen(self) -> None:
        while (body := await read_frame(self._reader)) is not None:
            self._heartbeat.heard()
            self._is_greeted.set()
            match wire.decode(body):
                case wire.StartReceiving():
                    self._may_receive.set()
                case wire.Ack(number):
                    await self._settle(number, self._active_consumer().acknowledge)
                case wire.Nack(number, delay_seconds):
                    nack = partial(self._active_consumer().nack, delay_seconds=delay_seconds)
                    await self._settle(number, nack)
                case wire.Stop():
                    await self._stop_receiving()
                    # The socket keeps the order: all batches that were sent arrive before this.
                    await self._send(wire.Stopped())
                case _:
                    pass

    async def _settle(
        self, number: int, report: Callable[[Sequence[Msg]], Awaitable[None]]
    ) -> None:
        """Report the result of a batch to the stream, which redelivers it after an error."""
        try:
            # Removed before the report, so that `_leave` does not return events that are settled.
            await report(self._sent.pop(number))
        except Exception:
            log.exception("parcel.untold")
        finally:
            # Even after an error, or receiving would stop after a few of them.
            self._slots.release()

    def _active_consumer(self) -> PullConsumer:
        """Return the consumer of the batches that were sent."""
        assert self._consumer is not None
        return self._consumer

    async def _stop_receiving(self) -> None:
        """Return the events that were not sent; the worker still settles the others."""
        await cancel_and_wait(self._receiving)
        if self._consumer is not None:
            await self._consumer.stop()
            unsent, self._decoding = self._decoding, ()
            await self._consumer.nack(unsent)

    async def _beat(self) -> None:
        """Send heartbeats until the worker is silent. A worker may take long to greet."""
        # A worker on standby sends nothing until it has the writer lock.
        await self._is_greeted.wait()
        log.warning("receiver.worker_lost", seconds=await self._heartbeat.run())

    def _send_heartbeat(self) -> None:
        consumer = self._consumer
        # Not drained: a stopped worker reads nothing, and must be missed instead of waited for.
        self._write(
            wire.Heartbeat()
            if consumer is None
            else wire.Heartbeat(consumer.in_flight, consumer.activity, consumer.idle_seconds)
        )

    async def _send(self, message: wire.ReceiverMessage) -> None:
        self._write(message)
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    def _write(self, message: wire.ReceiverMessage) -> None:
        with contextlib.suppress(ConnectionError):
            self._writer.write(encode_frame(wire.encode(message)))


def portions(deliveries: Sequence[Delivery]) -> Iterator[Sequence[Delivery]]:
    """Divide deliveries into what is decoded at a time: `DECODE_EVENTS`, or `DECODE_BYTES`."""
    start = size = 0
    for number, delivery in enumerate(deliveries):
        if number > start and (
            number - start == DECODE_EVENTS or size + len(delivery.payload) > DECODE_BYTES
        ):
            yield deliveries[start:number]
            start, size = number, 0
        size += len(delivery.payload)
    if start < len(deliveries):
        yield deliveries[start:]


def delivery_of(message: Msg, *, has_trace: bool) -> Delivery:
    """Return a delivery, with the sequence and the time (ns) from the reply subject."""
    tokens = acknowledgement_tokens(message.reply)
    trace = extract_traceparent(message.headers) if has_trace else None
    return Delivery(
        message.subject,
        message.data,
        int(tokens[5]),
        int(tokens[7]) // 1_000_000,
        message.headers.get(ACTOR_HEADER) if message.headers else None,
        replayed_seq(message.headers),
        trace,
    )
