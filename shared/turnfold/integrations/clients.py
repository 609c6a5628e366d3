"""The client that all integrations of a program share."""

import threading

from turnfold.client import PortalClient

_clients: dict[str | None, PortalClient] = {}
_lock = threading.Lock()


def shared_client(url: str | None) -> PortalClient:
    """Return the client of a URL of NATS, the same for every caller of the program."""
    with _lock:
        return _clients.setdefault(url, PortalClient(url))
