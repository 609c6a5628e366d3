"""Relay an answer to the caller byte for byte, while it is read for the session."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

import httpx
from starlette.types import Receive, Send

from turnfold_proxy.apis.api import AnswerReader, ModelAnswer
from turnfold_proxy.sse import SseDecoder, is_json
from turnfold_proxy.upstream import response_start

READ_BYTES: Final = 64 * 1024 * 1024
"""A longer answer is relayed, but not recorded."""

Result = TypeVar("Result")

Ended = Callable[[ModelAnswer, bool], None]
"""Called with the answer as far as it came, and whether that is all of it."""


class CallerGone(Exception):
    """The caller has closed the connection."""


class UpstreamBroken(Exception):
    """The provider has broken off its answer; the caller's connection must break as well."""


class AnswerTap:
    """Read the bytes of an answer that pass by, up to data that is not JSON.

    Clients stop there as well. An answer with events of an unknown form is not recorded.
    """

    def __init__(self, reader: AnswerReader) -> None:
        self._reader = reader
        self._events = SseDecoder()
        self._body = bytearray()
        self._is_json: bool | None = None
        self._left = READ_BYTES
        self._can_read = True
        self._has_failed = False
        self._is_garbled = False

    def feed(self, chunk: bytes) -> None:
        """Read a chunk."""
        self._left -= len(chunk)
        self._can_read = self._can_read and self._left >= 0
        if not self._can_read:
            return
        if self._is_json is None:
            self._is_json = is_json(chunk)
        if self._is_json:
            self._body += chunk
            return
        for data in self._events.feed(chunk):
            # Streams of chat completions end with this text, which is not JSON; clients read only
            # its beginning.
            if not data.startswith(b"[DONE]") and not self._is_garbled:
                self._add(data)

    def answer(self) -> ModelAnswer:
        """Return the answer so far."""
        # A stream was read event by event. A JSON body that was cut off cannot be read,
        # but it may be complete and lack only the end of the transfer.
        if self._is_json and self._can_read:
            self._add(bytes(self._body))
        try:
            answer = self._reader.answer() if self._can_read else ModelAnswer([])
            return replace(answer, has_failed=self._has_failed and not answer.has_ended)
        except (ValueError, TypeError, AttributeError, LookupError):
            return ModelAnswer([])

    def _add(self, data: bytes) -> None:
        # Providers differ, and an answer that is not understood must still reach its caller.
        try:
            try:
                event = json.loads(data)
            except ValueError:
                self._is_garbled = self._has_failed = True
                return
            if isinstance(event, dict):
                self._reader.add(event)
                # In the stream, because its status was sent before.
                response = event.get("response")
                failed = response if isinstance(response, dict) else event
                self._has_failed |= event.get("type") == "error" or bool(failed.get("error"))
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
            self._can_read = False


async def relay(
    response: httpx.Response,
    receive: Receive,
    send: Send,
    *,
    headers: Mapping[str, str],
    tap: AnswerTap | None = None,
    ended: Ended | None = None,
) -> None:
    """Send a response to the caller.

    `ended` is called before the caller sees the end, so that a call that follows comes later.

    Raises:
        CallerGone: the caller did not wait for the end.
        UpstreamBroken: the provider broke off.
    """

    def end(*, is_whole: bool) -> None:
        if tap is not None and ended is not None:
            ended(tap.answer(), is_whole)

    async def pass_on() -> None:
        await send(response_start(response, headers))
        async for chunk in response.aiter_raw():
            if tap is not None:
                tap.feed(chunk)
            await send({"type": "http.response.body", "body": chunk, "more_body": True})

    try:
        await until_gone(pass_on(), receive)
    except httpx.HTTPError as error:
        end(is_whole=False)
        raise UpstreamBroken from error
    except (CallerGone, asyncio.CancelledError):
        end(is_whole=False)
        raise
    finally:
        await response.aclose()
    end(is_whole=True)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def until_gone(work: Coroutine[Any, Any, Result], receive: Receive) -> Result:
    """Return the result of a coroutine; it is canceled if the caller closes the connection.

    Raises:
        CallerGone: the caller has closed it.
    """
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise CallerGone
    finally:
        for task in (working, leaving):
            task.cancel()
        # Awaited, so that no two tasks wait in `receive` at once.
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
