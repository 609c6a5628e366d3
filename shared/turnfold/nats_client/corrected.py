"""nats-py's client, with its faults corrected."""

import asyncio
from collections import UserString
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import nats.errors
from nats.aio.client import Client, RawCredentials, Srv
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.protocol.parser import PERMISSIONS_ERR

from turnfold.nats_client.transport import ConnectionTransport

REQUEST_INFO = "Nats-Request-Info"
"""The header with the client's identity, which the server adds to requests of other accounts.

Only imports with `share` add it.
"""
_INFO_BEGIN = f"{REQUEST_INFO}: ".encode()
_LINE, _END = b"\r\n", b"\r\n\r\n"
_JWT_BEGIN: Final = "BEGIN NATS USER JWT"
_CONNECTED_POLL_SECONDS: Final = 0.02
_CLOSE_SECONDS: Final = 1.0
_FLUSH_SECONDS: Final = 10.0


class CorrectedClient(Client):
    """A client that corrects nats-py (2.16) in these points.

    - nats-py does not close the connection to a server that sent no greeting before it tries the
      next one. It continues to connect after `close`, and `close` fails if the canceled
      reconnection waits for the same connection to end.
    - nats-py stops reading, while it still counts as connected, if it cannot decode the headers,
      the subject or the reply subject of a message. Servers check none of them, so one message
      would end every subscriber. Here, such headers are read line by line, and invalid bytes of
      a subject become U+FFFD.
    - nats-py takes a lost connection of uvloop for the end of the loop; see `ConnectionTransport`.
      Here, what was to be sent waits for the next connection.
    - nats-py closes for good on any error of the server except a denial. Here, it reconnects.
    - nats-py reads its credentials at each attempt to connect. From a file that is just being
      written it reads for ever, or fails with an error that ends all attempts. Here, the next
      attempt follows any error.
    - nats-py never forgets a server of which another one has told. Where servers come back at new
      addresses, it would try all old ones before it reconnects. Here, it forgets those that the
      cluster no longer names.
    - nats-py sends a ping before what waits to be sent, so that its answer does not prove that the
      server has the rest. It stops reading at the answer to a flush that was given up, and without
      a connection, `flush` returns at once. Here, `flush` waits for all that was sent before it.
    - nats-py closes only once a server has read everything, however long it is silent.
    - nats-py returns the first header of a name. The server appends the identity of the client as
      the last line and removes an exact copy, but a client can forge one with an unterminated
      block and a blank after the name. Here, the last line counts.
    """

    _is_over = False

    async def _connect_to_server(self, s: Srv) -> None:
        if self._transport is not None:
            self._transport.close()  # type: ignore[no-untyped-call]
        elif not s.uri.scheme.startswith("ws"):
            self._transport = ConnectionTransport()  # type: ignore[no-untyped-call]
        await super()._connect_to_server(s)
        if self._is_over and self._transport is not None:
            self._transport.close()  # type: ignore[no-untyped-call]
            raise asyncio.CancelledError

    async def _process_connect_init(self) -> None:
        """Connect to the server that has been reached. After an error, nats-py tries again."""
        try:
            await super()._process_connect_init()
        except (OSError, nats.errors.Error, TimeoutError):
            raise
        except Exception as error:
            # Without the text, which may quote a secret.
            raise nats.errors.Error(f"nats: cannot connect ({type(error).__name__})") from error

    def _read_creds_user_jwt(self, creds: "str | UserString | Path") -> bytearray:
        text = creds if isinstance(creds, UserString) else Path(creds).read_text(encoding="utf-8")
        if _JWT_BEGIN not in text:
            raise nats.errors.InvalidUserCredentialsError
        jwt: bytearray = super()._read_creds_user_jwt(RawCredentials(text))
        return jwt

    async def _process_info(
        self,
        info: dict[str, Any],
        initial_connection: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        """Learn which servers a cluster has. One that names none says nothing about others."""
        if named := info.get("connect_urls"):
            self._server_pool = [
                server
                for server in self._server_pool
                if not server.discovered
                or server is self._current_server
                or server.uri.netloc in named
            ]
        await super()._process_info(info, initial_connection)

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        if not headers:
            return None
        try:
            parsed: dict[str, str] | None = await super()._process_headers(headers)
        except Exception as error:  # noqa: BLE001  # the connection must survive any error
            await self._error_cb(error)
            # If raised, it would end reading, so that one message would silence the whole service.
            parsed = self._parse_header_lines(headers.partition(_LINE)[2])
        parsed = parsed or {}
        parsed.pop(REQUEST_INFO, None)
        last = headers.removesuffix(_END).rpartition(_LINE)[2]
        if _INFO_BEGIN in last:
            # If other text precedes the name in this line, the rest is not JSON and is not trusted.
            parsed[REQUEST_INFO] = last.removeprefix(_INFO_BEGIN).decode("utf-8", "replace")
        return parsed or None

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Msg:
        try:
            message: Msg = super()._build_message(sid, subject, reply, data, headers)
        except UnicodeDecodeError:
            subject, reply = (
                subject.decode(errors="replace").encode(),
                reply.decode(errors="replace").encode(),
            )
            message = super()._build_message(sid, subject, reply, data, headers)
        return message

    async def _read_loop(self) -> None:
        """Read until the connection ends. Reconnect if reading has ended before the connection."""
        await super()._read_loop()
        if self.is_connected and not self._is_over:
            await self._process_op_err(nats.errors.ProtocolError())

    async def _process_err(self, err_msg: str) -> None:
        if self.is_connected and not self._is_over and PERMISSIONS_ERR not in err_msg.lower():
            await self._error_cb(error := nats.errors.Error(f"nats: {err_msg}"))
            await self._process_op_err(error)
        else:
            await super()._process_err(err_msg)

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        reply: str = "",
        headers: dict[str, Any] | None = None,
    ) -> None:
        """Publish as nats-py does, but also count the headers, as the server does."""
        if headers and len(payload) + _header_bytes(headers) > self.max_payload:
            raise nats.errors.MaxPayloadError
        await super().publish(subject, payload, reply, headers)

    async def _send_ping(self, future: "asyncio.Future[bool] | None" = None) -> None:
        """Send what waits, and then a ping."""
        if self._pending and self._transport is not None:
            self._transport.writelines(self._pending)
            self._pending, self._pending_data_size = [], 0
        await super()._send_ping(future)

    async def _process_pong(self) -> None:
        if self._pongs and self._pongs[0].done():
            # Nobody waits any longer, and an error would end reading.
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def flush(self, timeout: float = _FLUSH_SECONDS) -> None:  # noqa: ASYNC109  # nats-py
        """Return once the server has read all that was sent before.

        Raises:
            nats.errors.TimeoutError: it has not, after so many seconds.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        await self._until_connected(deadline)
        left = deadline - asyncio.get_running_loop().time()
        # nats-py declares whole seconds, but accepts any number.
        await super().flush(max(left, _CONNECTED_POLL_SECONDS))  # type: ignore[arg-type]

    async def drain_subscription(self, subscription: Subscription) -> None:
        """End a subscription, and hand over what the server has delivered."""
        try:
            await subscription.drain()  # type: ignore[no-untyped-call]
        finally:
            # A drain that was cancelled leaves it, and a reconnection would subscribe again.
            self._subs = {sid: kept for sid, kept in self._subs.items() if kept is not subscription}

    async def _ping_interval(self) -> None:
        """Send pings until the connection ends."""
        try:
            await super()._ping_interval()
        except OSError as error:
            await self._process_op_err(error)

    async def _flush_pending(self, force_flush: bool = False) -> Any:  # noqa: FBT001, FBT002
        """Send what waits. If the connection ends meanwhile, it waits for the next one."""
        try:
            return await super()._flush_pending(force_flush)
        except OSError as error:
            await self._process_op_err(error)

    async def _close(self, status: int, do_cbs: bool = True) -> None:  # noqa: FBT001, FBT002
        try:
            await super()._close(status, do_cbs)
        except OSError:
            # The connection ended before the last bytes were sent, and nothing is closed yet.
            self._pending, self._pending_data_size = [], 0
            self._status = Client.DISCONNECTED
            await super()._close(status, do_cbs)

    async def _until_connected(self, deadline: float) -> None:
        """Wait for the connection. Without one, nats-py would send a request after its deadline."""
        while not (self.is_connected or self.is_closed):
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                raise nats.errors.TimeoutError
            await asyncio.sleep(min(left, _CONNECTED_POLL_SECONDS))

    async def close(self) -> None:
        """Close the connection, and do not reconnect. A silent server may not get the rest."""
        self._is_over = True
        loop = asyncio.get_running_loop()
        giving_up = loop.call_later(_CLOSE_SECONDS, self._abort)
        try:
            await super().close()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            # Somebody canceled the caller. Otherwise it is the reconnection that `close` itself
            # canceled.
            if task and task.cancelling():
                raise
        finally:
            giving_up.cancel()

    def _abort(self) -> None:
        if isinstance(self._transport, ConnectionTransport):
            self._transport.abort()


def _header_bytes(headers: Mapping[str, str]) -> int:
    r"""Return the size of headers on the wire: a first line, one for each header, and an empty one.

    >>> _header_bytes({"a": "b"}) == len(b"NATS/1.0\r\na: b\r\n\r\n")
    True
    """
    return 12 + sum([len(name) + len(value.encode()) + 4 for name, value in headers.items()])
