"""The outbox relay: publish stored notices."""

import asyncio
from collections.abc import Callable
from hashlib import blake2b

import nats.errors

from turnfold.contracts.subjects import NOTICES_STREAM
from turnfold.errors import Unavailable
from turnfold.nats_client.acknowledgements import Acknowledgement, Publisher, Rejection
from turnfold.nats_client.connection import NatsClient
from turnfold.store.database.outbox import Notice, SqlOutboxStore
from turnfold_worker.loops.polling import YIELD_POLL_SECONDS, BusyDeferral, PollingLoop

PUBLISH_SECONDS = 10.0


class Relay(PollingLoop):
    """Publish the notices of the outbox, in order and at least once."""

    batch_notices = 100

    def __init__(
        self,
        *,
        store: SqlOutboxStore,
        client: NatsClient,
        is_busy: Callable[[], bool],
        woken: asyncio.Event | None = None,
        on_foreign: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(woken=woken)
        self._store = store
        # A notice is deleted once it is acknowledged, so a forged reply must not be believed.
        self._publisher = Publisher(
            client, NOTICES_STREAM, on_foreign=on_foreign, looks_up_all=True
        )
        self._deferral = BusyDeferral(is_busy)

    async def work(self) -> float:
        """Publish all notices that wait. Delete each once the stream has acknowledged it."""
        if self._deferral.should_wait:
            return YIELD_POLL_SECONDS
        is_full = True
        while is_full and (notices := await self._store.unsent(self.batch_notices)):
            # A full page: more may wait behind it.
            is_full = len(notices) == self.batch_notices
            try:
                # Sent one after the other on one connection, so the stream has them in this order.
                replies = await asyncio.gather(*(self._publish(notice) for notice in notices))
            except (nats.errors.Error, TimeoutError) as error:
                raise _cannot_publish(type(error).__name__) from error
            rejections = (reply for reply in replies if isinstance(reply, Rejection))
            if rejection := next(rejections, None):
                raise _cannot_publish(str(rejection.description or rejection.code))
            # All or none: a notice that is published again is recognized by its id.
            await self._store.sent(notices)
        return self.poll_seconds

    async def _publish(self, notice: Notice) -> Acknowledgement | Rejection:
        headers = {"Nats-Expected-Stream": NOTICES_STREAM, "Nats-Msg-Id": _message_id(notice)}
        return await self._publisher.publish(
            notice.subject, notice.payload.encode(), headers=headers, seconds=PUBLISH_SECONDS
        )


def _cannot_publish(cause: str) -> Unavailable:
    return Unavailable(f"cannot publish notices ({cause}); retrying in 1 s")


def _message_id(notice: Notice) -> str:
    """Return the id by which the stream recognizes a notice that is published again.

    It includes a hash of the payload: a restored database reuses the numbers of the outbox.
    """
    digest = blake2b(notice.payload.encode(), digest_size=8).hexdigest()
    return f"n{notice.outbox_id}.{digest}"
