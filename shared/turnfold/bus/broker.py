"""FastStream's broker on this project's client of NATS."""

from faststream.nats import NatsBroker
from nats.aio.client import Client

from turnfold.nats_client.connection import NatsClient


class Broker(NatsBroker):
    """A broker whose connection reads headers as every other connection of a service does (see `HangingUp`)."""

    async def _connect(self) -> Client:
        client = NatsClient()
        await client.connect(**self._connection_kwargs)
        self.config.connect(client)
        return client
