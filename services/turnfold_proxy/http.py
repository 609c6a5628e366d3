"""The HTTP application: model calls, everything else of the provider, and the proxy's own pages."""

import asyncio
import time
from functools import partial
from typing import Any, Final

import httpx
import structlog
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from turnfold.contracts.json_values import read_json
from turnfold.contracts.subjects import id_fault
from turnfold.errors import RequestError
from turnfold_proxy import own_headers
from turnfold_proxy.apis import APIS
from turnfold_proxy.apis.api import Api, ModelAnswer
from turnfold_proxy.lookups import RecallTools
from turnfold_proxy.metrics import ProxyMetrics
from turnfold_proxy.recorder import Call, PreparedCall, Recorder
from turnfold_proxy.relay import AnswerTap, CallerGone, UpstreamBroken, relay, until_gone
from turnfold_proxy.session_of_request import session_id
from turnfold_proxy.upstream import API_ROOT, Upstream, encoded

BODY_BYTES: Final = 64 * 1024 * 1024

log = structlog.get_logger()


class ProxyApp:
    """An ASGI application that stands in front of one provider."""

    def __init__(
        self,
        upstream: Upstream,
        recorder: Recorder,
        metrics: ProxyMetrics,
        tools: RecallTools,
        *,
        agent_id: str,
        has_tools: bool,
    ) -> None:
        self._upstream = upstream
        self._recorder = recorder
        self._metrics = metrics
        self._tools = tools
        self._agent_id = agent_id
        self._has_tools = has_tools

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        page = self._page(scope)
        if page is not None:
            await page(scope, receive, send)
            return
        try:
            body = await _read(receive)
            if body is None:
                await _refuse(413, f"the body is longer than {BODY_BYTES} bytes")(
                    scope, receive, send
                )
                return
            await self._forward(scope, receive, send, body)
        except CallerGone:
            return
        except httpx.InvalidURL:
            await _refuse(400, "the provider has no such address")(scope, receive, send)
        except httpx.HTTPError as error:
            log.warning("proxy.upstream", error=type(error).__name__)
            # Nothing was sent yet: an answer that breaks off later is an `UpstreamBroken`.
            await _refuse(502, "the provider does not answer; check TURNFOLD_PROXY_UPSTREAM")(
                scope, receive, send
            )

    def _page(self, scope: Scope) -> Response | None:
        """Return a page of the proxy itself."""
        if scope["method"] not in ("GET", "HEAD"):
            return None
        match scope["path"]:
            case "/healthz" | "/readyz":
                return JSONResponse({"status": "ok"})
            case "/metrics":
                return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")
            case _:
                return None

    async def _forward(self, scope: Scope, receive: Receive, send: Send, body: bytes) -> None:
        headers = Headers(scope=scope)
        # A base URL without /v1 works as well if the provider's URL ends with it.
        path = API_ROOT + scope["path"].removeprefix(API_ROOT)
        api = APIS.get(path) if scope["method"] == "POST" else None
        if api is None:
            response = await self._sent(scope, receive, body, is_plain=False)
            await _relayed(relay(response, receive, send, headers={}))
            return
        started = time.perf_counter()
        added: dict[str, str] = {}
        prepared, content = None, body
        try:
            call = self._call(api, headers, body)
            # An id from the body may hold line breaks, with which it would end its header.
            if id_fault(call.session_id) is None:
                added[own_headers.SESSION] = call.session_id
            if own_headers.wants_tools(headers, default=self._has_tools):
                call = await until_gone(self._tools.offered(call), receive)
            prepared = await until_gone(self._recorder.prepare(call), receive)
            if prepared.body is not None:
                # Without the added tools, because lookups fall back to this request.
                content = encoded(call.without_added_tools(prepared.body))
            added[own_headers.TOKENS] = str(prepared.tokens)
            added[own_headers.VERSION] = str(prepared.version)
        except CallerGone:
            raise
        except Exception as error:  # noqa: BLE001 - no fault of the proxy may stop a call
            prepared = None
            added[own_headers.BYPASSED] = reason = _reason(error)
            self._metrics.bypassed(reason)
        # `content` is still the caller's own object unless a window has replaced it.
        sent = "bypassed" if prepared is None else "whole" if content is body else "trimmed"
        self._metrics.prepared(sent, time.perf_counter() - started)
        await self._answer(scope, receive, send, prepared, content, added)

    async def _answer(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        prepared: PreparedCall | None,
        content: bytes,
        added: dict[str, str],
    ) -> None:
        """Send a request to the provider and relay its answer; record it if there is a call."""
        if prepared is None:
            response = await self._sent(scope, receive, content)
            await _relayed(relay(response, receive, send, headers=added))
            return
        call, ended = prepared.call, partial(self._ended, prepared)
        if not call.tools:
            response = await self._sent(scope, receive, content)
            is_answer = 200 <= response.status_code < 300
            tap = AnswerTap(call.api.reader()) if is_answer else None
            await _relayed(relay(response, receive, send, headers=added, tap=tap, ended=ended))
            return
        lookups = self._tools.lookups(call, prepared.body or call.body, plain=content)
        held = await lookups.answered(partial(self._sent, scope, receive), receive)
        self._metrics.looked_up(held.lookups)
        added[own_headers.LOOKUPS] = str(held.lookups)
        # Before the caller sees the end, so that its next call comes later.
        if held.answer is not None:
            ended(held.answer, held.is_whole)
        await _relayed(held.pass_on(send, added))

    def _ended(
        self,
        prepared: PreparedCall,
        answer: ModelAnswer,
        is_whole: bool,  # noqa: FBT001 - called as `Ended`
    ) -> None:
        """Begin to record the answer to a call, and count it when that has ended."""
        is_whole = is_whole and not answer.has_failed
        try:
            recording = self._recorder.record(prepared, answer, is_whole=is_whole)
        except Exception as error:  # noqa: BLE001 - the caller gets the answer all the same
            log.warning("proxy.unrecorded", error=type(error).__name__)
            recording = None
        if recording is None:
            self._metrics.answered("unrecorded")
            return

        def count(task: asyncio.Task[bool]) -> None:
            is_failed = task.cancelled() or task.exception() is not None
            is_recorded = not is_failed and task.result()
            recorded = "recorded" if is_whole else "cut"
            self._metrics.answered(recorded if is_recorded else "unrecorded")

        recording.add_done_callback(count)

    def _call(self, api: Api, headers: Headers, body: bytes) -> Call:
        """Read a model call.

        Raises:
            _Untouched: the request is none that the proxy understands.
        """
        if headers.get("content-encoding", "identity") != "identity":
            raise _Untouched
        try:
            parsed = read_json(body)
            conversation = api.conversation(parsed) if isinstance(parsed, dict) else None
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise _Untouched from error
        if conversation is None or not conversation.elements:
            raise _Untouched
        return Call(
            api=api,
            agent_id=own_headers.identifier(headers, own_headers.AGENT) or self._agent_id,
            session_id=session_id(headers, parsed, conversation),
            body=parsed,
            conversation=conversation,
            budget_tokens=own_headers.budget(headers),
        )

    async def _sent(
        self, scope: Scope, receive: Receive, content: bytes, *, is_plain: bool = True
    ) -> httpx.Response:
        query = scope["query_string"].decode("latin-1")
        target = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
        sending = self._upstream.send(
            scope["method"], target, scope["headers"], content, is_plain=is_plain
        )
        response: httpx.Response = await until_gone(sending, receive)
        return response


class _Untouched(Exception):
    """A request that is forwarded without a session."""

    code = "unread"


def _reason(error: Exception) -> str:
    """Return why a call is sent unchanged; a fault of the proxy is logged."""
    if isinstance(error, RequestError | _Untouched):
        return error.code
    if isinstance(error, RecursionError):
        return _Untouched.code
    # Without its text, which may quote a user.
    log.warning("proxy.failed", error=type(error).__name__)
    return "failed"


async def _relayed(relaying: Any) -> None:
    """Wait for the end of an answer, or until the provider has broken it off.

    The server then closes the connection without the end of the body, so that no client takes the
    answer for whole.
    """
    try:
        await relaying
    except UpstreamBroken as error:
        log.warning("proxy.cut", error=type(error.__cause__).__name__)


async def _read(receive: Receive) -> bytes | None:
    """Read a body; None if it is too long.

    Raises:
        CallerGone: the caller closed the connection before its end.
    """
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise CallerGone
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > BODY_BYTES:
            return None
        if not message.get("more_body", False):
            return b"".join(chunks)


def _refuse(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": "turnfold_proxy"}}, status)
