"""An HTTP server in a loop that is not its own: it says when it listens, and leaves signals to others."""

import asyncio
import contextlib
from collections.abc import Generator
from pathlib import Path
from socket import socket

import uvicorn
from starlette.types import ASGIApp

from turnfold.errors import StartError

STOP_SECONDS = 10.0


class Listener:
    """Serves an application until it is closed. `ended` is done when it cannot go on; `port` is the one that was free where 0 was asked.

    With a certificate and its key (PEM files) it speaks TLS.
    """

    def __init__(self, app: ASGIApp, *, host: str, port: int, certificate: Path | None = None, certificate_key: Path | None = None) -> None:
        self._where = f"{host}:{port}"
        self._server = _Server(
            uvicorn.Config(
                app, host=host, port=port, log_config=None, access_log=False, lifespan="off",
                ssl_certfile=certificate, ssl_keyfile=certificate_key,
            )
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
            raise StartError(f"HTTP cannot listen on {self._where}; choose another port")

    def refuse(self) -> None:
        """Take nothing more."""
        self._server.should_exit = True

    async def close(self) -> None:
        """Finish what is in hand, within some seconds, and stop."""
        self.refuse()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(self.ended, return_exceptions=True), STOP_SECONDS)


class _Server(uvicorn.Server):
    """uvicorn that says when it listens, and leaves the signals alone: stopping is decided in one place."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Do not."""
        yield
