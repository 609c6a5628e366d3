"""An attacker: its connections, its pace, and the outcomes that it counts."""

import asyncio
import json
import time
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import nats
import nats.errors
from nats.aio.client import Client

from turnfold.contracts.subjects import session_subject
from turnfold.messages import AgentId, SessionId, SessionKey

AGENT = AgentId("attacker")
CPU_SHARE = 0.2
FAR_AHEAD = 10**15
MIB = 1024 * 1024
EVENT_BYTES = 4 * MIB
RETRY_SECONDS = 1.0
REQUEST_SECONDS = 10.0
PREPARE_SECONDS = 120.0

Json = dict[str, Any]


@dataclass
class Attacker:
    """The parts that every attack uses: its connections, its deadline, its rate, and the number of each outcome."""

    bus: Client
    http_url: str
    token: str
    deadline: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    _began: float = field(default_factory=time.monotonic)
    _cpu_before: float = field(default_factory=time.process_time)
    _next_at: float = 0.0

    def begin(self, seconds: float) -> None:
        """Start the clock of the attack."""
        self._began, self._cpu_before = time.monotonic(), time.process_time()
        self.deadline = self._began + seconds

    @property
    def is_over(self) -> bool:
        """Whether the attack's time is over."""
        return time.monotonic() >= self.deadline

    @property
    def cpu_share(self) -> float:
        """The share of a core that the attacker has used since it began."""
        return (time.process_time() - self._cpu_before) / max(0.1, time.monotonic() - self._began)

    async def pace(self, per_second: float) -> None:
        """Wait for the next turn at this rate, all loops of the attack together, and longer if the share of the core is used up."""
        now = time.monotonic()
        self._next_at = max(now, self._next_at + 1 / per_second)
        await asyncio.sleep(self._next_at - now)
        overdrawn = (time.process_time() - self._cpu_before) / CPU_SHARE - (
            time.monotonic() - self._began
        )
        if overdrawn > 0:
            await asyncio.sleep(overdrawn)

    async def ask(
        self, name: str, session_id: str, request: Json, *, seconds: float = REQUEST_SECONDS
    ) -> Json:
        """Send one request on the bus and count its outcome; after a refusal wait as long as the answer says."""
        try:
            reply = await self.bus.request(
                subject(name, session_id), json.dumps(request).encode(), timeout=seconds
            )
        except (nats.errors.Error, TimeoutError) as error:
            self.outcomes[type(error).__name__] += 1
            await asyncio.sleep(RETRY_SECONDS)
            return {}
        answer: Json = json.loads(reply.data)
        if refusal := answer.get("error"):
            self.outcomes[refusal["code"]] += 1
            await asyncio.sleep(
                max(
                    RETRY_SECONDS,
                    (refusal.get("retry_after_ms") or answer.get("retry_after_ms") or 0) / 1000,
                )
            )
        else:
            self.outcomes["answered"] += 1
        return answer

    async def publish(self, session_id: str, messages: list[Json], event_id: str) -> None:
        """Publish one event and wait for the stream's acknowledgement."""
        event = {
            "event_id": event_id,
            "agent_id": AGENT,
            "session_id": session_id,
            "messages": messages,
        }
        await self.bus.jetstream(timeout=REQUEST_SECONDS).publish(
            subject("turn.completed", session_id), json.dumps(event).encode()
        )

    async def until_stored(self, session_id: str, messages: int) -> None:
        """Wait until the session has this many messages."""
        async with asyncio.timeout(PREPARE_SECONDS):
            while True:
                reply = await self.bus.request(
                    subject("session.get", session_id), b"", timeout=REQUEST_SECONDS
                )
                if json.loads(reply.data).get("messages_total", 0) >= messages:
                    return
                await asyncio.sleep(0.1)

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[tuple[StreamReader, StreamWriter]]:
        """A new HTTP connection."""
        parts = urlsplit(self.http_url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            yield reader, writer
        finally:
            writer.close()

    def head(self, method: str, path: str, *lines: str) -> bytes:
        """The head of a request with the attacker's token."""
        given = (
            f"{method} /v1/agents/{AGENT}/sessions/{path} HTTP/1.1",
            "Host: attacked",
            f"Authorization: Bearer {self.token}",
            *lines,
        )
        return "\r\n".join([*given, "", ""]).encode()

    async def until_closed(self, reader: StreamReader) -> None:
        """Hold a connection until the server answers or closes it, or the attack is over; count which."""
        try:
            async with asyncio.timeout(max(0.0, self.deadline - time.monotonic())):
                line = await reader.readline()
                self.outcomes[line.decode("latin1").strip() or "closed"] += 1
        except TimeoutError:
            self.outcomes["held to the end"] += 1


def subject(name: str, session_id: str) -> str:
    """The subject of a request or an event of the attacker's own session."""
    return session_subject(name, SessionKey(AGENT, SessionId(session_id)))


async def repeated(
    attacker: Attacker, work: Callable[[int], Awaitable[object]], *, at_once: int, per_second: float
) -> None:
    """Do the work in this many loops until the time is over; errors of a connection are outcomes."""

    async def loop(number: int) -> None:
        while not attacker.is_over:
            await attacker.pace(per_second)
            try:
                await work(number)
            except (OSError, nats.errors.Error, TimeoutError, asyncio.IncompleteReadError) as error:
                attacker.outcomes[type(error).__name__] += 1
                await asyncio.sleep(RETRY_SECONDS)

    async with asyncio.TaskGroup() as group:
        for number in range(at_once):
            group.create_task(loop(number))
