"""Tools with which a model looks things up, answered inside the proxy.

The definitions are added to a request. If the model calls one of these tools, the proxy runs it and
asks the model again with the result, so that the caller only sees the last answer. An answer is
held until it has ended, because it may call a tool at its end.
"""

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import httpx
import structlog
from starlette.types import Receive
from starlette.types import Send as AsgiSend

from turnfold.client import Session
from turnfold.errors import BadRequest, RequestError, Unavailable
from turnfold_proxy.apis.api import Element, LookupCall, ModelAnswer
from turnfold_proxy.pauses import Pauses
from turnfold_proxy.recorder import Call
from turnfold_proxy.relay import AnswerTap, UpstreamBroken, until_gone
from turnfold_proxy.sse import SseDecoder, is_json
from turnfold_proxy.upstream import encoded, response_start

ROUNDS: Final = 5
"""The most rounds of lookups for one answer."""
CALLS: Final = 16
"""The most calls of one answer that are run."""
DEFINITION_SECONDS: Final = 600.0
HELD_BYTES: Final = 64 * 1024 * 1024
REFUSED: Final = frozenset({400, 404, 413, 422})
"""States with which providers refuse tools, or a request that the results made too long."""

_FAILED: Final = "The lookup failed. Answer with what you have."
_LAST: Final = "This was the last lookup: answer with what you have."

Send = Callable[[bytes], Awaitable[httpx.Response]]
"""Sends a body to the provider."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class HeldAnswer:
    """An answer that was held until its end, or until the provider broke it off.

    `answer` is None if the provider did not give one. `lookups` counts the calls that were run.
    """

    response: httpx.Response
    chunks: Sequence[bytes]
    answer: ModelAnswer | None
    is_whole: bool
    lookups: int

    async def pass_on(self, send: AsgiSend, headers: Mapping[str, str]) -> None:
        """Send the answer to the caller.

        Raises:
            UpstreamBroken: the provider broke off; the caller's connection must break as well.
        """
        await send(response_start(self.response, headers))
        for chunk in self.chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if not self.is_whole:
            raise UpstreamBroken
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class RecallTools:
    """Offers the tools of sessions to models. Their definitions are asked for every ten minutes."""

    def __init__(
        self, session: Callable[[str, str], Session], pauses: Pauses, *, wait_seconds: float
    ) -> None:
        self._session = session
        self._pauses = pauses
        self._wait_seconds = wait_seconds
        self._tools: Sequence[Element] = ()
        self._until = 0.0

    async def offered(self, call: Call) -> Call:
        """Return a call whose request has the tools; as it is, if they have no place in it.

        Raises:
            RequestError: Turnfold does not answer in time, or did not a moment ago, or an id cannot
                be one.
        """
        started = time.monotonic()
        if started >= self._until:
            self._pauses.check(call.key)
            try:
                async with asyncio.timeout(self._wait_seconds):
                    self._tools = await self._session(*call.key).tools()
            except (TimeoutError, Unavailable) as error:
                self._pauses.begin(call.key, error, started)
                raise Unavailable("Turnfold does not answer in time") from error
            self._pauses.answered()
            self._until = time.monotonic() + DEFINITION_SECONDS
        try:
            body = call.api.with_tools(call.body, self._tools)
            # Read again with the tools, whose tokens reduce the room of the window.
            conversation = call.api.conversation(body)
        except (ValueError, TypeError, AttributeError):
            return call
        names = frozenset(tool["name"] for tool in self._tools)
        if conversation is None or not names:
            return call
        own = call.body.get("tools")
        return replace(call, body=body, conversation=conversation, tools=names, own_tools=own)

    def lookups(self, call: Call, body: Mapping[str, Any], *, plain: bytes) -> "Lookups":
        """Return what answers the lookups of one call."""
        session = self._session(*call.key)
        return Lookups(call, session, body=body, plain=plain, wait_seconds=self._wait_seconds)


class Lookups:
    """Answers the lookups of one call. `body` is the request with the tools.

    `plain` is the request without them, for a provider that refuses them, and for a model that does
    not stop looking things up.
    """

    def __init__(
        self,
        call: Call,
        session: Session,
        *,
        body: Mapping[str, Any],
        plain: bytes,
        wait_seconds: float,
    ) -> None:
        self._api = call.api
        self._session = session
        self._names = call.tools
        self._body = body
        self._plain = plain
        self._wait_seconds = wait_seconds
        self._lookups = 0
        self._is_unanswered = False
        quoted = b"|".join(re.escape(name).encode() for name in sorted(call.tools))
        self._called = re.compile(rb'"name"\s*:\s*"(?:%b)"' % quoted)

    async def answered(self, send: Send, receive: Receive) -> HeldAnswer:
        """Ask the provider until it answers without a call of these tools.

        Raises:
            CallerGone: the caller did not wait.
            httpx.HTTPError: the provider does not answer.
        """
        body = self._body
        for number in range(ROUNDS + 1):
            held = await self._held(await send(encoded(body)), receive)
            if held.answer is None:
                if held.response.status_code in REFUSED:
                    break
                return held
            own = self._own_calls(held.answer)
            if not own and not self._has_unread_call(held):
                return held
            if not own or not held.is_whole or number == ROUNDS:
                break
            results = await until_gone(self._run(own, is_last=number == ROUNDS - 1), receive)
            body = self._api.with_lookups(body, held.answer.elements, self._names, results)
        log.info("proxy.without_tools", lookups=self._lookups)
        return await self._held(await send(self._plain), receive)

    def _own_calls(self, answer: ModelAnswer) -> list[LookupCall]:
        try:
            return [call for call in self._api.lookups(answer.elements) if call.name in self._names]
        except (TypeError, AttributeError, LookupError):
            return []

    def _has_unread_call(self, held: HeldAnswer) -> bool:
        """Return whether a call of these tools was cut off, so that the reader left it out.

        A compressed answer is not read, and may have one. Some servers name a coding, such as
        `none`, of an answer that is plain.
        """
        encoding = held.response.headers.get("content-encoding", "identity")
        if encoding != "identity" and not (held.answer and held.answer.elements):
            return True
        body = b"".join(held.chunks)
        # An answer that names none of these tools need not be parsed a second time.
        if self._called.search(body) is None:
            return False
        events = [body] if is_json(body) else SseDecoder().feed(body)
        return any(
            self._called.search(event) and not self._names.isdisjoint(_called_names(event))
            for event in events
        )

    async def _run(self, calls: Sequence[LookupCall], *, is_last: bool) -> list[tuple[str, str]]:
        """Run calls; return their ids and what the model reads."""
        results: list[tuple[str, str]] = []
        for place, call in enumerate(calls):
            # Providers require a result for each call, so those above the limit have one as well.
            text = await self._result(call) if place < CALLS else _FAILED
            results.append((call.call_id, f"{text}\n{_LAST}" if is_last else text))
        return results

    async def _result(self, call: LookupCall) -> str:
        self._lookups += 1
        if not isinstance(call.arguments, Mapping):
            return "The arguments are not a JSON object."
        if self._is_unanswered:
            return _FAILED
        try:
            async with asyncio.timeout(self._wait_seconds):
                return await self._session.run_tool(call.name, dict(call.arguments))
        except BadRequest as error:
            return str(error)
        except (TimeoutError, RequestError) as error:
            # Then the rest fail at once: an answer waits in vain for one lookup at most.
            self._is_unanswered = isinstance(error, TimeoutError) or (
                isinstance(error, Unavailable) and not error.is_answer
            )
            log.warning("proxy.lookup_failed", error=type(error).__name__)
            return _FAILED

    async def _held(self, response: httpx.Response, receive: Receive) -> HeldAnswer:
        """Read an answer to its end."""
        chunks: list[bytes] = []
        tap = AnswerTap(self._api.reader())

        async def read() -> bool:
            size = 0
            try:
                async for chunk in response.aiter_raw():
                    chunks.append(chunk)
                    tap.feed(chunk)
                    size += len(chunk)
                    if size > HELD_BYTES:
                        return False
            except httpx.HTTPError:
                return False
            return True

        try:
            is_whole = bool(await until_gone(read(), receive))
        finally:
            await response.aclose()
        is_answer = 200 <= response.status_code < 300
        answer = tap.answer() if is_answer else None
        if answer is not None and self._lookups:
            # The usage counts the lookups, which do not belong to the session.
            answer = replace(answer, usage=None)
        return HeldAnswer(response, chunks, answer, is_whole, self._lookups)


def _called_names(data: bytes) -> set[str]:
    """Return the names that an event or an answer has where calls are.

    An answer may repeat the tools of its request, whose names call nothing.
    """
    try:
        event = json.loads(data)
        response = event.get("response") or event
        calls = [event.get("item"), event.get("content_block")]
        calls += [*(response.get("output") or ()), *(response.get("content") or ())]
        for choice in event.get("choices") or ():
            message = choice.get("delta") or choice.get("message") or {}
            calls += [call.get("function") for call in message.get("tool_calls") or ()]
    except (ValueError, TypeError, AttributeError, RecursionError):
        return set()
    return {str(call.get("name")) for call in calls if isinstance(call, dict)}
