"""Erasure: remove erased messages from the stream, and erase expired sessions."""

import asyncio
import contextlib
import math
import time

import nats.errors

from turnfold.bus.asking import ask_jetstream
from turnfold.contracts.subjects import ERASED, EVENTS_STREAM, INGESTED
from turnfold.core.text.caches import forget_texts
from turnfold.errors import Unavailable
from turnfold.ports.admin import ErasureStore
from turnfold_worker.context import WorkerContext, now_ms
from turnfold_worker.loops.polling import PollingLoop


class ErasureRunner(PollingLoop):
    """Delete erased messages from the stream, and erase sessions after their retention period."""

    poll_seconds = 30.0
    batch_messages = 100
    batch_sessions = 500
    expiry_seconds = 600.0
    tidy_seconds = 5.0
    """Shortest interval between two removals of copies: each writes parts of the index anew."""

    def __init__(self, context: WorkerContext, *, store: ErasureStore) -> None:
        super().__init__()
        self._store = store
        self._client = context.client
        self._installation = context.installation
        self._expired_at = self._tidied_at = -math.inf
        # A worker that was killed may have left erased data in the write-ahead log.
        self._must_tidy = True

    def after_erasure(self) -> None:
        """Remove the copies of data that a request has just erased."""
        self._must_tidy = True
        self.wake()

    async def work(self) -> float:
        """Erase expired sessions, then remove the copies of all erased data."""
        if time.monotonic() - self._expired_at >= self.expiry_seconds:
            await self._erase_expired()
            self._expired_at = time.monotonic()
        while sequences := await self._store.to_purge(self.batch_messages):
            await asyncio.gather(*(self._delete(seq) for seq in sequences))
            # After the deletion: a worker that dies in between deletes them again, which is
            # harmless.
            await self._store.purged(sequences)
            self._must_tidy = True
        if self._must_tidy:
            wait_seconds = self._tidied_at + self.tidy_seconds - time.monotonic()
            if wait_seconds > 0:
                return wait_seconds
            self._tidied_at = time.monotonic()
            forget_texts()
            with contextlib.suppress(nats.errors.Error):
                # Query servers forget, too.
                await self._client.publish(INGESTED, ERASED)
            self._must_tidy = not await self._store.tidy()
        return self.tidy_seconds if self._must_tidy else self.poll_seconds

    async def _erase_expired(self) -> None:
        after: int | None = 0
        while after is not None:
            after = await self._store.erase_expired(
                after=after,
                limit=self.batch_sessions,
                installation=self._installation,
                now_ms=now_ms(),
            )

    async def _delete(self, seq: int) -> None:
        """Delete and overwrite a message of the stream, if the stream still holds it."""
        try:
            await ask_jetstream(self._client, f"STREAM.MSG.DELETE.{EVENTS_STREAM}", seq=seq)
        except Unavailable:
            # For a message in a removed block, the stream only reports that the deletion failed.
            if await ask_jetstream(self._client, f"STREAM.MSG.GET.{EVENTS_STREAM}", seq=seq):
                raise
