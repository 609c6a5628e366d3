"""Follow the workers' notices: events were ingested, or something was erased."""

from collections.abc import Callable

from nats.aio.msg import Msg

from turnfold.contracts.subjects import ERASED, INGESTED
from turnfold.nats_client.connection import NatsClient
from turnfold.nats_client.reconnection import call_on_reconnection


async def follow_notices(
    client: NatsClient, *, on_ingested: Callable[[], object], on_erased: Callable[[], object]
) -> None:
    """Call functions after notices, and after each reconnection, because some may have been lost.

    An erasure counts as an ingested event, too.
    """

    async def on_notice(message: Msg) -> None:
        if message.data == ERASED:
            on_erased()
        on_ingested()

    def on_reconnected() -> None:
        on_erased()
        on_ingested()

    call_on_reconnection(client, on_reconnected)
    # In no queue group: each query server has its own caches and its own waiting requests.
    await client.subscribe(INGESTED, cb=on_notice)
