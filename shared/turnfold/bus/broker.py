"""FastStream's broker on this project's NATS client."""

from faststream.nats import NatsBroker, NatsMessage
from nats.aio.client import Client

from turnfold.nats_client.connection import NatsClient


class Broker(NatsBroker):
    """A broker that uses `NatsClient`, as all connections of the services do."""

    async def _connect(self) -> Client:
        client = NatsClient()
        await client.connect(**self._connection_kwargs)
        self.config.connect(client)
        return client

    async def stop_taking(self) -> None:
        """Take no more requests. `stop` also ends the connection, on which replies are sent."""
        for subscriber in self.subscribers:
            await subscriber.stop()


async def passthrough_decoder(message: NatsMessage) -> NatsMessage:
    """Pass the raw message to the handler, which reads it with the model of its request."""
    # Injected by FastStream, the handler's arguments would cost a change of threads per request.
    return message
