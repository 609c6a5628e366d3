"""The NATS client when its server ends, is away or rejects a message."""

import asyncio
import contextlib
import gc
import json
import socket
import struct
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nats.errors
import pytest
import uvloop
from nats.aio.msg import Msg

from tests.nats_server import NatsServer, subscriptions_known
from tests.running_system import wait_until
from turnfold.nats_client.connection import NatsClient

JWT = "-----BEGIN NATS USER JWT-----\nxxxx\n------END NATS USER JWT------\n"
SEED = f"-----BEGIN USER NKEY SEED-----\nSU{'A' * 54}EQ\n------END USER NKEY SEED------\n"
INFO = b'INFO {"server_id": "x", "max_payload": 1048576, "headers": true}\r\n'


class DyingServer:
    """Greets as NATS does, or babbles while it is not well; knows which connections are open."""

    def __init__(self) -> None:
        self.is_well = True
        self.info = INFO
        self.taken = 0
        self.open: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.taken += 1
        self.open.add(writer)
        writer.write(self.info if self.is_well else b"not now\r\n")
        try:
            while line := await reader.readline():
                if line == b"PING\r\n":
                    writer.write(b"PONG\r\n")
        except ConnectionError:
            pass
        finally:
            self.open.discard(writer)
            writer.close()

    def tell(self, info: Mapping[str, Any]) -> None:
        """Greet so from now on, and tell everybody who is connected."""
        self.info = b"INFO %s\r\n" % json.dumps(info).encode()
        for writer in self.open:
            writer.write(self.info)

    def die(self) -> None:
        """Break every connection."""
        for writer in self.open:
            writer.transport.abort()

    def reset(self) -> None:
        """Break every connection by a reset, as a process that is killed does with unread data."""
        for writer in self.open:
            writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
        self.die()


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


@pytest.mark.proves("O2", "O7")
@pytest.mark.parametrize("written", ["", JWT, SEED], ids=["nothing", "the first part", "the last"])
async def test_credentials_that_are_being_written_while_a_client_reconnects_are_read_again(
    dying: tuple[DyingServer, str], tmp_path: Path, written: str
) -> None:
    server, url = dying
    server.tell({"max_payload": 1_048_576, "auth_required": True, "nonce": "once"})
    creds = tmp_path / "worker.creds"
    creds.write_text(JWT + SEED)
    client = NatsClient()
    await client.connect(
        url,
        user_credentials=str(creds),
        max_reconnect_attempts=-1,
        reconnect_time_wait=0,
        error_cb=unheard,
    )

    creds.write_text(written)
    server.die()
    await wait_until(lambda: server.taken >= 3, seconds=10)
    assert not client.is_connected
    creds.write_text(JWT + SEED)

    await wait_until(lambda: client.is_connected, seconds=10)
    await client.close()


@pytest.mark.proves("O2")
async def test_servers_that_have_left_a_cluster_are_not_tried_again(
    dying: tuple[DyingServer, str],
) -> None:
    server, url = dying
    client = await connected(url)

    for number in range(9):
        server.tell({"connect_urls": [f"127.0.0.{number}:1", "127.0.1.1:1"]})
        await client.flush()
    assert servers_of(client) == {url, "nats://127.0.0.8:1", "nats://127.0.1.1:1"}

    server.tell({"max_payload": 1_048_576})
    await client.flush()
    assert len(servers_of(client)) == 3, "a server that names none forgets none"
    await client.close()


def servers_of(client: NatsClient) -> set[str]:
    """The servers that a client would try."""
    return {server.uri.geturl() for server in client._server_pool}


def in_uvloop(run: Callable[[], Coroutine[Any, Any, None]]) -> list[str]:
    """Run it as services do; what nobody took of the exceptions of its tasks."""
    untaken: list[str] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: untaken.append(repr(context.get("exception", context["message"])))
        )
        await run()
        gc.collect()
        await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(watched())
    return untaken


@asynccontextmanager
async def resetting(*, after: bytes) -> AsyncGenerator[tuple[DyingServer, str]]:
    """A server that resets a connection when it has received this, as a killed one does, while it is not well."""
    server = DyingServer()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if server.is_well:
            await server.serve(reader, writer)
            return
        server.taken += 1
        writer.write(INFO)
        if after:
            await reader.readuntil(after)
        connection: socket.socket = writer.get_extra_info("socket")
        # Without a goodbye: what the other side sends next is answered by a reset.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server, f"nats://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        server.die()
        listening.close()
        await listening.wait_closed()


@pytest.mark.proves("O2", "O7")
@pytest.mark.parametrize("after", [b"", b"CONNECT"])
def test_a_server_that_is_killed_while_a_client_connects_again_ends_no_task(after: bytes) -> None:
    async def run() -> None:
        async with resetting(after=after) as (server, url):
            client = await connected(url)
            server.is_well = False
            server.die()
            await wait_until(lambda: server.taken >= 20, seconds=10)
            server.is_well = True
            await wait_until(lambda: client.is_connected, seconds=10)
            await client.close()

    assert in_uvloop(run) == []


@pytest.mark.proves("O2", "O7")
@pytest.mark.parametrize("steps", range(12))
def test_publishing_on_a_connection_that_was_reset_waits_for_the_next_one(steps: int) -> None:
    async def run() -> None:
        async with resetting(after=b"") as (server, url):
            client = await connected(url)
            server.reset()
            for _ in range(steps):
                await asyncio.sleep(0)
                await client.publish("subject", b"payload")
            with contextlib.suppress(nats.errors.Error):
                await client.flush(1)
            await wait_until(lambda: client.is_connected and not client.is_reconnecting, seconds=10)
            await client.flush()
            await client.close()

    assert in_uvloop(run) == []


@pytest.mark.proves("O2", "O7")
@pytest.mark.parametrize("steps", range(12))
def test_a_client_is_closed_quietly_after_its_connection_was_reset(steps: int) -> None:
    async def run() -> None:
        async with resetting(after=b"") as (server, url):
            client = await connected(url)
            await client.subscribe("subject", cb=ignored)
            server.reset()
            for _ in range(steps):
                await asyncio.sleep(0)
            await client.publish("subject", b"payload")
            await client.close()
            assert client.is_closed

    assert in_uvloop(run) == []


async def ignored(_: Msg) -> None:
    """No message is expected."""


@pytest.mark.proves("L2", "O7")
@pytest.mark.parametrize("name", ["reply", "request"])
async def test_a_request_without_a_connection_fails_and_is_never_sent(
    server: NatsServer, name: str
) -> None:
    heard: list[bytes] = []

    async def answered(message: Msg) -> None:
        heard.append(message.data)
        await message.respond(message.data)

    async def asked(data: bytes, seconds: float) -> bytes:
        if name == "request":
            return (await client.request("erase.all", data, timeout=seconds)).data
        return await client.reply("erase.all", data, seconds=seconds, read=lambda one: one.data)

    client, service = await connected(server.url), await connected(server.url)
    await service.subscribe("erase.all", cb=answered)
    await subscriptions_known(service)
    assert await asked(b"before", 5) == b"before"
    server.stop()
    await wait_until(lambda: not client.is_connected, seconds=10)

    with pytest.raises(nats.errors.TimeoutError):
        await asked(b"meanwhile", 0.2)
    waiting = asyncio.create_task(asked(b"in time", 20))
    await asyncio.sleep(0.1)
    server.start()

    assert await waiting == b"in time"
    assert await asked(b"after", 5) == b"after"
    assert heard == [b"before", b"in time", b"after"]
    await client.close()
    await service.close()


@pytest.mark.proves("O7")
@pytest.mark.parametrize(
    ("says", "is_lost"),
    [
        (b"Maximum Payload Violation", True),
        (b'Permissions Violation for Publish to "events"', False),
        (b'Permissions Violation for Publish with Reply of "inbox"', False),
    ],
)
async def test_an_error_of_the_server_is_told_and_ends_at_most_the_connection(
    dying: tuple[DyingServer, str], says: bytes, is_lost: bool
) -> None:
    told: list[str] = []

    async def tell(error: Exception) -> None:
        told.append(str(error))

    server, url = dying
    client = NatsClient()
    await client.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0, error_cb=tell)

    for writer in server.open:
        writer.write(b"-ERR '" + says + b"'\r\n")
    await wait_until(lambda: bool(told), seconds=10)
    await wait_until(lambda: server.taken == 1 + is_lost and client.is_connected, seconds=10)
    await client.flush()

    assert says.decode().lower() in told[0]
    await client.close()
    assert client.is_closed


@pytest.mark.proves("I5", "O7")
@pytest.mark.parametrize("headers", [{"Nats-Msg-Id": "x" * 40}, {"Nats-Msg-Id": "é" * 40}])
async def test_headers_count_to_the_size_of_a_message_as_the_server_counts_them(
    server: NatsServer, headers: dict[str, str]
) -> None:
    header_bytes = len("NATS/1.0\r\nNats-Msg-Id: \r\n\r\n") + len(headers["Nats-Msg-Id"].encode())
    client = await connected(server.url)
    most = b"x" * (client.max_payload - header_bytes)

    with pytest.raises(nats.errors.MaxPayloadError):
        await client.publish("subject", most + b"x", headers=headers)
    await client.publish("subject", most, headers=headers)
    await client.flush()

    assert client.stats["reconnects"] == 0
    assert client.is_connected
    await client.close()
