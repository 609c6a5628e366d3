"""Requests to the provider: addresses, headers, and answers as raw bytes."""

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import httpcore
import httpx
from starlette.types import Message

from turnfold.process.tasks import cancel_and_wait
from turnfold_proxy.own_headers import PREFIX

CONNECT_SECONDS: Final = 15.0
ANSWER_SECONDS: Final = 3_600.0
"""How long a provider may be silent: models may think for longer than the ten minutes for which
clients wait by default. A caller that waits for less hangs up, which ends the request."""

_LONG_BYTES: Final = 64 * 1024
"""The length of a request that may be answered, and its connection closed, before its end."""
_EARLY_BYTES: Final = 1024 * 1024
"""The bytes of an answer that are kept while its request is sent. If more follow, the answer is
passed on: its provider may read no more of the request before it has written all."""

_HOP_BY_HOP: Final = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization",
        "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
    }
)  # fmt: skip
# `httpx.Request` writes the first two anew, and the HTTP server has already asked for the body.
_OF_ONE_REQUEST: Final = _HOP_BY_HOP | {"host", "content-length", "expect"}
API_ROOT: Final = "/v1"

Headers = Sequence[tuple[bytes, bytes]]


class Upstream:
    """One provider, to which all requests go with the credentials of their callers."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._root = f"{parts.scheme}://{parts.netloc}"
        self._base = parts.path.rstrip("/")
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS, pool=CONNECT_SECONDS),
            # Not limited: a call may take minutes, and the HTTP server limits the callers.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
        )
        # httpx has no setting for it. Connections to proxies, which the environment may name, have
        # pools of their own; a host without proxy has none.
        inner = vars(self._client)
        for transport in filter(None, (inner["_transport"], *inner["_mounts"].values())):
            pool = vars(vars(transport)["_pool"])
            pool["_network_backend"] = _Network(pool["_network_backend"])

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def send(
        self, method: str, target: str, headers: Headers, content: bytes, *, is_plain: bool
    ) -> httpx.Response:
        """Send a request and return the response, whose body is not read yet.

        `target` is the path and the query. With `is_plain`, the answer is not compressed.

        Raises:
            httpx.HTTPError: the provider does not answer.
            httpx.InvalidURL: the target is not a path, or is too long.
        """
        # `build_request` would add the client's headers, and cookies of earlier answers, which may
        # belong to other callers.
        request = httpx.Request(
            method,
            self._address(target),
            headers=_request_headers(headers, is_plain=is_plain),
            content=content,
            extensions={"timeout": self._client.timeout.as_dict()},
        )
        return await self._client.send(request, stream=True)

    def _address(self, target: str) -> str:
        """Return the address of a path: a path of the provider's URL stands in place of `/v1`."""
        # The server accepts targets such as `*@host/`, which would name another host.
        if not target.startswith("/"):
            raise httpx.InvalidURL("the target is not a path")
        if self._base and (target == API_ROOT or target.startswith((f"{API_ROOT}/", "/v1?"))):
            target = target.removeprefix(API_ROOT)
        return f"{self._root}{self._base}{target}"


class _Network(httpcore.AsyncNetworkBackend):
    """Connects to providers."""

    def __init__(self, backend: httpcore.AsyncNetworkBackend) -> None:
        self._backend = backend

    async def connect_tcp(self, *where: Any, **how: Any) -> httpcore.AsyncNetworkStream:
        """Connect to an address."""
        return _ProviderStream(await self._backend.connect_tcp(*where, **how))


class _ProviderStream(httpcore.AsyncNetworkStream):
    """A connection that also receives while it sends a long request.

    A provider that refuses the request may close the connection before its end, and what was not
    received by then is lost.
    """

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._early = bytearray()
        self._has_ended = False
        self.aclose = stream.aclose  # type: ignore[method-assign]

    def get_extra_info(self, info: str) -> Any:
        """Return a fact; an idle connection that is readable has ended, and serves no more."""
        return (info == "is_readable" and self._has_ended) or self._stream.get_extra_info(info)

    async def start_tls(self, *how: Any, **more: Any) -> httpcore.AsyncNetworkStream:
        """Begin to encrypt."""
        return _ProviderStream(await self._stream.start_tls(*how, **more))

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        """Return bytes that have arrived, first those that came early."""
        early, self._early = bytes(self._early), bytearray()
        # Once sending has failed, the stream does not tell again that its other side had ended.
        return early if early or self._has_ended else await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Send bytes; if that fails, httpcore reads whether there is an answer."""
        if len(buffer) < _LONG_BYTES:
            await self._stream.write(buffer, timeout)
            return
        sending = asyncio.timeout(None)
        receiving = asyncio.create_task(self._receive(sending))
        try:
            async with sending:
                await self._stream.write(buffer, timeout)
        except TimeoutError:
            # The event loop still sends the rest, as far as the provider reads it.
            raise httpcore.WriteError("the answer has not waited for the request") from None
        finally:
            await cancel_and_wait(receiving)

    async def _receive(self, sending: asyncio.Timeout) -> None:
        """Keep what arrives; end the wait for the sending if that becomes too much."""
        while len(self._early) < _EARLY_BYTES:
            chunk = await self._stream.read(_LONG_BYTES)
            self._early += chunk
            if not chunk:
                self._has_ended = True
                return
        sending.reschedule(0)


def response_start(response: httpx.Response, more: Mapping[str, str]) -> Message:
    """Return the start of a response for the caller, with headers of the proxy."""
    # The length and the encoding stay, because the body is relayed without decoding. But a length
    # beside chunks is void, and that of a 304 belongs to a body that does not follow.
    is_void = response.status_code == 304 or "transfer-encoding" in response.headers
    dropped = _HOP_BY_HOP | {"content-length"} if is_void else _HOP_BY_HOP
    headers = [
        *_without(response.headers.raw, dropped),
        *((name.encode(), value.encode()) for name, value in more.items()),
    ]
    return {"type": "http.response.start", "status": response.status_code, "headers": headers}


def encoded(body: Mapping[str, Any]) -> bytes:
    """Return a request's body as bytes; equal bodies have equal bytes."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        # A lone surrogate has no form in UTF-8, but JSON can escape it.
        return json.dumps(body, separators=(",", ":")).encode()


def _request_headers(headers: Headers, *, is_plain: bool) -> list[tuple[bytes, bytes]]:
    kept = _without(headers, _OF_ONE_REQUEST)
    if is_plain:
        # The proxy reads the answer while it passes, and does not decompress it.
        kept = [(name, value) for name, value in kept if name.lower() != b"accept-encoding"]
        kept.append((b"accept-encoding", b"identity"))
    return kept


def _without(
    headers: Iterable[tuple[bytes, bytes]], names: frozenset[str]
) -> list[tuple[bytes, bytes]]:
    pairs = list(headers)
    # Headers that `Connection` names are meant for this connection alone.
    named = {
        word.strip().lower()
        for name, value in pairs
        if name.lower() == b"connection"
        for word in value.decode("latin-1").split(",")
    }
    # Neither do those of the proxy go on: its caller, and its provider, may be another proxy.
    return [
        (name, value)
        for name, value in pairs
        if (lower := name.decode("latin-1").lower()) not in names
        and lower not in named
        and not lower.startswith(PREFIX)
    ]
