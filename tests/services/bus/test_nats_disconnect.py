"""The NATS client leaves no connection open, however its server ends."""

import asyncio
import gc
import sys
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from tests.running_system import wait_until
from turnfold.nats_client.connection import NatsClient

INFO = b'INFO {"server_id": "x", "max_payload": 1048576, "headers": true}\r\n'


class DyingServer:
    """Greets as NATS does, or babbles while it is not well; knows which connections are open."""

    def __init__(self) -> None:
        self.is_well = True
        self.taken = 0
        self.open: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.taken += 1
        self.open.add(writer)
        writer.write(INFO if self.is_well else b"not now\r\n")
        try:
            while line := await reader.readline():
                if line == b"PING\r\n":
                    writer.write(b"PONG\r\n")
        except ConnectionError:
            pass
        finally:
            self.open.discard(writer)
            writer.close()

    def die(self) -> None:
        """Break every connection."""
        for writer in self.open:
            writer.transport.abort()


@pytest.fixture
async def dying() -> AsyncIterator[tuple[DyingServer, str]]:
    server = DyingServer()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    try:
        yield server, f"nats://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()
        await listening.wait_closed()


async def unheard(_: Exception) -> None:
    """A server that dies is expected to be complained of."""


async def connected(url: str) -> NatsClient:
    client = NatsClient()
    await client.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0, error_cb=unheard)
    return client


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was forgotten without being closed: Python says so, and nobody can catch it."""
    said: list[str] = []

    def note(unraisable: SimpleNamespace) -> None:
        said.append(str(unraisable.exc_value))

    monkeypatch.setattr(sys, "unraisablehook", note)
    return said


@pytest.mark.proves("O2")
async def test_a_server_that_does_not_greet_is_hung_up_on_before_the_next_attempt(
    dying: tuple[DyingServer, str], lost: list[str]
) -> None:
    server, url = dying
    client = await connected(url)

    server.is_well = False
    server.die()
    await wait_until(lambda: server.taken >= 5, seconds=10)
    server.is_well = True
    await wait_until(lambda: client.is_connected, seconds=10)
    await client.close()

    gc.collect()
    assert lost == []
    await wait_until(lambda: not server.open, seconds=10)


@pytest.mark.proves("O2")
@pytest.mark.parametrize("steps", range(30))
async def test_a_client_that_is_closed_while_it_connects_leaves_no_connection(
    dying: tuple[DyingServer, str], lost: list[str], steps: int
) -> None:
    server, url = dying
    client = await connected(url)

    server.die()
    for _ in range(steps):  # connecting again takes some twenty steps of the loop
        await asyncio.sleep(0)
    await client.close()

    await wait_until(lambda: not server.open, seconds=10)
    gc.collect()
    assert lost == []
