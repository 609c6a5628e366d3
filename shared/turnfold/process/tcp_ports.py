"""Reserved TCP ports, on which restarted processes can listen again."""

import errno
import socket
import sys

from turnfold.errors import StartError


class ReservedPort:
    """A port on which only child processes can listen until `release`."""

    def __init__(self, host: str, number: int, held: socket.socket | None) -> None:
        self.host = host
        self.number = number
        self._held = held

    @classmethod
    def reserve(
        cls, host: str, number: int, *, option: str, platform: str = sys.platform
    ) -> "ReservedPort":
        """Reserve a port, or any free port for 0.

        Raises:
            StartError: the port is in use or the address is not local; the message names `option`.
        """
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
        except OSError as error:
            raise StartError(f"{host} is no address to listen on ({error.strerror})") from error
        held = socket.socket(family, kind, protocol)
        try:
            # Linux lets the child bind the same address only if both sockets have this option.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(address)
        except OSError as error:
            held.close()
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
        if platform.startswith("linux"):
            # Bound but not listening: only a child that reuses addresses can listen.
            return cls(host, chosen, held)
        held.close()
        return cls(host, chosen, None)

    def release(self) -> None:
        """Release the port."""
        if self._held is not None:
            self._held.close()
