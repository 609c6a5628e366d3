"""What is asked on the bus becomes a reading operation, and its outcome an answer."""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache

import nats.errors
import structlog
from faststream.nats import NatsMessage, NatsRouter
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from turnfold.bus.admission import Admission
from turnfold.contracts.requests import (
    AuditRequest,
    ContextRequest,
    ExpandRequest,
    HistoryRequest,
    Request,
    SearchRequest,
    SessionRequest,
    SummaryRequest,
    read_request,
)
from turnfold.contracts.subjects import QUERY_QUEUE, key_of_subject
from turnfold.errors import BadRequest, RequestError, TooLarge, Unavailable
from turnfold.messages import SessionKey
from turnfold.operations import expand, history, query, search
from turnfold.ports import HistoryStore, SearchStore, WindowStore
from turnfold.tracing import span, trace_in
from turnfold_query.metrics import Metrics

log = structlog.get_logger()

CONTEXT = "context.get"
"""Asked before every call of a model, and nobody waits for anything else."""
ANSWER_ROOM_BYTES = 64 * 1024
"""What an answer leaves of the bus's limit, for headers and the protocol."""
DRAIN_SECONDS = 5.0


class Questions:
    """Every reading operation by its name on the bus; the JSON it answers is what travels, also over HTTP."""

    def __init__(
        self,
        *,
        windows: WindowStore,
        histories: HistoryStore,
        searching: SearchStore,
        answering: query.Answering,
        arrivals: query.Arrivals,
        metrics: Metrics,
    ) -> None:
        self._windows = windows
        self._histories = histories
        self._searching = searching
        self._answering = answering
        self._arrivals = arrivals
        self._metrics = metrics
        self.shapes: Mapping[str, type[Request]] = {
            CONTEXT: ContextRequest,
            "history.get": HistoryRequest,
            "history.search": SearchRequest,
            "summary.list": SessionRequest,
            "summary.get": SummaryRequest,
            "summary.expand": ExpandRequest,
            "session.get": SessionRequest,
            "audit.list": AuditRequest,
        }

    async def answer(self, name: str, key: SessionKey, request: Request) -> bytes:
        """The JSON of an answer.

        Raises:
            RequestError: it cannot be given; the error says what to do.
        """
        if isinstance(request, ContextRequest):
            return (await self.context(key, request)).body
        began = time.perf_counter()
        try:
            return (await self._told(name, key, request)).encode()
        finally:
            self._metrics.answered(name, time.perf_counter() - began)

    async def _told(self, name: str, key: SessionKey, request: Request) -> str:
        match request:
            case HistoryRequest():
                return await history.history(key, request, store=self._histories)
            case SearchRequest():
                return await search.search(key, request, store=self._searching)
            case ExpandRequest():
                return await expand.expand(key, request, histories=self._histories, searching=self._searching)
            case SummaryRequest():
                return json.dumps(await history.summary(key, request, store=self._histories))
            case AuditRequest():
                return json.dumps(await history.audit(key, request, store=self._histories))
            case SessionRequest() if name == "summary.list":
                return json.dumps(await history.summaries(key, request, store=self._histories))
            case SessionRequest():
                return json.dumps(await history.session(key, request, store=self._histories))
            case _:
                raise BadRequest(f"{name} is no question")

    async def context(self, key: SessionKey, request: ContextRequest) -> query.Answer:
        """A window; see `turnfold.operations.query.context`."""
        began = time.perf_counter()
        try:
            answer = await query.context(key, request, store=self._windows, answering=self._answering, arrivals=self._arrivals)
        finally:
            self._metrics.answered(CONTEXT, time.perf_counter() - began)
        self._metrics.shown(answer)
        return answer


class Desk:
    """Answers requests side by side: one that waits for an event to be ingested holds up no other."""

    def __init__(self, questions: Questions, metrics: Metrics, admission: Admission) -> None:
        self._questions = questions
        self._metrics = metrics
        self._admission = admission
        self._open: set[asyncio.Task[None]] = set()
        self._heard: list[Subscription] = []

    def take(self, name: str, message: Msg) -> None:
        """Begin to answer."""
        task = asyncio.get_running_loop().create_task(self._answer(name, message))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def listen(self, client: Client, name: str) -> None:
        """Take a request straight from the bus: what a framework does for a message takes as long as most windows."""

        async def on_request(message: Msg) -> None:
            self.take(name, message)

        self._heard.append(await client.subscribe(f"{name}.*.*", queue=QUERY_QUEUE, cb=on_request))

    async def close(self) -> None:
        """Take nothing more, and finish what is in hand."""
        with contextlib.suppress(nats.errors.Error, TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                for subscription in self._heard:
                    await subscription.drain()  # type: ignore[no-untyped-call]  # nats-py forgot to say that it returns nothing
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _answer(self, name: str, message: Msg) -> None:
        if not message.reply:
            return
        with span(name, kind="server", parent=trace_in(message.headers)) as answering:
            try:
                with self._admission.admitted():
                    body = await self._answered(name, message)
            except RequestError as error:
                self._metrics.refused(name, error.code)
                answering.note(refused=error.code)
                body = query.as_error(error).encode()
            except Exception:
                log.exception("request.failed", request=name)
                self._metrics.refused(name, "unavailable")
                answering.note(refused="unavailable")
                body = query.as_error(Unavailable("the request failed; the log of the query service says why")).encode()
            await message.respond(body)

    async def _answered(self, name: str, message: Msg) -> bytes:
        key = _key_of(name, message.subject)
        if not isinstance(key, SessionKey):
            raise BadRequest(f"{name} takes an agent and a session")
        body = await self._questions.answer(name, key, read_request(self._questions.shapes[name], message.data))
        if len(body) > message._client.max_payload - ANSWER_ROOM_BYTES:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # the connection that brought it
            raise TooLarge(f"the answer has {len(body)} bytes, more than the bus carries; ask for less")
        return body


_key_of = lru_cache(maxsize=1_024)(key_of_subject)


async def as_it_came(message: NatsMessage) -> NatsMessage:
    """Leave a request to its own model. The handler gets the message itself: injected, it would cost a thread change a request."""
    return message


def make_router(desk: Desk, names: Iterable[str]) -> NatsRouter:
    """One subscriber a request, all in one queue group with every other query server."""
    router = NatsRouter()

    def listens(name: str) -> None:
        @router.subscriber(f"{name}.*.*", queue=QUERY_QUEUE, decoder=as_it_came, no_reply=True, title=name)
        async def on_request(message: NatsMessage) -> None:
            raw = message.raw_message
            assert isinstance(raw, Msg)
            desk.take(name, raw)

    for name in names:
        listens(name)
    return router
