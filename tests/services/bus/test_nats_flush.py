"""Flushing, ending and closing on a real bus: what is promised of what was sent before."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from urllib.parse import urlsplit

import nats.errors
import pytest
from nats.aio.msg import Msg

from tests.nats_server import NatsServer
from tests.running_system import wait_until
from tests.services.bus.test_nats_disconnect import connected


@contextmanager
def silent(server: NatsServer) -> Generator[None]:
    """Let a server take nothing, although its connections stay."""
    os.kill(server.pid, SIGSTOP)
    threads = Path(f"/proc/{server.pid}/task")
    # A thread that runs stops a moment later.
    while not all(" T " in one.read_text() for one in threads.glob("*/stat")):
        time.sleep(0.001)
    try:
        yield
    finally:
        os.kill(server.pid, SIGCONT)


@asynccontextmanager
async def recorded(server: NatsServer, sent: bytearray) -> AsyncGenerator[str]:
    """A way to a server that records what a client sends."""
    port = urlsplit(server.url).port

    async def carry(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, copy: bytearray
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                copy.extend(data)
                writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(
            carry(reader, to_server, sent), carry(from_server, writer, bytearray())
        )
        ended.set()

    ended = asyncio.Event()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        yield f"nats://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        await ended.wait()


@pytest.mark.proves("A6", "O4")
async def test_the_answer_to_a_flush_proves_that_the_server_has_what_was_sent_before(
    server: NatsServer,
) -> None:
    sent = bytearray()
    async with recorded(server, sent) as url:
        client = await connected(url)
        subscription = await client.subscribe("before.>")
        del sent[:]

        await client.publish("subject", b"payload")
        await client.flush()
        assert 0 <= sent.find(b"PUB subject") < sent.find(b"PING")
        del sent[:]

        await client.drain_subscription(subscription)
        assert 0 <= sent.find(b"UNSUB") < sent.find(b"PING")
        await client.close()


@pytest.mark.proves("O2", "O7")
async def test_a_flush_that_was_given_up_does_not_end_its_connection(server: NatsServer) -> None:
    heard: list[Msg] = []

    async def hear(message: Msg) -> None:
        heard.append(message)

    client = await connected(server.url)
    await client.subscribe("subject", cb=hear)
    with silent(server):
        with pytest.raises(nats.errors.TimeoutError):
            await client.flush(0.2)
        given_up = asyncio.create_task(client.flush())
        await asyncio.sleep(0.05)
        given_up.cancel()
    await client.flush()
    await client.publish("subject", b"payload")
    await wait_until(lambda: bool(heard))

    assert client.stats["reconnects"] == 0
    await client.close()


@pytest.mark.proves("O2")
async def test_a_flush_without_a_connection_waits_for_the_next_one(server: NatsServer) -> None:
    client = await connected(server.url)
    server.kill()
    await wait_until(lambda: not client.is_connected)
    with pytest.raises(nats.errors.TimeoutError):
        await client.flush(0.1)
    flushing = asyncio.create_task(client.flush(20))
    server.start()
    await flushing

    assert client.is_connected
    await client.close()


@pytest.mark.proves("O4")
async def test_a_connection_with_unsent_data_is_closed_while_its_server_is_silent(
    server: NatsServer,
) -> None:
    client = await connected(server.url)
    with silent(server):
        for _ in range(12):
            # Waits for room, which a silent server does not make.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await client.publish("subject", bytes(1_000_000))
        async with asyncio.timeout(30):
            await client.close()

    assert client.is_closed


@pytest.mark.proves("O4", "L12")
async def test_a_subscription_whose_end_was_cut_short_does_not_come_back(
    server: NatsServer,
) -> None:
    client = await connected(server.url)
    subscription = await client.subscribe("subject")
    with silent(server), pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await client.drain_subscription(subscription)
    server.kill()
    server.start()
    await wait_until(lambda: client.is_connected and client.stats["reconnects"] > 0)
    asker = await connected(server.url)

    with pytest.raises(nats.errors.NoRespondersError):
        await asker.request("subject", b"", timeout=5)
    await asker.close()
    await client.close()
