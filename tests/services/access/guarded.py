"""A server with the shipped permissions, and connections with somebody's key."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client as Bus
from nats.aio.msg import Msg

from tests.nats_server import NatsServer, subscriptions_known
from tests.running_system import Parts, wait_until
from turnfold.access.identity import Identity
from turnfold.access.keys import new_key
from turnfold.access.roles import Key, configuration

Json = dict[str, Any]
USER = {"role": "user", "content": "Where is order 7341?"}
SMALL = {"TURNFOLD_POLICY__MAX_LIVE_MESSAGES": "20", "TURNFOLD_LOG_LEVEL": "info"}
STRANGE = (
    "*",
    ">",
    "a.b",
    "a b",
    "..",
    "a/b",
    "%2E",
    "語 ✓",
    "$JS.API.STREAM.DELETE.TURNFOLD_EVENTS",
    "é" * 128,
)
IMPOSSIBLE = ("", "a\nb", "a\rb", "a\x00b", "a\tb", "x" * 10_000, "語" * 86, "\ud800")


class Guarded:
    """A server with the shipped permissions, its streams, and a key for everybody."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.keys: dict[str, Key] = {}
        self.files: dict[str, Path] = {}
        for role in ("provisioner", "worker", "query", "auditor", "operator"):
            self.keys[role], self.files[role] = new_key(directory / "keys", role)
        for agent in ("support", "other", *STRANGE):
            self.keys[agent], self.files[agent] = new_key(directory / "keys", "agent", agent)

    @property
    def configuration(self) -> str:
        """The configuration that the server includes."""
        return configuration(list(self.keys.values()))

    def environ(self, name: str) -> dict[str, str]:
        """The credentials of a role, or of an agent."""
        return {"TURNFOLD_NATS_NKEY": str(self.files[name])}

    def parts(self, server: NatsServer, name: str) -> Parts:
        """Services that sign in with this key."""
        return Parts(self.directory, server, SMALL | self.environ(name))


@dataclass
class Person:
    """A plain connection with somebody's key, and what the server had against it."""

    bus: Bus
    denied: list[str] = field(default_factory=list)

    async def publish(
        self,
        subject: str,
        *,
        reply: str = "",
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Publish, and hear what the server says to it."""
        await self.bus.publish(subject, body, reply=reply, headers=dict(headers or {}))
        await subscriptions_known(self.bus)

    async def is_denied(self, what: str) -> None:
        """Wait until the server has refused this."""
        told = f"permissions violation for {what.lower()}"
        await wait_until(
            lambda: any(told in one for one in self.denied), every=0.005, told=lambda: self.denied
        )

    async def listen(self, subject: str) -> list[Msg]:
        """Listen, to a subject and in a queue group after a blank; the list fills with what is heard."""
        heard: list[Msg] = []

        async def on_message(message: Msg) -> None:
            heard.append(message)

        subject, _, queue = subject.partition(" ")
        await self.bus.subscribe(subject, queue=queue, cb=on_message)
        for _ in range(2):
            await subscriptions_known(self.bus)
        return heard


@asynccontextmanager
async def person(guarded: Guarded, server: NatsServer, name: str) -> AsyncGenerator[Person, None]:
    """Somebody who signed in."""
    denied: list[str] = []

    async def on_error(error: Exception) -> None:
        denied.append(str(error).lower())

    bus = await nats.connect(
        server.url, error_cb=on_error, **Identity.of(guarded.environ(name)).options()
    )
    try:
        yield Person(bus, denied)
    finally:
        await bus.close()


MONITOR = "{ user: monitor, password: monitor }"
"""Somebody in the services' account who may hear everything."""
STREAM_API = "$JS.API.STREAM"
CONSUMER_API = "$JS.API.CONSUMER"
