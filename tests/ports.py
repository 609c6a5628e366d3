"""Ports for the servers that tests start."""

import secrets
import socket

_LISTENING = range(20_000, 32_768)
"""Below the ports that Linux, macOS and Windows give to outgoing connections: nothing but another listener takes one of these."""

_handed_out: set[int] = set()


def free_port() -> int:
    """A port that nobody listens on; each call of a process gives another.

    A port that the system chose (by a bind to port 0) is one of those for outgoing connections. While its server is not running, any
    connection of this machine can get it, and the server cannot start again.
    """
    while True:
        port = secrets.choice(_LISTENING)
        if port not in _handed_out and _is_free(port):
            _handed_out.add(port)
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
