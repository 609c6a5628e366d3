"""Calls of the HTTP API within this process, with the visitor's token."""

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

DOTS_END: Final = "%7F"
"""Follows an id that is `.` or `..` in paths of the console, because browsers resolve such a
segment, even if it is encoded. No id contains this character."""
_DOTS: Final = re.compile(rf"/(\.\.?){DOTS_END}(?=/|$)")
_SERVER = ("console", 0)


class ApiError(Exception):
    """An error that the API answered.

    `status` is that of HTTP, `code` and `message` are those of the error.
    """

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        self.status = status
        self.code = str(error.get("code", "unavailable"))
        self.message = str(error.get("message", "the request failed"))
        super().__init__(self.message)


@dataclass(frozen=True, slots=True)
class ApiCaller:
    """The API as one caller reaches it; without a token, as anybody does."""

    app: ASGIApp
    token: str | None = None

    async def get(self, path: str, **query: object) -> dict[str, Any]:
        """Return what the API answers; parameters that are None are left out.

        `path` is percent-encoded.

        Raises:
            ApiError: the answer is an error.
        """
        chosen = {name: value for name, value in query.items() if value is not None}
        return await self._call("GET", path, urlencode(chosen, doseq=True), b"")

    async def post(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request that writes, and return what the API answers.

        Raises:
            ApiError: the answer is an error.
        """
        return await self._call("POST", path, "", json.dumps(dict(body or {})).encode())

    def stream(self, path: str) -> "StreamedAnswer":
        """Return the answer of the API to a GET as a response of the console, part by part."""
        return StreamedAnswer(self, path)

    async def _call(self, method: str, path: str, query: str, body: bytes) -> dict[str, Any]:
        status, parts = 500, []
        is_read = False

        async def receive() -> Message:
            nonlocal is_read
            if is_read:
                # Nobody hangs up here; the API's own time limit ends what takes too long.
                await asyncio.get_running_loop().create_future()
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                parts.append(message.get("body", b""))

        await self.app(self.scope(method, path, query, body), receive, send)
        return _answer(status, b"".join(parts))

    def scope(self, method: str, path: str, query: str, body: bytes) -> Scope:
        """Return the request as an ASGI server would."""
        path = _DOTS.sub(r"/\1", path)
        headers = [
            (b"host", b"console"),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        if self.token is not None:
            headers.append((b"authorization", b"Bearer " + self.token.encode("latin-1", "replace")))
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            # Undecoded, as the routes of the API expect it.
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": headers,
            "client": _SERVER,
            "server": _SERVER,
        }


class StreamedAnswer(Response):
    """An answer of the API that is passed on while it arrives."""

    def __init__(self, api: ApiCaller, path: str) -> None:
        super().__init__()
        self._api = api
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the API, and send what it sends."""
        asked = self._api.scope("GET", self._path, "", b"")
        known = Headers(scope=scope).get("last-event-id")
        if known is not None:
            asked["headers"].append((b"last-event-id", known.encode("latin-1")))
        # With the browser's `receive`, so that the stream ends when the browser hangs up.
        await self._api.app(asked, receive, send)


def _answer(status: int, body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body or b"{}")
    except ValueError:
        raise ApiError(502, {"message": "the answer is not JSON"}) from None
    if status >= 400 or not isinstance(answer, dict):
        error = answer.get("error", {}) if isinstance(answer, dict) else {}
        raise ApiError(status if status >= 400 else 502, error)
    return answer
