"""What arrives on the bus becomes an operation, and its outcome an acknowledgement or an answer."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from typing import Any

import structlog
from faststream.nats import NatsMessage, NatsRouter
from nats.aio.client import Client
from nats.aio.msg import Msg

from turnfold.bus.admission import INSTALLATION, ConcurrencyLimiter
from turnfold.bus.answering import answer, is_led
from turnfold.contracts.requests import (
    CompactionRequest,
    EraseRequest,
    PolicyRequest,
    is_policy_read,
    read_command,
)
from turnfold.contracts.subjects import INGESTED, POLICY_READS, WORKER_QUEUE, key_of_subject
from turnfold.errors import NotAllowed, RequestError, TurnfoldError, Unavailable
from turnfold.messages import SessionKey
from turnfold.observability.tracing import is_enabled, span
from turnfold.operations.ingest.decode import DecodedBatch
from turnfold.operations.ingest.ingest import ingest
from turnfold.ports.admin import SessionCommands
from turnfold.ports.ingest import DecodedEvent, IngestResult, IngestStore, Installation
from turnfold_worker.actors import Actors
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


async def passthrough_decoder(message: NatsMessage) -> NatsMessage:
    """Leave a request to its own model, and hand the handler the message itself."""
    return message


Handle = Callable[[str, bytes, str], Awaitable[Mapping[str, Any]]]
"""Does what a request asks for, by its subject, its body and who asked."""


class CommandServer:
    """Where requests that write are taken: some are worked on side by side, and beyond them the rest are told to come back."""

    def __init__(self, admission: ConcurrencyLimiter, actors: Actors) -> None:
        self._admission = admission
        self.actors = actors
        self._open: set[asyncio.Task[None]] = set()

    def listen(self, router: NatsRouter, name: str, levels: int, handle: Handle) -> None:
        """Answer a request whose subject names so many ids, in one queue group with every other worker."""

        @router.subscriber(
            f"{name}{'.*' * levels}",
            queue=WORKER_QUEUE,
            decoder=passthrough_decoder,
            no_reply=True,
            title=name,
        )
        async def on_request(message: NatsMessage) -> None:
            raw = message.raw_message
            assert isinstance(raw, Msg)
            task = asyncio.get_running_loop().create_task(self._answer(name, handle, raw))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def close(self) -> None:
        """Finish what is in hand."""
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _answer(self, name: str, handle: Handle, message: Msg) -> None:
        if name in POLICY_READS and is_policy_read(message.data):
            # A query server answers.
            return
        told = await answered(name, self._admitted(name, handle, message))
        if message.reply:
            await answer(message, json.dumps(told).encode())

    async def _admitted(self, name: str, handle: Handle, message: Msg) -> Mapping[str, Any]:
        if is_led(message.headers):
            raise NotAllowed(
                "a request has to come straight from the account of the client that asks"
            )
        asker = _asker_of(name, message.subject)
        await self._admission.turn(asker)
        with self._admission.admitted(asker):
            return await handle(message.subject, message.data, await self.actors.actor_of(message))


def _asker_of(name: str, subject: str) -> str:
    """Whose share a request counts for: the agent's that its subject names."""
    return subject.removeprefix(name).removeprefix(".").partition(".")[0] or INSTALLATION


def make_request_router(
    *,
    changes: SessionCommands,
    installation: Installation,
    now_ms: Callable[[], int],
    on_change: Callable[[], object],
    last_seq: Callable[[], Awaitable[int]],
    on_erased: Callable[[], object],
    desk: CommandServer,
) -> NatsRouter:
    """Requests that write: answered here, where the writing is done."""
    router = NatsRouter()

    async def on_policy(subject: str, body: bytes, actor: str) -> Mapping[str, Any]:
        key = key_of_subject("session.policy", subject)
        policy = await changes.set_policy(
            key,
            read_command(PolicyRequest, key, body),
            installation=installation,
            now_ms=now_ms(),
            actor=actor,
        )
        on_change()
        return policy

    async def on_agent_policy(subject: str, body: bytes, actor: str) -> Mapping[str, Any]:
        key = key_of_subject("agent.policy", subject)
        policy = await changes.set_policy(
            key,
            read_command(PolicyRequest, key, body),
            installation=installation,
            now_ms=now_ms(),
            actor=actor,
        )
        on_change()
        return policy

    async def on_compaction(subject: str, body: bytes, actor: str) -> Mapping[str, Any]:
        key = key_of_subject("compaction.request", subject)
        read_command(CompactionRequest, key, body)
        assert isinstance(key, SessionKey)
        opened = await changes.compact_now(
            key, installation=installation, now_ms=now_ms(), actor=actor
        )
        on_change()
        return {"compaction_id": opened}

    async def on_erase(subject: str, body: bytes, actor: str) -> Mapping[str, Any]:
        key = key_of_subject("session.erase", subject)
        read_command(EraseRequest, key, body)
        assert isinstance(key, SessionKey)
        # What is in the stream by now is erased, also where no worker has seen it yet.
        done = await changes.erase(key, last_seq=await last_seq(), now_ms=now_ms(), actor=actor)
        on_erased()
        return {**key._asdict(), **done._asdict()}

    async def on_agent_erase(subject: str, body: bytes, actor: str) -> Mapping[str, Any]:
        key = key_of_subject("agent.erase", subject)
        read_command(EraseRequest, key, body)
        assert not isinstance(key, SessionKey)
        done = await changes.erase(key, last_seq=await last_seq(), now_ms=now_ms(), actor=actor)
        on_erased()
        return {"agent_id": key, **done._asdict()}

    desk.listen(router, "session.erase", 2, on_erase)
    desk.listen(router, "agent.erase", 1, on_agent_erase)
    desk.listen(router, "session.policy", 2, on_policy)
    desk.listen(router, "agent.policy", 1, on_agent_policy)
    desk.listen(router, "compaction.request", 2, on_compaction)
    return router


async def answered(name: str, answering: Awaitable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """An answer, or the error in the words of the contract."""
    try:
        return await answering
    except RequestError as error:
        return error.as_json()
    except TurnfoldError as error:
        log.warning("request.failed", request=name, error=str(error))
        return Unavailable(str(error)).as_json()
    except Exception:
        log.exception("request.failed", request=name)
        return Unavailable("the request failed; the log of the worker says why").as_json()
