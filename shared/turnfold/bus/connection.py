"""How every part of the system connects to NATS: for ever, with its own inbox, and with its errors in the log."""

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import nats.errors
import structlog
from nats.aio.client import Client

from turnfold.errors import StartError
from turnfold.settings import Settings, redacted

log = structlog.get_logger()

BusRole = Literal["worker", "query", "provisioner", "auditor", "command"]
INBOX_PREFIXES: Mapping[BusRole, str] = {
    "worker": "_INBOX_.worker",
    "query": "_INBOX_.query",
    "provisioner": "_INBOX_.provisioner",
    "auditor": "_INBOX_.auditor",
    "command": "_INBOX_.command",
}
"""Where answers arrive. An agent's inbox is `_INBOX_<agent token>`, so no agent id can name one of these.

A pull subscriber of FastStream wants its own `inbox_prefix`: this text as bytes, with a dot at the end.
"""

CREDENTIALS = ("user", "password", "user_credentials", "nkeys_seed", "nkeys_seed_str")
ERROR_EVERY_SECONDS = 10.0
"""The same trouble is logged at most so often."""


def connect_options(settings: Settings, name: str, *, role: BusRole = "command") -> dict[str, Any]:
    """The arguments of `nats.connect` for a connection called `name`. It reconnects for ever."""
    watch = _Watch(name)
    options: dict[str, Any] = {
        "servers": [one.strip() for one in settings.nats_url.split(",")],
        "name": f"turnfold-{name}",
        "inbox_prefix": INBOX_PREFIXES[role],
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": 0.25,
        "connect_timeout": 5,
        "ping_interval": 20,
        "max_outstanding_pings": 3,
        "drain_timeout": 10,
        "error_cb": watch.on_error,
        "disconnected_cb": watch.on_disconnected,
        "reconnected_cb": watch.on_reconnected,
        "closed_cb": watch.on_closed,
    }
    if settings.nats_user is not None:
        options |= {"user": settings.nats_user, "password": settings.nats_password or ""}
    if settings.nats_creds is not None:
        options["user_credentials"] = str(settings.nats_creds)
    elif settings.nats_nkey is not None:
        options["nkeys_seed_str" if _is_seed(settings.nats_nkey) else "nkeys_seed"] = settings.nats_nkey
    return options


def broker_options(settings: Settings, name: str, *, role: BusRole) -> dict[str, Any]:
    """The arguments of FastStream's `NatsBroker` for the same connection; no password reaches its documents."""
    # A plain connection needs no FastStream, which takes a second to import.
    from faststream.nats.security import NatsCredentials, NatsNKey, NatsUserPassword  # noqa: PLC0415

    options = connect_options(settings, name, role=role)
    given = {key: options.pop(key) for key in CREDENTIALS if key in options}
    options["specification_url"] = redacted(settings.nats_url)
    if "user_credentials" in given:
        options["security"] = NatsCredentials.from_file(given["user_credentials"])
    elif "nkeys_seed" in given:
        options["security"] = NatsNKey.from_file(given["nkeys_seed"])
    elif "nkeys_seed_str" in given:
        options["security"] = NatsNKey.from_seed(given["nkeys_seed_str"])
    elif "user" in given:
        options["security"] = NatsUserPassword(given["user"], given["password"])
    return options


async def connect(settings: Settings, *, name: str, role: BusRole, seconds: float = 10.0) -> Client:
    """A connection to the bus; the caller closes it.

    Raises:
        StartError: no server took the connection within `seconds`, or it refused these credentials.
    """
    client = Client()
    attempt = _Attempt(client)
    options = connect_options(settings, name, role=role)
    log_error = options["error_cb"]

    async def on_error(error: Exception) -> None:
        attempt.failed(error)
        await log_error(error)

    connecting = asyncio.ensure_future(_open(client, options | {"error_cb": on_error}))
    await asyncio.wait([connecting, attempt.refused], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    if connecting.done() and connecting.exception() is None:
        return client
    connecting.cancel()
    await asyncio.gather(connecting, return_exceptions=True)
    with contextlib.suppress(nats.errors.Error, OSError):
        await client.close()
    if not connecting.cancelled() and (error := connecting.exception()):
        raise error
    where = redacted(settings.nats_url)
    if attempt.refused.done():
        raise StartError(f"the bus at {where} refused these credentials; correct TURNFOLD_NATS_CREDS, _NKEY or _USER and _PASSWORD")
    raise StartError(
        f"no NATS server took a connection at {where} within {seconds:g} s{attempt.last}; "
        "start one with `turnfold up`, or correct TURNFOLD_NATS_URL"
    )


class _Attempt:
    """What went wrong until a first connection stands."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.last = ""

    def failed(self, error: Exception) -> None:
        self.last = f" ({error})" if str(error) else ""
        text = str(error).lower()
        if not self._client.is_connected and not self.refused.done() and ("authorization" in text or "authentication" in text):
            self.refused.set_result(None)


async def _open(client: Client, options: Mapping[str, Any]) -> None:
    try:
        await client.connect(**options)
    except ModuleNotFoundError as error:
        raise StartError(f"credentials of this kind need the package {error.name}; install `nats-py[nkeys]`") from error
    except OSError as error:
        raise StartError(f"the credentials of the bus cannot be read ({error.strerror}); correct TURNFOLD_NATS_CREDS or _NKEY") from error


def _is_seed(nkey: str) -> bool:
    return nkey.startswith("SU") and not Path(nkey).exists()


class _Watch:
    """Writes what happens to one connection into the log, the same trouble not over and over."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._told = ""
        self._told_at = 0.0

    async def on_error(self, error: Exception) -> None:
        trouble = f"{type(error).__name__}: {error}"
        now = asyncio.get_running_loop().time()
        if trouble != self._told or now - self._told_at > ERROR_EVERY_SECONDS:
            self._told, self._told_at = trouble, now
            log.warning("bus.troubled", connection=self._name, error=trouble)

    async def on_disconnected(self) -> None:
        log.info("bus.disconnected", connection=self._name)

    async def on_reconnected(self) -> None:
        self._told = ""
        log.info("bus.reconnected", connection=self._name)

    async def on_closed(self) -> None:
        log.debug("bus.closed", connection=self._name)
