"""The event stream and its consumer on a bus without services."""

from collections.abc import AsyncIterator

import nats
import pytest
from nats.aio.client import Client

from tests.nats_server import NatsServer
from turnfold.bus.streams import EVENTS, INGEST
from turnfold.contracts.subjects import EVENTS_STREAM


@pytest.fixture
async def bus(server: NatsServer) -> AsyncIterator[Client]:
    """A connection to a server that has the event stream and its consumer."""
    connection = await nats.connect(server.url)
    await connection.jetstream().add_stream(EVENTS)
    await connection.jetstream().add_consumer(EVENTS_STREAM, INGEST)
    yield connection
    await connection.close()
