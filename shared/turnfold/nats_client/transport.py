"""A TCP connection of nats-py whose end is an error of the bus in every event loop."""

import ssl
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import nats.errors
from nats.aio.transport import TcpTransport

READ_BYTES: Final = 256 * 1024
"""The most bytes that are read at once, as many as asyncio takes from a socket.

nats-py reads 32 KiB, so that an answer of 70 kB needs several rounds of the event loop.
"""


class ConnectionLost(nats.errors.Error, ConnectionResetError):
    """The connection ended. It is an `OSError`, which makes nats-py reconnect."""


class ConnectionTransport(TcpTransport):
    """A connection that raises `ConnectionLost` when it is used after its end.

    uvloop closes the transport of a connection that was lost, and then raises a RuntimeError for
    any use. nats-py takes that for the end of the event loop: its flusher ends while the client
    counts as connected, publishing raises it, and an attempt to reconnect that meets it is the
    last one.
    """

    def __bool__(self) -> bool:
        """Return True, also before it is connected: nats-py would replace a false transport."""
        return True

    async def connect(self, uri: Any, buffer_size: int, connect_timeout: int) -> None:
        """Connect to a server."""
        await super().connect(uri, max(buffer_size, READ_BYTES), connect_timeout)

    async def read(self, buffer_size: int) -> bytes:
        """Return the bytes that have arrived."""
        received: bytes = await super().read(max(buffer_size, READ_BYTES))
        return received

    def write(self, payload: bytes) -> None:
        """Send bytes."""
        with self._lost():
            super().write(payload)  # type: ignore[no-untyped-call]

    def writelines(self, payload: Sequence[bytes]) -> None:
        """Send several pieces."""
        with self._lost():
            super().writelines(payload)  # type: ignore[no-untyped-call]

    def abort(self) -> None:
        """Close the connection at once, without what was not sent yet."""
        if self._io_writer is not None:
            self._io_writer.transport.abort()

    async def connect_tls(
        self, uri: Any, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        """Encrypt the connection."""
        with self._lost():
            await super().connect_tls(uri, ssl_context, buffer_size, connect_timeout)
            # `start_tls` leaves this to its caller. Without it the protocol takes the connection
            # for a plain one, so that asyncio logs a warning when the server closes it, and does
            # not stop reading when the reader is full.
            assert self._io_writer is not None
            transport = self._io_writer.transport
            transport.get_protocol().connection_made(transport)

    @contextmanager
    def _lost(self) -> Generator[None]:
        try:
            yield
        except (RuntimeError, AttributeError) as error:
            # Without a writer, it has not connected yet.
            if self._io_writer is not None and not self._io_writer.transport.is_closing():
                raise
            raise ConnectionLost("the connection to the bus is lost") from error
