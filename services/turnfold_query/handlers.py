"""Requests that read: run each as an operation, and answer it with the outcome."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final, TypeVar

import structlog
from nats.aio.msg import Msg

from turnfold.bus.answering import answer, most_answer_bytes
from turnfold.contracts.catalog import REQUESTS, wildcard_subject
from turnfold.contracts.history_requests import (
    AuditRequest,
    DifferenceRequest,
    EventsKnownRequest,
    HistoryRequest,
    SearchRequest,
    SessionListRequest,
)
from turnfold.contracts.reading import (
    is_policy_read,
    read_command,
    read_request,
    with_ignored,
)
from turnfold.contracts.requests import (
    Command,
    ContextRequest,
    CountsRequest,
    ExpandRequest,
    FreshRequest,
    PolicyReadRequest,
    Request,
    SessionRequest,
    SummaryRequest,
    ToolRequest,
    ToolsRequest,
)
from turnfold.contracts.subjects import (
    AGENT_READS,
    POLICY_READS,
    QUERY_QUEUE,
    READS,
    key_of_subject,
)
from turnfold.errors import BadRequest, RequestError, TooLarge, Unavailable
from turnfold.messages import AgentId, SessionKey
from turnfold.nats_client.connection import NatsClient
from turnfold.nats_client.handover import Handover
from turnfold.observability.tracing import extract_traceparent, span
from turnfold.operations import policy
from turnfold.operations.query import agent_lists, history, replies, tools
from turnfold.operations.query import context as query
from turnfold.operations.query.environment import ContextReply, QueryEnvironment
from turnfold.ports.agent_lists import AgentLists
from turnfold.ports.query import HistoryStore, TooLargeHere
from turnfold.process.request_limits import (
    RETRY_AFTER_MS,
    ConcurrencyLimiter,
    Place,
    check_size,
)
from turnfold.process.tasks import at_most
from turnfold.store.query.window import SqlWindowStore
from turnfold_query.hints import HintSender
from turnfold_query.ingest_signal import placed
from turnfold_query.lane.parent import Lane
from turnfold_query.metrics import QueryMetrics
from turnfold_query.newest import NewestLookup, is_newest

log = structlog.get_logger()

CONTEXT = "context.get"
"""The request for a window, for which agents wait before each call of their model."""
DIRECT = (CONTEXT, "history.get")
"""Requests that are taken from the bus without a framework, because agents wait for them."""
REQUEST_MODELS: Final[Mapping[str, type[Request]]] = {
    **{name: REQUESTS[name].request for name in (*READS, *AGENT_READS)},
    **dict.fromkeys(POLICY_READS, PolicyReadRequest),
}
"""The requests that a query server answers, and their models."""
DRAIN_SECONDS = 5.0

Fresh = TypeVar("Fresh", bound=FreshRequest)
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryDispatcher:
    """Run the operation of each request that reads, from the bus or HTTP, and return its JSON."""

    windows: SqlWindowStore
    histories: HistoryStore
    lists: AgentLists
    lane: Lane
    environment: QueryEnvironment
    ingest_signal: query.IngestSignal
    newest: NewestLookup
    hints: HintSender
    metrics: QueryMetrics
    request_seconds: float
    explain: policy.Explain

    async def answer(
        self, name: str, key: SessionKey | AgentId, request: Request, place: Place
    ) -> bytes:
        """Return the JSON of an answer. `place` is the place that the request holds.

        Raises:
            RequestError: the request cannot be answered; the error says what to do.
        """
        if isinstance(request, ContextRequest) and isinstance(key, SessionKey):
            return (await self.context(key, request, place)).body
        began = time.perf_counter()
        try:
            return await self._answer(name, key, request, place)
        finally:
            self.metrics.answered(name, time.perf_counter() - began)

    async def _answer(
        self, name: str, key: SessionKey | AgentId, request: Request, place: Place
    ) -> bytes:
        if name in POLICY_READS:
            return json.dumps(await self._policy(key)).encode()
        if isinstance(request, EventsKnownRequest | SessionListRequest):
            return await self._listed(name, key, request, place)
        if not isinstance(key, SessionKey):
            raise BadRequest(f"{name} takes an agent and a session")
        is_fresh = None
        if isinstance(request, HistoryRequest) and is_newest(request):
            newest, reply = await self.newest.beside(
                key, lambda: self._in_time(self._reply(name, key, request, place))
            )
            if reply is not None:
                return _with_freshness(reply, is_fresh=True)
            request = request.model_copy(update={"after": newest})
        if isinstance(request, FreshRequest) and request.after is not None:
            request = await self._with_sequence(key, request)
            is_fresh = await self._ingested(request, place)
        reply = await self._in_time(self._reply(name, key, request, place))
        return reply if is_fresh is None else _with_freshness(reply, is_fresh=is_fresh)

    async def _in_time(self, reading: Awaitable[Read]) -> Read:
        """Await an operation within the time limit of a request."""
        try:
            async with asyncio.timeout(self.request_seconds):
                return await reading
        except TimeoutError:
            raise self._too_long() from None

    async def _listed(
        self,
        name: str,
        key: SessionKey | AgentId,
        request: EventsKnownRequest | SessionListRequest,
        place: Place,
    ) -> bytes:
        """Answer a request about the sessions or events of an agent."""
        if isinstance(key, SessionKey):
            raise BadRequest(f"{name} takes only an agent")
        if isinstance(request, SessionListRequest):
            # A prefix that few sessions have may need a look at all of them.
            place.search()
            reading = agent_lists.sessions(key, request, lists=self.lists)
        else:
            reading = agent_lists.known_events(key, request, lists=self.lists)
        return json.dumps(await self._in_time(reading)).encode()

    async def _reply(self, name: str, key: SessionKey, request: Request, place: Place) -> bytes:
        match request:
            case SearchRequest() | DifferenceRequest() | ExpandRequest() | ToolRequest():
                place.search()
                reply: bytes = await self.lane.ask(key, request)
                return reply
            case HistoryRequest():
                if request.as_of is not None:
                    place.search()
                return (await history.history(key, request, store=self.histories)).encode()
            case ToolsRequest():
                return tools.tools_json(request.format).encode()
            case SummaryRequest():
                fields = await history.summary(key, request, store=self.histories)
            case AuditRequest():
                fields = await history.audit(key, request, store=self.histories)
            case SessionRequest() if name == "summary.list":
                fields = await history.summaries(key, request, store=self.histories)
            case CountsRequest():
                fields = await history.session(key, request, store=self.histories)
                if request.policy:
                    fields["policy"] = await self._policy(key)
            case _:
                raise BadRequest(f"{name} is not a request that reads")
        return json.dumps(fields).encode()

    async def _ingested(self, request: FreshRequest, place: Place) -> bool:
        """Wait for the event that a request names; return whether it is ingested."""
        seq = request.after_seq
        if not seq or seq <= await self.windows.ingested_to():
            return True
        await placed(self.ingest_signal, place)(seq, request.wait_seconds)
        # The wait may also have ended by its time limit.
        return seq <= await self.windows.ingested_to()

    async def _with_sequence(self, key: SessionKey, request: Fresh) -> Fresh:
        """Replace `latest` by the sequence of the newest event."""
        if request.after != "latest":
            return request
        return request.model_copy(update={"after": await self.newest.sequence(key)})

    def _too_long(self) -> Unavailable:
        message = (
            f"the request took longer than {self.request_seconds:g} s and was ended; ask for less"
        )
        return Unavailable(message, retry_after_ms=RETRY_AFTER_MS)

    async def _policy(self, key: SessionKey | AgentId) -> dict[str, Any]:
        """Return the policy in force."""
        return await policy.policy_in_force(key, store=self.histories, explain=self.explain)

    async def context(self, key: SessionKey, request: ContextRequest, place: Place) -> ContextReply:
        """Return a window; see `turnfold.operations.query.context.context`."""
        began = time.perf_counter()
        try:
            answer = None
            if is_newest(request):
                at_once = request.model_copy(update={"after": None})
                reading = partial(self._window, key, at_once, place)
                newest, answer = await self.newest.beside(key, reading)
                request = request.model_copy(update={"after": newest})
            answer = answer or await self._window(key, request, place)
        finally:
            self.metrics.answered(CONTEXT, time.perf_counter() - began)
        self.metrics.shown(answer)
        if answer.hint is not None and request.follow_budget:
            self.hints.add(key, answer.hint)
        return answer

    async def _window(self, key: SessionKey, request: ContextRequest, place: Place) -> ContextReply:
        if request.after == "latest":
            request = await self._with_sequence(key, request)
        # The past is read from all versions and evictions, which costs as much as a search.
        if request.as_of is not None:
            place.search()
        try:
            async with asyncio.timeout(self.request_seconds + request.wait_seconds):
                try:
                    return await query.context(
                        key,
                        request,
                        store=self.windows,
                        environment=self.environment,
                        ingest_signal=placed(self.ingest_signal, place),
                    )
                except TooLargeHere:
                    if request.as_of is None:
                        place.search()
                    # Without a wait, which is over: a request that waits would hold one of the
                    # lane's few turns.
                    answer: ContextReply = await self.lane.ask(
                        key, request.model_copy(update={"wait_ms": 0})
                    )
                    return answer
        except TimeoutError:
            raise self._too_long() from None


def _with_freshness(reply: bytes, *, is_fresh: bool) -> bytes:
    """Add to an answer whether the event that its request named is ingested."""
    # A history and a result of a search have at least one field, so a comma may follow.
    return b'{"fresh": %s, ' % json.dumps(is_fresh).encode() + reply.removeprefix(b"{")


class QueryServer:
    """Answer requests concurrently, so that one that waits for an event delays no other."""

    def __init__(
        self, dispatcher: QueryDispatcher, metrics: QueryMetrics, limiter: ConcurrencyLimiter
    ) -> None:
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._limiter = limiter
        self._open: set[asyncio.Task[None]] = set()
        self._drains: list[Callable[[], Awaitable[None]]] = []

    def take(self, name: str, message: Msg) -> None:
        """Start a task that answers a request."""
        # In a task: nats-py reads the next message only after this has returned.
        task = asyncio.get_running_loop().create_task(self._answer(name, message))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def listen(self, client: NatsClient, name: str) -> None:
        """Subscribe without a framework, whose work per message takes as long as most windows."""
        handover = Handover(partial(self.take, name))
        subscription = await client.subscribe(
            wildcard_subject(name), queue=QUERY_QUEUE, future=handover
        )
        self._drains.append(partial(client.drain_subscription, subscription))

    async def close(self) -> None:
        """Stop taking requests, and finish those in progress."""
        drains = [drain() for drain in self._drains]
        await at_most(DRAIN_SECONDS, asyncio.gather(*drains, return_exceptions=True))
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _answer(self, name: str, message: Msg) -> None:
        # Workers answer the same subject when the request writes.
        is_command = name in POLICY_READS and not is_policy_read(message.data)
        # Without a reply subject, nobody would receive the answer.
        if is_command or not message.reply:
            return
        with span(name, kind="server", parent=extract_traceparent(message.headers)) as answering:
            try:
                body = await self._answered(name, message)
            except RequestError as error:
                self._metrics.refused(name, error.code)
                answering.set_attributes(refused=error.code)
                body = replies.as_error(error).encode()
            except Exception:
                log.exception("request.failed", request=name)
                self._metrics.refused(name, "unavailable")
                answering.set_attributes(refused="unavailable")
                body = replies.as_error(
                    Unavailable("the request failed; the log of the query service says why")
                ).encode()
            await answer(message, body)

    async def _answered(self, name: str, message: Msg) -> bytes:
        key = _key_of(name, message.subject)
        check_size(message.data)
        agent_id = key.agent_id if isinstance(key, SessionKey) else key
        await self._limiter.turn(agent_id)
        with self._limiter.admitted(agent_id) as place:
            model = REQUEST_MODELS[name]
            # If its subject also writes, its body may name only the ids of the subject.
            request = (
                read_command(model, key, message.data)
                if issubclass(model, Command)
                else read_request(model, message.data)
            )
            reply = await self._dispatcher.answer(name, key, request, place)
            body = with_ignored(reply, key, request)
        # The connection of the request, which nats-py does not publish.
        connection = message._client  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        # The caller would wait in vain for more.
        if len(body) > most_answer_bytes(connection):
            raise TooLarge(
                f"the answer has {len(body)} bytes, more than the bus carries; ask for less"
            )
        return body


_key_of = lru_cache(maxsize=1_024)(key_of_subject)
