"""The outbox relay: publish stored notices."""

import asyncio
from collections.abc import Callable
from hashlib import blake2b

import nats.errors
import structlog

from turnfold.contracts.subjects import NOTICES_STREAM
from turnfold.errors import Unavailable
from turnfold.nats_client.acknowledgements import Acknowledgement, Publisher, Rejection
from turnfold.ports.admin import Notice, OutboxStore
from turnfold_worker.loops.polling import YIELDS_AGAIN_SECONDS, BusyDeferral, PollingLoop

log = structlog.get_logger()

NOTICE_SECONDS = 10.0


class Relay(PollingLoop):
    """Sends the outbox to the stream of notices, at least once and in order."""

    at_once = 100

    def __init__(
        self, *, store: OutboxStore, publisher: Publisher, is_busy: Callable[[], bool]
    ) -> None:
        super().__init__()
        self._store = store
        self._publisher = publisher
        self._events = BusyDeferral(is_busy)

    async def work(self) -> float:
        """Send what waits; a notice is forgotten when the stream has it."""
        if self._events.go_first:
            return YIELDS_AGAIN_SECONDS
        is_full = True
        while is_full and (notices := await self._store.unsent(self.at_once)):
            is_full = len(notices) == self.at_once
            try:
                told = await asyncio.gather(*(self._publish(notice) for notice in notices))
            except (nats.errors.Error, TimeoutError) as error:
                raise Unavailable(f"notices wait: {type(error).__name__}") from error
            if rejection := next((one for one in told if isinstance(one, Rejection)), None):
                raise Unavailable(f"notices wait: {rejection.description or rejection.code}")
            await self._store.sent(notices)
        return self.poll_seconds

    async def _publish(self, notice: Notice) -> Acknowledgement | Rejection:
        headers = {"Nats-Expected-Stream": NOTICES_STREAM, "Nats-Msg-Id": _name_of(notice)}
        return await self._publisher.publish(
            notice.subject, notice.payload.encode(), headers=headers, seconds=NOTICE_SECONDS
        )


def _name_of(notice: Notice) -> str:
    """What the broker knows a notice by when it comes again; by its number alone, those of a restored database would be taken for old ones."""
    told = blake2b(notice.payload.encode(), digest_size=8).hexdigest()
    return f"n{notice.outbox_id}.{told}"
