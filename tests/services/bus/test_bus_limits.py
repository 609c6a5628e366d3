"""Resource limits of one bus client, with the shipped accounts (X6)."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import nats.errors
import pytest

from tests.nats_server import NatsServer, nats_server
from tests.running_system import wait_until
from turnfold.access.identity import Identity
from turnfold.access.keys import new_key
from turnfold.access.roles import CONNECTIONS, SUBSCRIPTIONS, configuration
from turnfold.nats_client.connection import NatsClient

MORE, GROUP = 20, 12


@asynccontextmanager
async def connection(
    server: NatsServer, seed: Path, errors: list[str]
) -> AsyncGenerator[NatsClient]:
    """One more connection with this key; it may have been refused."""

    async def on_error(error: Exception) -> None:
        errors.append(str(error))

    client = NatsClient()
    options = Identity.of({"TURNFOLD_NATS_NKEY": str(seed)}).options()
    with contextlib.suppress(nats.errors.Error):
        await client.connect(
            server.url, allow_reconnect=False, connect_timeout=10, error_cb=on_error, **options
        )
    try:
        yield client
    finally:
        await client.close()


@pytest.mark.proves("X1")
async def test_one_agent_leaves_connections_and_subscriptions_to_others(tmp_path: Path) -> None:
    """X6: an agent that takes all connections it can get shuts out neither another agent nor a service."""
    directory = tmp_path / "keys"
    made = (
        new_key(directory, "agent", "greedy"),
        new_key(directory, "agent", "other"),
        new_key(directory, "query"),
    )
    keys, seeds = [key for key, _ in made], [seed for _, seed in made]
    errors: list[str] = []
    with nats_server(tmp_path, more=configuration(keys)) as server:
        async with AsyncExitStack() as stack:
            # The server counts first and admits afterwards: of connections that come at the same
            # moment a few more may get in. So they come in groups that are smaller than `MORE`.
            clients: list[NatsClient] = []
            while len(clients) < CONNECTIONS + MORE:
                wanted = (
                    stack.enter_async_context(connection(server, seeds[0], errors))
                    for _ in range(GROUP)
                )
                clients += await asyncio.gather(*wanted)
            greedy = [client for client in clients if client.is_connected]
            others = [
                await stack.enter_async_context(connection(server, seed, errors))
                for seed in seeds[1:]
            ]
            are_connected = [client.is_connected for client in others]
            held = len(greedy)
            late = await stack.enter_async_context(connection(server, seeds[0], errors))
            late_is_connected = late.is_connected
            with contextlib.suppress(nats.errors.Error):
                for number in range(SUBSCRIPTIONS + MORE):
                    await greedy[0].subscribe(f"_INBOX.{keys[0].key}.{number}")
            await wait_until(lambda: not greedy[0].is_connected, told=lambda: errors[-3:])
            assert all(client.is_connected for client in others)

    assert CONNECTIONS <= held < CONNECTIONS + MORE
    assert not late_is_connected
    assert are_connected == [True, True]
    assert any("maximum account active connections exceeded" in error for error in errors)
