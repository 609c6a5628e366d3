"""The same questions over HTTP, the requests that write passed on to a worker, and the pages for people and machines."""

import json
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Final
from urllib.parse import unquote_to_bytes

import nats.errors
from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse
from nats.aio.msg import Msg
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from turnfold import contracts
from turnfold.access.actors import ACTOR_HEADER, signed_actor
from turnfold.access.bearers import TokenRegistry
from turnfold.bus.admission import ConcurrencyLimiter
from turnfold.contracts.answers import read_answer, request_name
from turnfold.contracts.events import EventLimits, read_payload
from turnfold.contracts.publish_errors import publish_error
from turnfold.contracts.requests import (
    MAX_WAIT_MS,
    AuditRequest,
    CampaignRequest,
    CompactionRequest,
    ContextRequest,
    ErrorReply,
    ExpandRequest,
    HistoryRequest,
    PolicyReadRequest,
    PolicyRequest,
    RegenerateRequest,
    ReplayRequest,
    SearchRequest,
    SessionRequest,
    SummaryRequest,
    read_query,
)
from turnfold.contracts.requests import Request as Asked
from turnfold.contracts.subjects import (
    EVENT_TYPES,
    EVENTS_STREAM,
    id_fault,
    message_header,
    session_subject,
    token_of,
)
from turnfold.errors import (
    BadEvent,
    BadRequest,
    NotAllowed,
    RequestError,
    TooLarge,
    Unavailable,
    UnknownSession,
)
from turnfold.messages import AgentId, SessionId, SessionKey
from turnfold.nats_client.acknowledgements import Acknowledgement, Publisher, Rejection
from turnfold.nats_client.connection import NatsClient
from turnfold.observability.tracing import HEADER, is_enabled, span
from turnfold.operations.query import dead_letters as letters
from turnfold.operations.query import history
from turnfold.ports.admin import DeadLetterStore
from turnfold.ports.query import HistoryStore
from turnfold_query.admission import (
    BODY_SHARE,
    BodyMemory,
    ConcurrencyMiddleware,
    place_of,
    refusal,
    retry_after,
)
from turnfold_query.auth import AuthMiddleware, request_grant
from turnfold_query.handlers import QueryDispatcher
from turnfold_query.metrics import QueryMetrics
from turnfold_query.reference_page import reference_page

ENVELOPE_BYTES = 64 * 1024
REQUEST_BYTES = 256 * 1024
WRITE_SECONDS = 10.0
PUBLISH_SECONDS = 5.0
NOT_ON_WIRE = "type"

AgentPath = Annotated[str, Path(description="One percent-encoded segment.")]
SessionPath = Annotated[str, Path(description="One percent-encoded segment.")]


class EncodedPaths:
    """Route on the path as it was sent, so that a `%2F` inside an id stays inside it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on with its path undecoded."""
        if scope["type"] == "http":
            scope = dict(scope)
            scope["path"] = scope["raw_path"].decode("ascii", "replace")
        await self._app(scope, receive, send)


class TracingMiddleware:
    """Record each request in the trace that its header names."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on, and call it by its route, which holds no id."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with span(
            scope["method"], kind="server", parent=Headers(scope=scope).get(HEADER)
        ) as answering:
            await self._app(scope, receive, send)
            if path := getattr(scope.get("route"), "path", None):
                answering.rename(f"{scope['method']} {path}")


def make_http(  # noqa: PLR0913  # it is told of every part
    *,
    questions: QueryDispatcher,
    histories: HistoryStore,
    dead_letters: DeadLetterStore,
    client: NatsClient,
    metrics: QueryMetrics,
    limits: EventLimits,
    is_ready: Callable[[], Awaitable[list[str]]],
    asyncapi: Callable[[], str],
    admission: ConcurrencyLimiter,
    memory_bytes: int,
    request_seconds: float,
    read_secret: Callable[[], Awaitable[str]],
    bearers: TokenRegistry | None = None,
) -> ASGIApp:
    """The HTTP application; with `bearers`, for those alone who show a token."""
    app = FastAPI(
        title="Turnfold",
        summary="What should my model see next?",
        description=contracts.__doc__ or "",
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        responses={"default": {"model": ErrorReply, "description": "What was wrong, or is."}},
    )
    _errors(app)
    _reads(app, questions)
    _policies(app, questions)
    _publishes(app, Publisher(client, EVENTS_STREAM, on_foreign=metrics.disturbed), limits)
    _writes(app, Forwarder(client, read_secret).forward)
    _listings(app, histories, dead_letters)
    _pages(app, histories, metrics, is_ready, asyncapi)
    largest = limits.bytes + ENVELOPE_BYTES
    admitted = ConcurrencyMiddleware(
        app,
        admission,
        BodyMemory(memory_bytes, max(int(memory_bytes * BODY_SHARE), largest)),
        most_bytes=lambda scope: largest if scope["path"].endswith("/events") else REQUEST_BYTES,
        seconds=request_seconds + MAX_WAIT_MS / 1000,
        on_refusal=lambda code: metrics.refused("http", code),
    )
    guarded = (
        admitted
        if bearers is None
        else AuthMiddleware(
            admitted, bearers, on_refusal=lambda: metrics.refused("http", NotAllowed.code)
        )
    )
    return EncodedPaths(TracingMiddleware(guarded) if is_enabled() else guarded)


# --- what is written down of bodies, which the application does not read itself

EVENT_BODY: Final[Mapping[str, Any]] = {
    "required": True,
    "description": "An event as it travels, and its `type`.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["type", "event_id", "agent_id", "session_id"],
                "properties": {
                    "type": {"enum": list(EVENT_TYPES)},
                    "event_id": {"type": "string"},
                    "agent_id": {"type": "string"},
                    "session_id": {"type": "string"},
                },
            }
        }
    },
}


def _asks(shape: type[Asked]) -> dict[str, Any]:
    return {"requestBody": {"content": {"application/json": {"schema": shape.model_json_schema()}}}}


# --- errors


def _errors(app: FastAPI) -> None:
    @app.exception_handler(RequestError)
    async def on_refusal(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestError)
        return refusal(error)

    @app.exception_handler(RequestValidationError)
    async def on_invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        return _json(
            BadRequest(f"{'.'.join(map(str, first['loc']))}: {first['msg']}").as_json(),
            BadRequest.status,
        )

    @app.exception_handler(HTTPException)
    async def on_http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        found = (
            UnknownSession(f"nothing is here: {error.detail}")
            if error.status_code == UnknownSession.status
            else None
        )
        return _json((found or BadRequest(str(error.detail))).as_json(), error.status_code)


def _json(value: Any, status: int = 200) -> Response:
    return _body_of(json.dumps(value).encode(), status)


def _body_of(body: bytes, status: int = 200, **headers: str) -> Response:
    return Response(body, status, media_type="application/json", headers=headers)


def _decoded(segment: str) -> str:
    try:
        found = unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise BadRequest("an id in the path is no UTF-8 text") from None
    if fault := id_fault(found):
        raise BadRequest(f"an id in the path {fault}")
    return found


def _key(agent_id: str, session_id: str) -> SessionKey:
    return SessionKey(AgentId(_decoded(agent_id)), SessionId(_decoded(session_id)))


SESSION = "/v1/agents/{agent_id}/sessions/{session_id}"
AGENT = "/v1/agents/{agent_id}"


# --- reading


def _reads(app: FastAPI, questions: QueryDispatcher) -> None:
    async def answered(
        name: str, http: Request, agent_id: str, session_id: str, asked: Asked
    ) -> Response:
        return _body_of(
            await questions.answer(name, _key(agent_id, session_id), asked, place_of(http.scope))
        )

    @app.get(
        SESSION + "/context",
        summary="What should my model see next?",
        response_model=None,
        responses={304: {"description": "Nothing changed since `etag`.", "content": {}}},
    )
    async def get_context(
        agent_id: AgentPath,
        session_id: SessionPath,
        asked: Annotated[ContextRequest, Query()],
        http: Request,
    ) -> Response:
        tag = http.headers.get("if-none-match")
        if tag is not None and asked.etag is None:
            asked = asked.model_copy(update={"etag": tag.strip().removeprefix("W/").strip('"')})
        answer = await questions.context(_key(agent_id, session_id), asked, place_of(http.scope))
        if not answer.is_modified:
            return Response(status_code=304, headers={"ETag": f'"{answer.etag}"'})
        return _body_of(answer.body, ETag=f'"{answer.etag}"')

    @app.get(SESSION + "/history", summary="Originals, in any state", response_model=None)
    async def get_history(
        agent_id: AgentPath,
        session_id: SessionPath,
        asked: Annotated[HistoryRequest, Query()],
        http: Request,
    ) -> Response:
        return await answered("history.get", http, agent_id, session_id, asked)

    @app.get(SESSION + "/search", summary="Words in all messages", response_model=None)
    async def get_search(
        agent_id: AgentPath,
        session_id: SessionPath,
        asked: Annotated[SearchRequest, Query()],
        http: Request,
    ) -> Response:
        return await answered("history.search", http, agent_id, session_id, asked)

    @app.get(SESSION + "/summaries", summary="All versions", response_model=None)
    async def get_summaries(
        agent_id: AgentPath, session_id: SessionPath, http: Request
    ) -> Response:
        return await answered("summary.list", http, agent_id, session_id, SessionRequest())

    @app.get(SESSION + "/summaries/{version}", summary="One version", response_model=None)
    async def get_summary(
        agent_id: AgentPath, session_id: SessionPath, version: str, http: Request
    ) -> Response:
        asked = read_query(SummaryRequest, {"version": version})
        return await answered("summary.get", http, agent_id, session_id, asked)

    @app.get(
        SESSION + "/summaries/{version}/sources",
        summary="The messages that an entry or a line came from",
        response_model=None,
    )
    async def get_sources(
        agent_id: AgentPath,
        session_id: SessionPath,
        version: str,
        http: Request,
        entry: str | None = None,
        line: str | None = None,
    ) -> Response:
        given = {"version": version, "entry": entry, "line": line}
        asked = read_query(
            ExpandRequest, {name: value for name, value in given.items() if value is not None}
        )
        return await answered("summary.expand", http, agent_id, session_id, asked)

    @app.get(SESSION + "/audit", summary="What happened to a session", response_model=None)
    async def get_audit(
        agent_id: AgentPath,
        session_id: SessionPath,
        asked: Annotated[AuditRequest, Query()],
        http: Request,
    ) -> Response:
        return await answered("audit.list", http, agent_id, session_id, asked)

    @app.get(SESSION, summary="Counters", response_model=None)
    async def get_session(agent_id: AgentPath, session_id: SessionPath, http: Request) -> Response:
        return await answered("session.get", http, agent_id, session_id, SessionRequest())


def _policies(app: FastAPI, questions: QueryDispatcher) -> None:
    @app.get(
        SESSION + "/policy",
        summary="The policy in force, and where each number comes from",
        response_model=None,
    )
    async def get_policy(agent_id: AgentPath, session_id: SessionPath, http: Request) -> Response:
        key = _key(agent_id, session_id)
        return _body_of(
            await questions.answer("session.policy", key, PolicyReadRequest(), place_of(http.scope))
        )

    @app.get(
        AGENT + "/policy",
        summary="The policy of an agent's sessions, where they set none themselves",
        response_model=None,
    )
    async def get_agent_policy(agent_id: AgentPath, http: Request) -> Response:
        key = AgentId(_decoded(agent_id))
        return _body_of(
            await questions.answer("agent.policy", key, PolicyReadRequest(), place_of(http.scope))
        )


# --- writing


def _publishes(app: FastAPI, publisher: Publisher, limits: EventLimits) -> None:
    secret = secrets.token_urlsafe(12)

    @app.post(
        SESSION + "/events",
        summary="Publish an event",
        response_model=None,
        openapi_extra={"requestBody": EVENT_BODY},
    )
    async def post_event(agent_id: AgentPath, session_id: SessionPath, http: Request) -> Response:
        key, body = _key(agent_id, session_id), await http.body()
        kind = _kind_of(body)
        try:
            event = read_payload(kind, body, limits)
        except BadEvent as error:
            raise (TooLarge if error.reason == "too_large" else BadRequest)(str(error)) from None
        if event.key != key:
            raise BadRequest("the event names another agent or session than the path")
        headers = {
            "Nats-Expected-Stream": EVENTS_STREAM,
            "Nats-Msg-Id": message_header(key.agent_id, event.event_id, secret),
        }
        try:
            with span("publish", kind="producer", event=kind) as publishing:
                told = await publisher.publish(
                    session_subject(kind, key),
                    body,
                    headers=headers | dict(publishing.headers),
                    seconds=PUBLISH_SECONDS,
                )
                publishing.set_attributes(
                    stream_seq=told.seq if isinstance(told, Acknowledgement) else None
                )
        except nats.errors.Error as error:
            raise publish_error(None, type(error).__name__) from None
        if isinstance(told, Rejection):
            raise publish_error(told.code, told.description)
        return _json({"seq": told.seq})


class Forwarder:
    """Passes requests that write on to a worker, which alone writes."""

    def __init__(self, client: NatsClient, read_secret: Callable[[], Awaitable[str]]) -> None:
        self._client = client
        self._read_secret = read_secret

    async def forward(self, subject: str, http: Request, **named: Any) -> Response:
        """Ask a worker; what the path names stands in the request."""
        if http.query_params:
            raise BadRequest(
                "a request that writes takes its fields in the body, not in the query of its URL"
            )
        body = _with(await http.body(), named)
        headers = await self._signed(subject, body, request_grant(http.scope).name)
        try:
            read = partial(_answer, request_name(subject))
            data, told = await self._client.reply(
                subject, body, seconds=WRITE_SECONDS, read=read, headers=headers
            )
        except nats.errors.Error:
            raise Unavailable("no worker answers; try again when one runs") from None
        error = told.get("error", {})
        code = error.get("code")
        return _body_of(
            data,
            _STATUS.get(code, 400) if code else 200,
            **retry_after(error.get("retry_after_ms")),
        )

    async def _signed(self, subject: str, body: bytes, name: str | None) -> dict[str, str] | None:
        """The header that says by whose token a request came; None where nobody has to show one."""
        if name is None:
            return None
        now_ms = time.time_ns() // 1_000_000
        return {
            ACTOR_HEADER: signed_actor(
                await self._read_secret(),
                f"token:{name}",
                subject=subject,
                body=body,
                now_ms=now_ms,
            )
        }


def _answer(name: str, reply: Msg) -> tuple[bytes, Mapping[str, Any]] | None:
    """Read the answer of a worker; None if the reply is not one."""
    told = read_answer(name, reply.data)
    return None if told is None else (reply.data, told)


Forward = Callable[..., Awaitable[Response]]


def _writes(app: FastAPI, forward: Forward) -> None:
    @app.patch(
        SESSION + "/policy",
        summary="Set what a session wants",
        response_model=None,
        openapi_extra=_asks(PolicyRequest),
    )
    async def patch_policy(agent_id: AgentPath, session_id: SessionPath, http: Request) -> Response:
        return await forward(session_subject("session.policy", _key(agent_id, session_id)), http)

    @app.patch(
        AGENT + "/policy",
        summary="Set what an agent wants",
        response_model=None,
        openapi_extra=_asks(PolicyRequest),
    )
    async def patch_agent_policy(agent_id: AgentPath, http: Request) -> Response:
        return await forward(f"agent.policy.{token_of(_decoded(agent_id))}", http)

    @app.post(
        SESSION + "/compactions",
        summary="Compact now",
        response_model=None,
        openapi_extra=_asks(CompactionRequest),
    )
    async def post_compaction(
        agent_id: AgentPath, session_id: SessionPath, http: Request
    ) -> Response:
        return await forward(
            session_subject("compaction.request", _key(agent_id, session_id)), http
        )

    @app.post(
        SESSION + "/summaries",
        summary="Have the summary written anew, beside the old",
        response_model=None,
        openapi_extra=_asks(RegenerateRequest),
    )
    async def post_summary(agent_id: AgentPath, session_id: SessionPath, http: Request) -> Response:
        return await forward(
            session_subject("summary.regenerate", _key(agent_id, session_id)), http
        )

    @app.post(
        AGENT + "/summaries",
        summary="Have all summaries of an agent written anew",
        response_model=None,
        openapi_extra=_asks(CampaignRequest),
    )
    async def post_agent_summaries(agent_id: AgentPath, http: Request) -> Response:
        return await forward(f"agent.regenerate.{token_of(_decoded(agent_id))}", http)

    @app.post(
        "/v1/summaries",
        summary="Have all summaries written anew",
        response_model=None,
        openapi_extra=_asks(CampaignRequest),
    )
    async def post_all_summaries(http: Request) -> Response:
        return await forward("installation.regenerate", http)

    @app.get(
        "/v1/campaigns/{campaign_id}",
        summary="How far a regeneration of many is",
        response_model=None,
    )
    async def get_campaign(campaign_id: str, http: Request) -> Response:
        return await forward("campaign.get", http, campaign_id=campaign_id)

    @app.post(
        SESSION + "/summaries/{version}/promote",
        summary="Put a version in force",
        response_model=None,
    )
    async def post_promotion(
        agent_id: AgentPath, session_id: SessionPath, version: str, http: Request
    ) -> Response:
        asked = read_query(SummaryRequest, {"version": version})
        return await forward(
            session_subject("summary.promote", _key(agent_id, session_id)),
            http,
            version=asked.version,
        )

    @app.post(
        SESSION + "/compactions/{compaction_id}/restore",
        summary="Undo a compaction",
        response_model=None,
    )
    async def post_restoration(
        agent_id: AgentPath, session_id: SessionPath, compaction_id: str, http: Request
    ) -> Response:
        return await forward(
            session_subject("compaction.restore", _key(agent_id, session_id)),
            http,
            compaction_id=compaction_id,
        )

    _replays(app, forward)
    _erasures(app, forward)


def _replays(app: FastAPI, forward: Forward) -> None:
    @app.post(
        "/v1/deadletters/replay",
        summary="Publish dead letters again",
        response_model=None,
        openapi_extra=_asks(ReplayRequest),
    )
    async def post_replay(http: Request) -> Response:
        return await forward("deadletters.replay", http)


def _erasures(app: FastAPI, forward: Forward) -> None:
    @app.delete(SESSION, summary="Erase a session for good", response_model=None)
    async def delete_session(
        agent_id: AgentPath, session_id: SessionPath, http: Request
    ) -> Response:
        return await forward(session_subject("session.erase", _key(agent_id, session_id)), http)

    @app.delete(AGENT, summary="Erase all of an agent for good", response_model=None)
    async def delete_agent(agent_id: AgentPath, http: Request) -> Response:
        return await forward(f"agent.erase.{token_of(_decoded(agent_id))}", http)


_STATUS = {error.code: error.status for error in RequestError.__subclasses__()} | {
    RequestError.code: RequestError.status
}


def _with(body: bytes, named: dict[str, Any]) -> bytes:
    """A request's JSON with what its path names."""
    if not named:
        return body
    try:
        found = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise BadRequest("the body is no JSON") from None
    if not isinstance(found, dict):
        raise BadRequest("the body is no JSON object")
    return json.dumps(found | named).encode()


def _kind_of(body: bytes) -> str:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise BadRequest("the body is no JSON") from None
    kind = found.get(NOT_ON_WIRE) if isinstance(found, dict) else None
    if kind not in EVENT_TYPES:
        raise BadRequest(f"type must be one of {', '.join(EVENT_TYPES)}")
    return str(kind)


# --- listings and pages


def _listings(app: FastAPI, histories: HistoryStore, dead_letters: DeadLetterStore) -> None:
    @app.get("/v1/sessions", summary="Sessions, the newest event first", response_model=None)
    async def get_sessions(
        http: Request,
        agent_id: str | None = None,
        after: Annotated[
            str | None, Query(max_length=100, description="`next_after` of the page before.")
        ] = None,
        limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    ) -> Response:
        if agent_id is not None and (fault := id_fault(agent_id)):
            raise BadRequest(f"agent_id {fault}")
        agents = request_grant(http.scope).agents_among(agent_id)
        return _json(
            await history.sessions(agent_ids=agents, after=after, limit=limit, store=histories)
        )

    @app.get("/v1/deadletters", summary="Events that could not be stored", response_model=None)
    async def get_dead_letters(
        after: Annotated[int, Query(ge=0, le=2**63 - 1)] = 0,
        limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    ) -> Response:
        return _json(await history.dead_letters(after=after, limit=limit, store=histories))

    @app.get(
        "/v1/deadletters/{dead_letter_id}",
        summary="One of them with its bytes",
        response_model=None,
    )
    async def get_dead_letter(dead_letter_id: Annotated[int, Path(ge=1, le=2**63 - 1)]) -> Response:
        return _json(await letters.show(dead_letter_id, store=dead_letters))


def _pages(
    app: FastAPI,
    histories: HistoryStore,
    metrics: QueryMetrics,
    is_ready: Callable[[], Awaitable[list[str]]],
    asyncapi: Callable[[], str],
) -> None:
    @app.get("/healthz", summary="Whether this process lives", response_model=None)
    async def get_health() -> Response:
        return _json({"status": "ok"})

    @app.get("/readyz", summary="Whether this process can answer", response_model=None)
    async def get_readiness() -> Response:
        missing = await is_ready()
        return _json(
            {"status": "ready" if not missing else "not ready", "missing": missing},
            503 if missing else 200,
        )

    @app.get(
        "/metrics",
        summary="Figures in the Prometheus format",
        response_model=None,
        response_class=PlainTextResponse,
    )
    async def get_metrics() -> Response:
        # Without a database the other figures are wanted all the more.
        with suppress(Unavailable):
            metrics.buried(await histories.dead_letter_counts())
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get(
        "/docs", summary="This interface, to read", response_model=None, response_class=HTMLResponse
    )
    async def get_docs() -> Response:
        return HTMLResponse(reference_page(app.openapi()))

    @app.get("/asyncapi.json", summary="The bus, to machines", response_model=None)
    async def get_asyncapi() -> Response:
        return _body_of(asyncapi().encode())
