"""Give up connections to a server that vanished, for example because its machine lost power."""

import socket
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

OPTIONS = {
    # While the server works on a statement: seconds before the first probe and between probes, and
    # the number of probes without an answer that end the connection.
    "TCP_KEEPIDLE": 10,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
    # While it acknowledges nothing of a statement: milliseconds. The system tries for 15 minutes.
    "TCP_USER_TIMEOUT": 25_000,
}
"""The options of a TCP connection. Some systems lack some of them."""


def give_up_lost_servers(engine: AsyncEngine) -> None:
    """End statements on connections of an engine whose server has answered nothing for 25 s.

    A server that is only slow answers: its system does.
    """
    event.listen(engine.sync_engine, "connect", _watch)


def _watch(connection: Any, _record: object) -> None:
    # The driver has no option for it, and shows its socket nowhere else.
    connected = connection.driver_connection._transport.get_extra_info("socket")  # noqa: SLF001
    if connected.family == socket.AF_UNIX:
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in OPTIONS.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
