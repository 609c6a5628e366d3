"""One running system, provider and proxy for the tests of each module."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.ports import free_port
from tests.provider import Provider, completion, running_provider
from tests.running_system import Parts, running_parts
from turnfold.client import Client, Session, Window

KEY = "sk-quokka-7341"


@dataclass(frozen=True)
class ProxyScene:
    """A proxy with everything around it; `http` sends the caller's key."""

    parts: Parts
    provider: Provider
    client: Client
    url: str
    http: httpx.AsyncClient

    async def texts(self, session_id: str, agent_id: str = "proxy") -> list[tuple[str, object]]:
        """The roles and contents of a session, when all of it is stored."""
        session = self.client.session(agent_id, session_id)
        await session.history(newest=1, after="latest", wait_ms=5_000)
        return [(one.message["role"], one.message["content"]) async for one in session.originals()]

    async def has_retracted(self, session_id: str) -> bool:
        """Return whether a message of a session was retracted."""
        statement = "SELECT 1 FROM messages_view WHERE session_id = ? AND state = 'retracted'"
        return bool(await self.parts.rows(statement, session_id))


class HeldSession(Session):
    """A session whose windows wait for a gate, as while a worker is behind.

    Each module has its own gate, because an event belongs to one loop.
    """

    gate: asyncio.Event
    has_asked: asyncio.Event

    async def context(self, **asked: Any) -> Window:
        """Ask for a window, and wait for the gate first."""
        self.has_asked.set()
        await self.gate.wait()
        return await super().context(**asked)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[ProxyScene]:
    """All of it, started once."""
    port = free_port()
    async with running_provider(lambda _: completion("It left Ghent.")) as provider:
        environ = {
            "TURNFOLD_PROXY_UPSTREAM": provider.url,
            "TURNFOLD_PROXY_PORT": str(port),
            # Machines that run tests are slow, and only a test of that wants calls to be bypassed.
            "TURNFOLD_PROXY_WAIT_SECONDS": "60",
        }
        async with (
            running_parts(tmp_path_factory.mktemp("proxy"), environ=environ) as parts,
            parts.running("query"),
            parts.running("worker"),
            parts.running("proxy"),
            parts.client() as client,
            httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}",
                headers={"authorization": f"Bearer {KEY}", "x-api-key": KEY},
                trust_env=False,
                timeout=60,
            ) as http,
        ):
            yield ProxyScene(parts, provider, client, f"http://127.0.0.1:{port}", http)
