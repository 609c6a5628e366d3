"""An HTTP server (uvicorn) that runs in the event loop of a service and handles no signals.

The number and the duration of connections are limited, so that one client cannot exclude others.
"""

import asyncio
import contextlib
import errno
import json
import os
import sys
from collections.abc import Generator
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any

import httptools
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from turnfold.errors import BadRequest, StartError
from turnfold.process.file_limit import within_file_limit
from turnfold.process.tasks import cancel_and_wait

STOP_SECONDS = 6.0
"""Time limit for requests that run when a service stops. Its supervisor kills it after ten."""
HEAD_SECONDS = 10.0
"""Time limit for the request line and headers, and for a TLS handshake."""
HEAD_BYTES = 64 * 1024
MOST_PIPELINED = 16
"""The most requests of a connection that wait for an earlier one."""
IDLE_SECONDS = 5.0
"""Time limit of a connection between two requests."""
REST_SECONDS = 2.0
"""Time limit for the rest of a body after its reply, so that the client can read the reply."""
UNREAD_SECONDS = 30.0
"""Time limit for a client to read a reply."""

_FAULTS_OF_PORTS = (errno.EADDRINUSE, errno.EACCES)


class HttpServer:
    """Serves an application from `open` to `close`.

    For port 0, `port` is the free port that was chosen. `port_setting` tells a user how to choose
    another. With a certificate and its key (PEM files), the server uses TLS. Without
    `has_date`, answers have the date of their origin, as those of a proxy.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        port: int,
        port_setting: str,
        connections: int,
        certificate: Path | None = None,
        certificate_key: Path | None = None,
        has_date: bool = True,
    ) -> None:
        self._port_setting = port_setting
        self._where = f"{host}:{port}"
        self._server = _Server(
            uvicorn.Config(
                app, host=host, port=port, log_config=None, access_log=False, lifespan="off",
                ssl_certfile=certificate, ssl_keyfile=certificate_key,
                http=_Connection, server_header=False, date_header=has_date,
                ws="none",
                timeout_keep_alive=int(IDLE_SECONDS),
            ),
            most=within_file_limit(connections),
        )  # fmt: skip
        self._serving: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        return int(self._server.servers[0].sockets[0].getsockname()[1])

    @property
    def ended(self) -> asyncio.Task[None]:
        """The task that serves; it is done if the server fails. Only after `open`."""
        assert self._serving is not None
        return self._serving

    async def open(self) -> None:
        """Start to serve, and wait until the server listens.

        Raises:
            StartError: the port is in use, or the host or the certificate cannot be used.
        """
        try:
            # Here, because `serve` fails in the same way as for a port in use.
            self._server.config.load()
        except (OSError, AssertionError) as error:
            reason = error.strerror if isinstance(error, OSError) else "a key without a certificate"
            raise StartError(
                f"HTTPS cannot be served ({reason or error}); correct TURNFOLD_HTTP_CERTIFICATE"
                " and TURNFOLD_HTTP_CERTIFICATE_KEY"
            ) from error
        self._serving = asyncio.create_task(self._server.serve(), name="http")
        listening = asyncio.create_task(self._server.listening.wait())
        await asyncio.wait([self.ended, listening], return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        if self.ended.done():
            fault = self.ended.exception()
            cause = fault.__cause__ if fault is not None else None
            # The text of uvloop's error repeats the address.
            why = os.strerror(cause.errno or 0) if isinstance(cause, OSError) else fault
            is_of_host = isinstance(cause, OSError) and cause.errno not in _FAULTS_OF_PORTS
            raise StartError(
                f"HTTP cannot listen on {self._where} ({fault}); choose an address of this machine"
                if is_of_host
                else f"HTTP cannot listen on {self._where} ({why});"
                f" choose another port with {self._port_setting}"
            ) from fault

    async def until(self, stop: asyncio.Event) -> None:
        """Serve until the event is set; raise the error of a server that has ended before."""
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([stopping, self.ended], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if self.ended.done():
            self.ended.result()

    def refuse(self) -> None:
        """Accept no more connections."""
        self._server.should_exit = True

    async def close(self) -> None:
        """Finish the running requests within some seconds, cancel the rest, and stop."""
        self.refuse()
        if self._serving is None:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(
                asyncio.gather(self._serving, return_exceptions=True), STOP_SECONDS
            )
        # Here and not by the end of the loop, so that what they note then is still written.
        await cancel_and_wait(*self._server.server_state.tasks)


class _State(ServerState):
    """The connections of a server: `without_request` are idle, `receiving` lack a part of a body.

    Both are in order, oldest first.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.without_request: dict[_Connection, None] = {}
        self.receiving: dict[_Connection, None] = {}

    def make_room(self) -> None:
        """Close the oldest connections without a whole request above the limit.

        Of the more numerous kind, so that a flood of one closes none of the other. A new
        connection is idle, too.
        """
        # Only these: a connection with a whole request is worth more than a new one.
        kinds = (self.without_request, self.receiving)
        while len(self.connections) > self.most and any(kinds):
            fuller = max(kinds, key=len)
            next(iter(fuller)).drop()

    def forget(self, connection: "_Connection") -> None:
        """Remove a connection from both kinds."""
        self.without_request.pop(connection, None)
        self.receiving.pop(connection, None)


class _TooMuch(Exception):
    """A head is too long, or too many requests are pipelined; the parser stops with it."""


class _Connection(HttpToolsProtocol):
    """uvicorn's connection, with time limits for receiving requests and for sending replies.

    Its parser limits neither the bytes of a head nor the number of pipelined requests.
    """

    def __init__(
        self, config: uvicorn.Config, server_state: ServerState, *more: Any, **named: Any
    ) -> None:
        super().__init__(config, server_state, *more, **named)
        assert isinstance(server_state, _State)
        self._open = server_state
        self._head_bytes = 0
        self._unseen_bytes = 0
        self._data = b""
        self._head_timer: asyncio.TimerHandle | None = None
        self._rest_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None

    @property
    def _has_request(self) -> bool:
        # uvicorn makes a cycle per request, as soon as its headers are complete.
        return bool(self.cycle) and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_request()
        self._open.make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.forget(self)
        for timer in (self._head_timer, self._rest_timer, self._unread_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # The first byte of a further request on the same connection. Its time begins here.
        if self._head_timer is None and not self._has_request:
            self._wait_for_request()
        # The exception of an upgrade names an offset in the bytes that were parsed last.
        self._data = data
        self._unseen_bytes += len(data)
        super().data_received(data)
        # The parser holds an unfinished header, or one after a body, until it is complete.
        if self._unseen_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("a header is too long")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value))
        # The parser leaves spaces at the end, which do not belong to the value.
        super().on_header(name, value.strip(b" \t"))

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        # Fields after a body are not headers: a proxy in front has not seen them as such.
        self.headers = []
        self._open.without_request.pop(self, None)
        self._note_receiving()
        self._stop_head_timer()
        if len(self.pipeline) > MOST_PIPELINED:
            self.drop()
            raise _TooMuch

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["http_version"] < "1.1":
            app = partial(_answer_without_chunks, cycle, app)
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        self._unseen_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unseen_bytes = 0
        self._open.receiving.pop(self, None)
        super().on_message_complete()

    def _note_receiving(self) -> None:
        # With a request that waits for an earlier one, that one is whole.
        if self._has_request and self.cycle.more_body and not self.pipeline:
            self._open.receiving[self] = None

    def _count_head(self, size: int) -> None:
        self._unseen_bytes = 0
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES:
            raise _TooMuch

    def _should_upgrade(self) -> bool:
        # uvicorn begins no cycle then, but calls the next method.
        return True

    def handle_websocket_upgrade(self) -> None:
        """Read the request as one without an upgrade, whose body the parser would skip."""
        # uvicorn calls this while it handles the exception of the parser.
        upgrade = sys.exc_info()[1]
        assert isinstance(upgrade, httptools.HttpParserUpgrade)
        method, rest = self.scope["method"], self._data[upgrade.args[0] :]
        if method == "CONNECT":
            self.send_400_response("there is nothing to connect to")
            return
        kept = (header for header in self.scope["headers"] if header[0] != b"upgrade")
        headers = [b"%s: %s\r\n" % header for header in kept]
        version = self.scope["http_version"].encode()
        head = b"%s %s HTTP/%s\r\n%s\r\n" % (method.encode(), self.url, version, b"".join(headers))
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(head + rest)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._open.receiving.pop(self, None)
        self._note_receiving()
        answered = self.cycle
        # With pipelining, the newest request is another one, which runs now or waits.
        if answered.response_complete and not self.transport.is_closing():
            self._open.without_request[self] = None
            # Closing at once would reset the connection, and the client might lose the reply.
            if answered.more_body:
                self._rest_timer = self.loop.call_later(
                    REST_SECONDS, self._close_unless_complete, answered
                )

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread_timer is None:
            self._unread_timer = self.loop.call_later(UNREAD_SECONDS, self.drop)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def send_400_response(self, msg: str) -> None:
        """Refuse with an error as those of the routes; uvicorn's own is plain text."""
        if max(self._head_bytes, self._unseen_bytes) > HEAD_BYTES:
            msg = f"the request line and headers are longer than {HEAD_BYTES:,} bytes"
        body = json.dumps(BadRequest(msg).as_json()).encode()
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%s" % (len(body), body)
        )
        self.transport.close()

    def drop(self) -> None:
        """Close at once and discard unsent data."""
        # Not left to `connection_lost`, which comes later: `make_room` counts the connections.
        self.connections.discard(self)
        self._open.forget(self)
        self.transport.abort()

    def _wait_for_request(self) -> None:
        self._open.without_request[self] = None
        self._stop_head_timer()
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self.drop)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close_unless_complete(self, answered: object) -> None:
        if self.cycle is answered and not self.transport.is_closing():
            self.transport.close()


async def _answer_without_chunks(
    cycle: RequestResponseCycle, app: ASGIApp, scope: Scope, receive: Receive, send: Send
) -> None:
    """Answer a client that cannot read chunks: the end of the connection is the end of the body."""

    async def send_part(message: Message) -> None:
        # uvicorn then expects no more than this part. Its own answer to an error has a length.
        cycle.chunked_encoding = False
        cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    await app(scope, receive, send_part)


class _Server(uvicorn.Server):
    """uvicorn that reports when it listens and installs no signal handlers."""

    def __init__(self, config: uvicorn.Config, *, most: int) -> None:
        super().__init__(config)
        self.server_state = _State(most)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket] | None = None) -> None:  # noqa: ARG002
        """Listen as uvicorn does, but with a time limit for TLS handshakes."""
        config, loop = self.config, asyncio.get_running_loop()
        connection = partial(_Connection, config, self.server_state, {}, loop)
        try:
            server = await loop.create_server(
                connection, config.host, config.port, ssl=config.ssl, backlog=config.backlog,
                ssl_handshake_timeout=HEAD_SECONDS if config.ssl else None,
            )  # fmt: skip
        except OSError as error:
            raise StartError(error.strerror or str(error)) from error
        # As uvicorn's own `startup` leaves it: its main loop and its shutdown read both.
        self.servers = [server]
        self.started = True
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Install no signal handlers."""
        yield
