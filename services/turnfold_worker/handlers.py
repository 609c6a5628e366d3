"""What arrives on the bus becomes an operation, and its outcome an acknowledgement or an answer."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import structlog
from faststream import AckPolicy
from faststream.nats import JStream, NatsRouter, PullSub
from faststream.nats.annotations import NatsMessage
from nats.aio.msg import Msg

from turnfold.bus.connection import INBOX_PREFIXES
from turnfold.contracts.requests import CompactionRequest, PolicyRequest, read_request
from turnfold.contracts.subjects import EVENTS_CONSUMER, EVENTS_STREAM, EVENTS_SUBJECTS, INGESTED, key_of_subject
from turnfold.core.tokens import Count
from turnfold.errors import RequestError, TurnfoldError, Unavailable
from turnfold.messages import SessionKey
from turnfold.operations.ingest import Delivery, ingest
from turnfold.ports import Changes, Ingested, IntakeStore, Rules

log = structlog.get_logger()

BATCH = 500
LINGER_SECONDS = 0.02
SIDE_BY_SIDE = 2
"""Subscribers on the one consumer: while one batch is being committed the next is fetched and weighed."""
RETRY_SECONDS = 1.0
WORKER_QUEUE = "turnfold-worker"
ACK_TOKENS = 9
IN_PROGRESS_SECONDS = 2.0


class Intake:
    """Batches from the stream into the store; acknowledged after the commit, never before."""

    def __init__(self, *, store: IntakeStore, rules: Rules, count: Count) -> None:
        self._store = store
        self._rules = rules
        self._count = count
        self.is_busy = False
        self.on_stored: Callable[[Ingested], object] = lambda _: None

    async def take(self, batch: Sequence[Msg], publish: Callable[[str, bytes], Awaitable[object]]) -> None:
        """Store a batch, acknowledge it, and say so; what cannot be stored now comes again a little later."""
        self.is_busy = len(batch) >= BATCH // 2
        deliveries = [delivery_of(message) for message in batch]
        try:
            async with _kept(batch):
                done = await ingest(deliveries, store=self._store, rules=self._rules, count=self._count)
        except Unavailable as error:
            log.warning("batch.returned", events=len(batch), error=str(error))
            await asyncio.gather(*(message.nak(delay=RETRY_SECONDS) for message in batch), return_exceptions=True)
            return
        for message in batch:
            await message.ack()
        self.on_stored(done)
        await publish(INGESTED, json.dumps({"up_to": deliveries[-1].stream_seq}).encode())
        if done.dead_letters:
            log.warning("events.buried", dead_letters=done.dead_letters)
        log.debug("batch.stored", events=done.events, messages=done.messages, evictions=done.evictions)


@contextlib.asynccontextmanager
async def _kept(batch: Sequence[Msg]) -> AsyncGenerator[None]:
    """Tell the stream that work goes on, so that a batch which takes long is not handed to another worker."""

    async def tell() -> None:
        while True:
            await asyncio.sleep(IN_PROGRESS_SECONDS)
            await asyncio.gather(*(message.in_progress() for message in batch), return_exceptions=True)

    telling = asyncio.create_task(tell(), name="in-progress")
    try:
        yield
    finally:
        telling.cancel()


def delivery_of(message: Msg) -> Delivery:
    """What the stream delivered, with the sequence and the time (ns) that its reply subject carries.

    `$JS.ACK.<stream>.<consumer>.<deliveries>.<sequence>.<consumer sequence>.<time>.<pending>`; the newer form has the
    domain and the account before the stream, and one token more at the end.
    """
    tokens = message.reply.split(".")
    shift = 0 if len(tokens) == ACK_TOKENS else 2
    return Delivery(message.subject, message.data, int(tokens[5 + shift]), int(tokens[7 + shift]) // 1_000_000)


async def _raw(message: Any) -> Any:
    """Leave the batch as it came: each message is read on its own, so that a bad one harms no neighbour."""
    return message.body


def make_event_router(intake: Intake) -> NatsRouter:
    """The durable consumer of events, shared with every other worker."""
    router = NatsRouter()
    for _ in range(SIDE_BY_SIDE):

        @router.subscriber(
            EVENTS_SUBJECTS[1],
            durable=EVENTS_CONSUMER,
            stream=JStream(EVENTS_STREAM, declare=False),
            pull_sub=PullSub(batch_size=BATCH, timeout=LINGER_SECONDS, batch=True),
            inbox_prefix=f"{INBOX_PREFIXES['worker']}.".encode(),
            ack_policy=AckPolicy.MANUAL,
            decoder=_raw,
            no_reply=True,
            title="events",
        )
        async def on_events(_: Any, message: NatsMessage) -> None:
            batch = message.raw_message if isinstance(message.raw_message, list) else [message.raw_message]
            client = batch[0]._client  # noqa: SLF001  # the connection that brought them
            await intake.take(batch, client.publish)

    return router


def make_request_router(*, changes: Changes, rules: Rules, now_ms: Callable[[], int], on_change: Callable[[], object]) -> NatsRouter:
    """Requests that write: answered here, where the writing is done."""
    router = NatsRouter()

    def answers(name: str, levels: int, handle: Callable[[str, bytes], Awaitable[Mapping[str, Any]]]) -> None:
        @router.subscriber(f"{name}{'.*' * levels}", queue=WORKER_QUEUE, decoder=_raw, title=name)
        async def on_request(_: Any, message: NatsMessage) -> bytes:
            raw = message.raw_message
            assert isinstance(raw, Msg)
            return json.dumps(await answered(name, handle(raw.subject, raw.data))).encode()

    async def on_policy(subject: str, body: bytes) -> Mapping[str, Any]:
        key = key_of_subject("session.policy", subject)
        policy = await changes.set_policy(key, read_request(PolicyRequest, body), rules=rules, now_ms=now_ms())
        on_change()
        return policy

    async def on_agent_policy(subject: str, body: bytes) -> Mapping[str, Any]:
        key = key_of_subject("agent.policy", subject)
        policy = await changes.set_policy(key, read_request(PolicyRequest, body), rules=rules, now_ms=now_ms())
        on_change()
        return policy

    async def on_compaction(subject: str, body: bytes) -> Mapping[str, Any]:
        key = key_of_subject("compaction.request", subject)
        read_request(CompactionRequest, body)
        assert isinstance(key, SessionKey)
        opened = await changes.compact_now(key, rules=rules, now_ms=now_ms())
        on_change()
        return {"compaction_id": opened}

    answers("session.policy", 2, on_policy)
    answers("agent.policy", 1, on_agent_policy)
    answers("compaction.request", 2, on_compaction)
    return router


async def answered(name: str, answer: Awaitable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """An answer, or the error in the words of the contract."""
    try:
        return await answer
    except RequestError as error:
        return error.as_json()
    except TurnfoldError as error:
        log.warning("request.failed", request=name, error=str(error))
        return Unavailable(str(error)).as_json()
    except Exception:
        log.exception("request.failed", request=name)
        return Unavailable("the request failed; the log of the worker says why").as_json()
