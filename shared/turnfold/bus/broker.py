"""FastStream's broker on this project's NATS client."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

import nats.errors
from faststream.nats import NatsBroker, NatsMessage
from nats.aio.client import Client

from turnfold.nats_client.connection import NatsClient
from turnfold.process.tasks import at_most

DRAIN_SECONDS: Final = 1.0
CLOSE_SECONDS: Final = 1.0


class Broker(NatsBroker):
    """A broker that uses `NatsClient`, as all connections of the services do."""

    async def _connect(self) -> Client:
        client = NatsClient()
        await client.connect(**self._connection_kwargs)
        self.config.connect(client)
        return client

    async def finish(self, running: Callable[[], Awaitable[object]]) -> None:
        """Take no more requests, let those that are `running` end, and close the connection.

        Unlike `stop`, it keeps the connection for their replies, and waits for no silent server.
        """
        try:
            await at_most(DRAIN_SECONDS, asyncio.gather(*map(_drained, self.subscribers)))
            await running()
        finally:
            if self._connection is not None:
                await at_most(CLOSE_SECONDS, self._connection.close())


async def _drained(subscriber: Any) -> None:
    """Unsubscribe, and hand over what was delivered. FastStream's own end would drop that."""
    # None before the start.
    if subscriber.subscription is not None:
        with contextlib.suppress(nats.errors.Error):
            await subscriber.subscription.drain()


async def passthrough_decoder(message: NatsMessage) -> NatsMessage:
    """Pass the raw message to the handler, which reads it with the model of its request."""
    # Injected by FastStream, the handler's arguments would cost a change of threads per request.
    return message
