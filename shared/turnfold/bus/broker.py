"""FastStream's broker on this project's NATS client."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import nats.errors
from faststream.nats import NatsBroker, NatsMessage
from nats.aio.client import Client
from nats.aio.msg import Msg

from turnfold.nats_client.connection import NatsClient
from turnfold.process.tasks import at_most

DRAIN_SECONDS: Final = 1.0


class Broker(NatsBroker):
    """A broker that uses `NatsClient`, as all connections of the services do."""

    _bus: NatsClient | None = None

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(**options, logger=None, apply_types=False)

    def listen(self, subject: str, queue: str, take: Callable[[Msg], object]) -> None:
        """Call a function with each message of a subject. One subscriber of a queue gets it."""

        @self.subscriber(subject, queue=queue, decoder=passthrough_decoder, no_reply=True)
        async def on_message(message: NatsMessage) -> None:
            raw = message.raw_message
            assert isinstance(raw, Msg)
            take(raw)

    async def _connect(self) -> Client:
        self._bus = NatsClient()
        await self._bus.connect(**self._connection_kwargs)
        self.config.connect(self._bus)
        return self._bus

    async def finish(self, running: Callable[[], Awaitable[object]]) -> None:
        """Take no more requests, let those that are `running` end, and close the connection.

        Unlike `stop`, it keeps the connection for their replies, and waits for no silent server.
        """
        try:
            await at_most(DRAIN_SECONDS, asyncio.gather(*map(self._drain, self.subscribers)))
            await running()
        finally:
            if self._bus is not None:
                await self._bus.close()

    async def _drain(self, subscriber: Any) -> None:
        """Unsubscribe, and hand over what was delivered. FastStream's own end would drop that."""
        # None before the start.
        if self._bus is not None and subscriber.subscription is not None:
            with contextlib.suppress(nats.errors.Error):
                await self._bus.drain_subscription(subscriber.subscription)


async def passthrough_decoder(message: NatsMessage) -> NatsMessage:
    """Pass the raw message to the handler, which reads it with the model of its request."""
    # Injected by FastStream, the handler's arguments would cost a change of threads per request.
    return message
