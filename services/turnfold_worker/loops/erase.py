"""Erasure: delete erased rows and messages of the stream, and erase expired sessions."""

import asyncio
import contextlib
import math
import time

import nats.errors

from turnfold.bus.asking import ask_jetstream
from turnfold.contracts.erasures import ErasedSessions, write_erasure
from turnfold.contracts.subjects import ERASED, EVENTS_STREAM, INGESTED
from turnfold.errors import Unavailable
from turnfold.ports.admin import ErasureStore
from turnfold_worker.context import WorkerContext, now_ms
from turnfold_worker.loops.polling import PollingLoop


class ErasureRunner(PollingLoop):
    """Delete what was erased from tables and stream, and erase sessions after their retention."""

    poll_seconds = 30.0
    batch_messages = 100
    batch_sessions = 500
    expiry_seconds = 600.0
    signal_seconds = 1
    """The most time that the answer to an erasure waits until the server has its signal."""
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
        self._requests = 0

    async def after_erasure(self, erased: ErasedSessions) -> None:
        """Signal what a request has just erased, and remove the copies of its data."""
        self._must_tidy = True
        self._requests += 1
        self.wake()
        with contextlib.suppress(nats.errors.Error):
            # Before the answer: programs of the agent that keep windows must not use them again.
            await self._client.publish(*write_erasure(erased))
            await self._client.flush(self.signal_seconds)

    async def work(self) -> float:
        """Erase expired sessions, then delete the rows and the copies of all erased data."""
        if time.monotonic() - self._expired_at >= self.expiry_seconds:
            await self._erase_expired()
            self._expired_at = time.monotonic()
        requests = self._requests
        is_due = self._must_tidy and self._wait_seconds() <= 0
        if is_due:
            # First, because the rest takes a minute for a million messages.
            self._tidied_at = time.monotonic()
            await self._tell_query_servers()
        # One transaction each, between which ingest has its turn.
        while await self._store.delete_rows():
            self._must_tidy = True
        while sequences := await self._store.to_purge(self.batch_messages):
            await asyncio.gather(*(self._delete(seq) for seq in sequences))
            # After the deletion: a worker that dies in between deletes them again, which is
            # harmless.
            await self._store.purged(sequences)
            self._must_tidy = True
        if is_due:
            is_tidy = await self._store.tidy()
            # Texts that were erased meanwhile are still in memory.
            self._must_tidy = not is_tidy or self._requests > requests
        return max(0.0, self._wait_seconds()) if self._must_tidy else self.poll_seconds

    def _wait_seconds(self) -> float:
        """Return how long to wait until copies may be removed again."""
        return self._tidied_at + self.tidy_seconds - time.monotonic()

    async def _tell_query_servers(self) -> None:
        """Have query servers forget erased texts. Processes of workers forget by themselves."""
        with contextlib.suppress(nats.errors.Error):
            await self._client.publish(INGESTED, ERASED)

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
