"""Reserved TCP ports, on which restarted processes can listen again."""

import errno
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager

from turnfold.errors import StartError


@contextmanager
def reserved_port(host: str, number: int, *, option: str) -> Generator[int]:
    """Yield a port on which only child processes can listen meanwhile; any free one for 0.

    Raises:
        StartError: the port is in use or the address is not local; the message names `option`.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise StartError(f"{host} is not an address to listen on ({error.strerror})") from error
    with socket.socket(family, kind, protocol) as held:
        try:
            # Linux lets the child bind the same address only if both sockets have this option.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise StartError(
                    f"port {number} of {host} is in use; "
                    f"choose another with {option}, or 0 for a free one"
                ) from error
            raise StartError(
                f"port {number} of {host} cannot be used ({error.strerror}); "
                f"choose another with {option}"
            ) from error
        chosen = int(held.getsockname()[1])
        # Bound but not listening: on Linux, only a child that reuses addresses can listen.
        if not sys.platform.startswith("linux"):
            held.close()
        yield chosen
