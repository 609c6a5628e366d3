"""Agents that publish without a pause, one over NATS and one over HTTP, and know what was accepted."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

import httpx

import turnfold
from tests.containers.compose_file import Json
from tests.containers.installation import Installation
from tests.running_system import eventually, wait_until

LONGEST = 3_000
PAUSE_SECONDS = 0.05
PROGRESS = 5
SECONDS = 120.0


class Agent(ABC):
    """A conversation that grows turn by turn. A turn that failed is published again, under its id."""

    def __init__(self, agent_id: str, session_id: str) -> None:
        self.agent_id, self.session_id = agent_id, session_id
        self.accepted: list[Json] = []
        self.failures = 0

    @abstractmethod
    async def publish(self, event_id: str, messages: list[Json]) -> None:
        """Publish a turn; return when it is accepted."""

    async def go_on(self, is_over: asyncio.Event) -> None:
        """Publish turns until it is over, and none is left unaccepted."""
        for number in range(len(self.accepted) // 2, LONGEST):
            if is_over.is_set():
                return
            turn = [
                {"role": "user", "content": f"Where is order {number}?"},
                {"role": "assistant", "content": f"Order {number} is parcel PX-{number:04d}."},
            ]
            await self._until_accepted(f"{self.session_id}-{number}", turn)
            self.accepted += turn
            await asyncio.sleep(PAUSE_SECONDS)

    async def _until_accepted(self, event_id: str, turn: list[Json]) -> None:
        async with asyncio.timeout(SECONDS):
            while True:
                try:
                    return await self.publish(event_id, turn)
                except (turnfold.Unavailable, httpx.TransportError, httpx.HTTPStatusError):
                    self.failures += 1
                    await asyncio.sleep(0.2)


class AgentOnNats(Agent):
    """An agent with a key of its own."""

    def __init__(self, agent_id: str, client: turnfold.Client) -> None:
        super().__init__(agent_id, "over-nats")
        self.session = client.session(agent_id, self.session_id)

    async def publish(self, event_id: str, messages: list[Json]) -> None:
        """Publish a turn; return when it is accepted."""
        await self.session.turn_completed(messages, event_id=event_id)


class AgentOnHttp(Agent):
    """An agent with a token."""

    def __init__(self, agent_id: str, http: httpx.AsyncClient) -> None:
        super().__init__(agent_id, "over-http")
        self.path = f"/v1/agents/{agent_id}/sessions/{self.session_id}"
        self._http = http

    async def publish(self, event_id: str, messages: list[Json]) -> None:
        """Publish a turn; return when it is accepted."""
        event = {
            "type": "turn.completed",
            "event_id": event_id,
            "agent_id": self.agent_id,
            "session_id": self.session_id,
            "messages": messages,
        }
        (await self._http.post(f"{self.path}/events", json=event)).raise_for_status()

    async def window(self) -> Json:
        """Return a window of the session that has all that was published."""
        wanted = {"max_tokens": 20_000}
        answer = await self._http.get(f"{self.path}/context", params=wanted)
        return dict(answer.raise_for_status().json())


class Agents:
    """Both agents, and what must be true of their conversations."""

    def __init__(
        self,
        installation: Installation,
        agent_id: str,
        client: turnfold.Client,
        http: httpx.AsyncClient,
    ) -> None:
        self._installation, self.agent_id, self._client = installation, agent_id, client
        self.nats = AgentOnNats(agent_id, client)
        self.http = AgentOnHttp(agent_id, http)

    @property
    def failures(self) -> int:
        """How often publishing failed."""
        return self.nats.failures + self.http.failures

    @asynccontextmanager
    async def at_work(self) -> AsyncGenerator[None]:
        """Publish in the background; at the end everything published has been accepted."""
        is_over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for agent in (self.nats, self.http):
                tasks.create_task(agent.go_on(is_over))
            try:
                yield
            finally:
                is_over.set()

    async def make_progress(self) -> None:
        """Return when both have published some more turns."""
        for agent in (self.nats, self.http):
            least = len(agent.accepted) + 2 * PROGRESS
            await wait_until(lambda: len(agent.accepted) >= least, seconds=SECONDS)  # noqa: B023

    async def check(self) -> dict[str, int]:
        """Compare what was accepted with what is stored, and verify the record; return counts."""
        for agent in (self.nats, self.http):
            await eventually(
                partial(self._are_equal, agent), seconds=SECONDS, every=0.5, told=self._describe
            )
        counts = await self._installation.counts(self.agent_id)
        assert counts["messages"] == len(self.nats.accepted) + len(self.http.accepted)
        assert counts["sessions"] == 2
        assert counts["dead letters"] == 0
        await self._installation.operator("audit", "verify")
        return counts

    def _describe(self) -> str:
        accepted = f"{len(self.nats.accepted)} and {len(self.http.accepted)} accepted"
        return f"{accepted}\n{self._installation.project.logs('worker')[-6_000:]}"

    async def _are_equal(self, agent: Agent) -> bool:
        session = self._client.session(self.agent_id, agent.session_id)
        try:
            stored = [stored.message async for stored in session.originals()]
        except (turnfold.Unavailable, turnfold.UnknownSession):
            return False
        return stored == agent.accepted


@asynccontextmanager
async def agents_of(installation: Installation, agent_id: str) -> AsyncGenerator[Agents]:
    """Connect both agents, which restarts do not stop; messages leave their windows soon."""
    key = await installation.new_agent(agent_id)
    # Over HTTP, because the previous release has no such command.
    async with installation.http(installation.token) as operator:
        policy = {"overrides": {"max_live_messages": 20}}
        answer = await operator.patch(f"/v1/agents/{agent_id}/policy", json=policy)
        answer.raise_for_status()
    token = await asyncio.to_thread(installation.new_token, agent_id)
    # The previous release closes the file each time that it writes it.
    await asyncio.to_thread(installation.open_tokens)
    environ = {"TURNFOLD_NATS_NKEY": str(key)}
    async with (
        turnfold.connect(installation.nats_url, environ=environ) as client,
        installation.http(token) as http,
    ):
        yield Agents(installation, agent_id, client, http)
