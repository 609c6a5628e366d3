"""The actor of a request, as far as the worker trusts its sender."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as BusError

from turnfold.access.actors import ACTOR_HEADER, key_actor, verified_actor
from turnfold.access.roles import SERVICES_ACCOUNT, USER_INFO
from turnfold.core.history.audit_chain import LOCAL
from turnfold.nats_client.corrected import REQUEST_INFO
from turnfold.process.tasks import at_most

log = structlog.get_logger()

LEARN_SECONDS = 3.0
"""Time limit for a request to wait until the probe has settled."""
SETTLE_SECONDS = 0.25
"""Time for which replies are collected. Without roles, any client may reply as well."""


class RoleProbe:
    """Detect whether the server enforces roles: the connection then uses the services' account.

    Without roles, all clients share one account, and each may reply in place of the server. The
    server replies too, so roles are in force only if all replies name the services' account.
    """

    def __init__(self) -> None:
        self._client: Client | None = None
        self._accounts: set[str] = set()
        self._has_settled = asyncio.Event()
        self._settling: asyncio.TimerHandle | None = None

    async def attach(self, client: Client) -> None:
        """Probe a new connection and wait for the result. Call this before requests arrive."""
        inbox = client.new_inbox()
        await client.subscribe(inbox, cb=self._on_answer)
        self._client, self._inbox = client, inbox
        await self.ask()
        await self.has_roles()

    async def ask(self) -> None:
        """Send the probe after a connection was made. Replies arrive later."""
        if self._client is not None:
            with contextlib.suppress(BusError, TimeoutError):
                await self._client.publish(USER_INFO, b"", reply=self._inbox)

    def forget(self) -> None:
        """Discard the result of a lost connection; the next server may be configured otherwise."""
        self._accounts.clear()
        self._has_settled.clear()
        if self._settling is not None:
            # Otherwise the wait for the replies of the next connection would end without any.
            self._settling.cancel()
            self._settling = None

    async def has_roles(self) -> bool:
        """Return whether the server enforces roles; false if unknown after some seconds."""
        await at_most(LEARN_SECONDS, self._has_settled.wait())
        # Without a reply the set is empty, which counts as no roles.
        return self._accounts == {SERVICES_ACCOUNT}

    async def _on_answer(self, message: Msg) -> None:
        try:
            account = json.loads(message.data)["data"]["account"]
        except (ValueError, LookupError, TypeError, RecursionError):
            account = None
        self._accounts.add(str(account))
        # Not at once: without roles others may reply, too, and their replies must be seen.
        if self._settling is None:
            self._settling = asyncio.get_running_loop().call_later(
                SETTLE_SECONDS, self._has_settled.set
            )


class Actors:
    """Determine the actor of a request, never from fields or headers that a client can write."""

    def __init__(
        self, *, read_secret: Callable[[], Awaitable[str]], now_ms: Callable[[], int]
    ) -> None:
        self.probe = RoleProbe()
        self._read_secret = read_secret
        self._now_ms = now_ms

    async def actor_of(self, message: Msg) -> str:
        """Return `key:…` as the server states, `token:…` as a query server signed, or `local`."""
        headers = message.headers or {}
        # Only the server writes it where roles are in force; elsewhere any client may have.
        if (request_info := headers.get(REQUEST_INFO)) is not None and await self.probe.has_roles():
            return key_actor(request_info) or LOCAL
        # Without roles, or from a query server, which signs for the caller of an HTTP request.
        if (signed := headers.get(ACTOR_HEADER)) is not None:
            secret = await self._read_secret()
            actor = verified_actor(
                secret, signed, subject=message.subject, body=message.data, now_ms=self._now_ms()
            )
            if actor is None:
                log.warning(
                    "actor.refused",
                    advice="a signature is foreign or old: compare the clocks of the query servers",
                )
            return actor or LOCAL
        return LOCAL


def watched(options: dict[str, Any], probe: RoleProbe) -> dict[str, Any]:
    """Return the connection options, with callbacks that also reset and repeat the probe."""
    on_disconnected, on_reconnected = options["disconnected_cb"], options["reconnected_cb"]

    async def disconnected() -> None:
        probe.forget()
        await on_disconnected()

    async def reconnected() -> None:
        await probe.ask()
        await on_reconnected()

    return options | {"disconnected_cb": disconnected, "reconnected_cb": reconnected}
