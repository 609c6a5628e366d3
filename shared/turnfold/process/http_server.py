"""An HTTP server in a loop that is not its own: it says when it listens, and leaves signals to others.

Connections are bounded in number and in time, so that whoever holds many of them open shuts nobody out.
"""

import asyncio
import contextlib
import resource
from collections.abc import Generator
from pathlib import Path
from socket import socket
from typing import Any

import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from turnfold.errors import StartError

STOP_SECONDS = 10.0
HEAD_SECONDS = 10.0
"""A connection whose request line and headers are not complete after so long is closed; so is a TLS handshake."""
HEAD_BYTES = 16 * 1024
IDLE_SECONDS = 5.0
"""So long a connection may stay open between two requests."""
REST_SECONDS = 2.0
"""So long more of a body may come after its request was answered, so that the other side reads the answer before the connection closes."""
UNREAD_SECONDS = 30.0
"""An answer that is not read after so long is given up."""
OTHER_FILES = 128
"""How many files of the process are left for all else: databases, the bus, logs."""

log = structlog.get_logger()


class HttpServer:
    """Serves an application until it is closed. `ended` is done when it cannot go on; `port` is the one that was free where 0 was asked.

    With a certificate and its key (PEM files) it speaks TLS.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        port: int,
        connections: int,
        certificate: Path | None = None,
        certificate_key: Path | None = None,
    ) -> None:
        self._where = f"{host}:{port}"
        self._server = _Server(
            uvicorn.Config(
                app, host=host, port=port, log_config=None, access_log=False, lifespan="off",
                ssl_certfile=certificate, ssl_keyfile=certificate_key,
                http=_Connection, ws="none", h11_max_incomplete_event_size=HEAD_BYTES, timeout_keep_alive=int(IDLE_SECONDS),
            ),
            most=_within_file_limit(connections),
        )  # fmt: skip
        self.ended = asyncio.create_task(self._server.serve(), name="http")

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.servers[0].sockets[0].getsockname()[1])

    async def opened(self) -> None:
        """Return when it listens.

        Raises:
            StartError: somebody else does.
        """
        listening = asyncio.create_task(self._server.listening.wait())
        await asyncio.wait([self.ended, listening], return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        if self.ended.done():
            raise StartError(
                f"HTTP cannot listen on {self._where}; choose another port"
            ) from self.ended.exception()

    def refuse(self) -> None:
        """Take nothing more."""
        self._server.should_exit = True

    async def close(self) -> None:
        """Finish what is in hand, within some seconds, and stop."""
        self.refuse()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(self.ended, return_exceptions=True), STOP_SECONDS)


class _State(ServerState):
    """The connections of a server. `without_request` are those that have no request in hand, the oldest first."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.without_request: dict[_Connection, None] = {}

    def make_room(self) -> None:
        """Close the oldest connections without a request until there are no more than allowed; a new one has no request either."""
        while len(self.connections) > self.most and self.without_request:
            next(iter(self.without_request)).drop()


class _Connection(H11Protocol):
    """uvicorn's connection, which ends when a request does not come, or an answer is not read."""

    def __init__(
        self, config: uvicorn.Config, server_state: ServerState, *more: Any, **named: Any
    ) -> None:
        super().__init__(config, server_state, *more, **named)
        assert isinstance(server_state, _State)
        self._open = server_state
        self._newest: RequestResponseCycle | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._rest_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None

    @property
    def _has_request(self) -> bool:
        return self._newest is not None and not self._newest.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._wait_for_request()
        self._open.make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.without_request.pop(self, None)
        for timer in (self._head_timer, self._rest_timer, self._unread_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head_timer is None and not self._has_request:
            self._wait_for_request()
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not self._newest:
            self._newest = self.cycle
            self._open.without_request.pop(self, None)
            self._stop_head_timer()

    def on_response_complete(self) -> None:
        before = self.cycle
        super().on_response_complete()
        if self.cycle is before and not self.transport.is_closing():
            self._open.without_request[self] = None
            if before.more_body:
                self._rest_timer = self.loop.call_later(
                    REST_SECONDS, self._close_unless_complete, before
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

    def drop(self) -> None:
        """Close at once, whatever was not sent yet."""
        self.connections.discard(self)
        self._open.without_request.pop(self, None)
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


def _within_file_limit(connections: int) -> int:
    """As many of these connections as the process may have files for; its limit is raised as far as it may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or connections <= soft - OTHER_FILES:
        return connections
    allowed = max(1, soft - OTHER_FILES)
    log.warning(
        "http.few_connections",
        connections=allowed,
        wanted=connections,
        advice="raise the limit of open files (ulimit -n)",
    )
    return allowed


class _Server(uvicorn.Server):
    """uvicorn that says when it listens, and leaves the signals alone: stopping is decided in one place."""

    def __init__(self, config: uvicorn.Config, *, most: int) -> None:
        super().__init__(config)
        self.server_state = _State(most)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket] | None = None) -> None:  # noqa: ARG002  # none is given
        """Listen; as uvicorn does, but with a bound for TLS handshakes."""
        config, loop = self.config, asyncio.get_running_loop()

        def connection() -> _Connection:
            return _Connection(config, self.server_state, {}, loop)

        try:
            server = await loop.create_server(
                connection, config.host, config.port, ssl=config.ssl, backlog=config.backlog,
                ssl_handshake_timeout=HEAD_SECONDS if config.ssl else None,
            )  # fmt: skip
        except OSError as error:
            raise StartError(error.strerror or str(error)) from error
        self.servers = [server]
        self.started = True
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Do not."""
        yield
