"""Notices that events were ingested or erased, as signals for the requests of this process."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from nats.aio.msg import Msg

from turnfold.contracts.subjects import ERASED, INGESTED
from turnfold.errors import Unavailable
from turnfold.nats_client.connection import NatsClient
from turnfold.operations.query.context import IngestSignal
from turnfold.process.request_limits import Place
from turnfold.process.tasks import at_most, cancel_and_wait

LOOK_SECONDS = 0.05
"""Polling interval while requests wait for events, in case a signal was lost."""
WAKE_SECONDS = 0.001
"""Pause after a read of the ingested sequence, however many signals arrive meanwhile."""


class NatsIngestSignal:
    """Wake requests that wait for an event; one task reads the ingested sequence for all."""

    def __init__(self, ingested_to: Callable[[], Awaitable[int]]) -> None:
        self._ingested_to = ingested_to
        self._signal = asyncio.Event()
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._newest = 0
        self._poller: asyncio.Task[None] | None = None

    def notify(self) -> None:
        """Signal that events were ingested."""
        self._signal.set()

    async def reached(self, seq: int, seconds: float) -> None:
        """Return when every event up to `seq` is ingested, or after `seconds`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = seq
        # The event may have come after the request looked for it. Its signal is still set then, or
        # was taken for requests that waited already.
        if seq <= self._newest:
            self._signal.set()
        if self._poller is None:
            self._poller = asyncio.create_task(self._poll(), name="ingest signal")
        try:
            await at_most(seconds, waiter)
        finally:
            del self._waiting[waiter]

    async def close(self) -> None:
        """Stop reading. Requests that still wait reach their own time limits."""
        if self._poller is not None:
            await cancel_and_wait(self._poller)

    async def _poll(self) -> None:
        """Read the ingested sequence on each signal and interval, as long as a request waits."""
        try:
            while self._waiting:
                await at_most(LOOK_SECONDS, self._signal.wait())
                # Before the read, so that a signal that arrives meanwhile causes another read.
                self._signal.clear()
                # Requests that wait reach their own time limits. The next round tries again.
                with contextlib.suppress(Unavailable):
                    self._newest = await self._ingested_to()
                    self._wake(self._newest)
                await asyncio.sleep(WAKE_SECONDS)
        finally:
            # Nothing is awaited after the loop, so no new request relies on this poller.
            self._poller = None

    def _wake(self, ingested_to: int) -> None:
        # Woken requests remove themselves when their tasks run, so the dict does not change here.
        for waiter, seq in self._waiting.items():
            if seq <= ingested_to and not waiter.done():
                waiter.set_result(None)


def placed(signal: IngestSignal, place: Place) -> IngestSignal:
    """Return the signal for one request, which exchanges its place for one of a waiting request."""

    async def reached(seq: int, seconds: float) -> None:
        # Hundreds may wait for one event, so all of them take turns afterwards.
        place.wait()
        await signal(seq, seconds)
        await place.turn()

    return reached


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

    client.call_on_reconnection(on_reconnected)
    # In no queue group: each query server has its own caches and its own waiting requests.
    await client.subscribe(INGESTED, cb=on_notice)
