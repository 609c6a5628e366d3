"""Connections to NATS: they reconnect forever, have a private inbox, and log their errors."""

import asyncio
import contextlib
from typing import Any

import nats.errors
import structlog
from nats.aio.client import Client

from turnfold.access.identity import INBOX
from turnfold.errors import StartError
from turnfold.nats_client.connection import NatsClient
from turnfold.process.tasks import cancel_and_wait
from turnfold.settings import Settings, redacted

log = structlog.get_logger()

ERROR_EVERY_SECONDS = 10.0
"""The interval at which the same error is logged again."""
QUIET_SECONDS = 3.0
"""The time after which a connection that is not there yet is logged."""


def connect_options(settings: Settings, name: str) -> dict[str, Any]:
    """Return the arguments of `nats.connect` for a connection called `name`.

    Raises:
        StartError: the credentials cannot be used.
    """
    watch = _Watch(name)
    options: dict[str, Any] = {
        "servers": [url.strip() for url in settings.nats_url.split(",")],
        "name": f"turnfold-{name}",
        "inbox_prefix": INBOX,
        # nats-py would give up after 60 attempts, and the service would stay without a bus.
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": 0.25,
        "connect_timeout": 5,
        # A server whose machine vanished closes no connection. It is noticed after a minute.
        "ping_interval": 20,
        "max_outstanding_pings": 3,
        "drain_timeout": 10,
        "error_cb": watch.on_error,
        "disconnected_cb": watch.on_disconnected,
        "reconnected_cb": watch.on_reconnected,
        "closed_cb": watch.on_closed,
    }
    try:
        return options | settings.identity.options()
    except ValueError as error:
        raise StartError(f"the credentials of the bus cannot be used: {error}") from error


def broker_options(settings: Settings, name: str) -> dict[str, Any]:
    """Return the arguments of FastStream's `NatsBroker`. Its documents contain no password."""
    # FastStream takes a second to import, and plain connections do not need it.
    from faststream.nats.security import (  # noqa: PLC0415
        NatsCredentials,
        NatsNKey,
        NatsSecurity,
        NatsUserPassword,
    )

    options = connect_options(settings, name)
    options["specification_url"] = redacted(settings.nats_url)
    encryption: dict[str, Any] = {
        "ssl_context": options.pop("tls", None),
        "tls_handshake_first": options.pop("tls_handshake_first", False),
    }
    match options:
        case {"user_credentials": creds}:
            options["security"] = NatsCredentials.from_file(creds, **encryption)
        case {"nkeys_seed_str": seed}:
            options["security"] = NatsNKey.from_seed(seed, **encryption)
        case {"user": user, "password": password}:
            options["security"] = NatsUserPassword(user, password, **encryption)
        case _:
            options["security"] = NatsSecurity(**encryption)
    for option in ("user_credentials", "nkeys_seed_str", "user", "password"):
        options.pop(option, None)
    return options


async def connect(settings: Settings, *, name: str, seconds: float = 10.0) -> NatsClient:
    """Connect to the bus. The caller closes the connection.

    Raises:
        StartError: no server accepted the connection within `seconds`, or one rejected the
            credentials.
    """
    client = NatsClient()
    attempt = _Attempt(client)
    options = connect_options(settings, name)
    log_error, log_disconnection = options["error_cb"], options["disconnected_cb"]

    async def on_error(error: Exception) -> None:
        attempt.failed(error)
        await log_error(error)

    async def on_disconnected() -> None:
        # nats-py also calls it when the service closes the connection itself.
        if not client.is_closed:
            await log_disconnection()

    options["error_cb"] = on_error
    options["disconnected_cb"] = on_disconnected
    # In a task, because nats-py retries rejected credentials forever and reports them only to
    # `error_cb`.
    connecting = asyncio.ensure_future(client.connect(**options))
    ends = [connecting, attempt.refused]
    is_connected = False
    try:
        ended, _ = await asyncio.wait(
            ends, timeout=min(seconds, QUIET_SECONDS), return_when=asyncio.FIRST_COMPLETED
        )
        if not ended and seconds > QUIET_SECONDS:
            url = redacted(settings.nats_url)
            log.info("bus.awaited", connection=name, url=url, seconds=seconds)
            await asyncio.wait(
                ends, timeout=seconds - QUIET_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        is_connected = connecting.done() and connecting.exception() is None
        if is_connected:
            return client
    finally:
        if not is_connected:
            await cancel_and_wait(connecting)
            with contextlib.suppress(nats.errors.Error, OSError):
                await client.close()
    if not connecting.cancelled() and (error := connecting.exception()):
        raise error
    where = redacted(settings.nats_url)
    if attempt.refused.done():
        raise StartError(
            f"the bus at {where} refused these credentials; "
            "correct TURNFOLD_NATS_NKEY, _CREDS or _USER and _PASSWORD"
        )
    raise StartError(
        f"no NATS server took a connection at {where} within {seconds:g} s{attempt.last}; "
        "start one with `turnfold up`, or correct TURNFOLD_NATS_URL"
    )


class _Attempt:
    """The errors before the first connection."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.last = ""

    def failed(self, error: Exception) -> None:
        self.last = f" ({error})" if str(error) else ""
        text = str(error).lower()
        if (
            not self._client.is_connected
            and not self.refused.done()
            and ("authorization" in text or "authentication" in text)
        ):
            self.refused.set_result(None)


class _Watch:
    """Log the events of one connection, and repeat the same error only at intervals."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._logged = ""
        self._logged_at = 0.0

    async def on_error(self, error: Exception) -> None:
        # Only errors of the bus are logged with their text; others may quote a message.
        is_of_the_bus = isinstance(error, (nats.errors.Error, OSError))
        trouble = f"{type(error).__name__}: {error}" if is_of_the_bus else type(error).__name__
        now = asyncio.get_running_loop().time()
        # nats-py reports each attempt to reconnect, four per second.
        if trouble != self._logged or now - self._logged_at > ERROR_EVERY_SECONDS:
            self._logged, self._logged_at = trouble, now
            log.warning("bus.error", connection=self._name, error=trouble)

    async def on_disconnected(self) -> None:
        log.info("bus.disconnected", connection=self._name)

    async def on_reconnected(self) -> None:
        self._logged = ""
        log.info("bus.reconnected", connection=self._name)

    async def on_closed(self) -> None:
        log.debug("bus.closed", connection=self._name)
