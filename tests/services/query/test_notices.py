"""Notices of the workers on a real bus, and those that a query server cannot have received."""

import asyncio

import pytest

from tests.nats_server import NatsServer
from tests.running_system import eventually
from turnfold.bus.connection import connect
from turnfold.contracts.subjects import ERASED, INGESTED
from turnfold.settings import Settings
from turnfold_query.ingest_signal import follow_notices


@pytest.mark.proves("A6", "W5")
async def test_a_lost_connection_counts_as_a_notice(server: NatsServer) -> None:
    """A6: what was erased meanwhile would stay in memory until the next erasure."""
    calls: list[str] = []

    async def called(*names: str) -> None:
        async def look() -> bool:
            return calls == list(names)

        await eventually(look, seconds=20)
        calls.clear()

    client = await connect(Settings(nats_url=server.url), name="query")
    try:
        await follow_notices(
            client,
            on_ingested=lambda: calls.append("ingested"),
            on_erased=lambda: calls.append("erased"),
        )
        await client.publish(INGESTED, b"")
        await called("ingested")
        await client.publish(INGESTED, ERASED)
        await called("erased", "ingested")

        await restarted(server)
        await called("erased", "ingested")
        await client.publish(INGESTED, b"")
        await called("ingested")
    finally:
        await client.close()


async def restarted(server: NatsServer) -> None:
    """Crash the server, and start it again."""
    server.kill()
    await asyncio.to_thread(server.start)
