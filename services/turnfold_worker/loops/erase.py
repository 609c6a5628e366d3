"""Erasure: delete erased rows and messages of the stream, and erase expired sessions."""

import contextlib
import math
import time

import nats.errors

from turnfold.bus.removal import EventRemoval
from turnfold.contracts.erasures import ErasedSessions, write_erasure
from turnfold.contracts.subjects import ERASED, INGESTED
from turnfold.errors import Unavailable
from turnfold.process.clock import now_ms
from turnfold.store.ingest.erase import SqlErasureStore
from turnfold_worker.context import WorkerContext
from turnfold_worker.loops.known import known_to_ms
from turnfold_worker.loops.polling import PollingLoop

JUMP_MS = 600_000
"""A clock that has gained more than this since the last round is not believed at once."""


class ErasureRunner(PollingLoop):
    """Delete what was erased from tables and stream, and erase sessions after their retention."""

    poll_seconds = 30.0
    batch_sequences = 500
    batch_sessions = 100
    """Sessions that are examined in a row. To erase one takes up to 20 ms, and others wait."""
    examining_seconds = 1.0
    """How long more of them are examined before others have their turn: most are only read."""
    expiry_seconds = 600.0
    signal_seconds = 1
    """The most time that the answer to an erasure waits until the server has its signal."""
    tidy_seconds = 5.0
    """Shortest interval between two removals of copies: each writes parts of the index anew."""

    def __init__(self, context: WorkerContext, *, store: SqlErasureStore) -> None:
        super().__init__()
        self._store = store
        self._client = context.client
        self._removal = EventRemoval(context.client)
        self._context = context
        self._expired_at = self._tidied_at = -math.inf
        # The last session that this round of expiry has examined; 0 between rounds.
        self._examined_to = 0
        self._began_ms = _boot_ms()
        # A worker that was killed may have left erased data in the write-ahead log.
        self._must_tidy = True
        # Erasures that were requested, and those of them whose copies are removed.
        self._requests, self._tidied_requests = 0, -1

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
        """Erase some expired sessions, then delete the rows and the copies of all erased data."""
        try:
            wait_seconds = await self._erase_in_database()
        except Exception:
            # A damaged index, for one, must not keep erased texts in the stream.
            with contextlib.suppress(Unavailable):
                await self._remove_events()
            raise
        # Last, and in portions: the stream can take an hour, and the next erasure must not wait.
        return 0.0 if await self._remove_events() else wait_seconds

    async def _erase_in_database(self) -> float:
        """Erase expired sessions, rows and words; return the seconds until more is to be done."""
        is_due = time.monotonic() - self._expired_at >= self.expiry_seconds
        are_more_expired = is_due and await self._erase_expired()
        requests = self._requests
        # Not after each portion of expired sessions: all query servers forget all texts, and SQLite
        # writes its index anew.
        may_tidy = not are_more_expired or requests > self._tidied_requests
        is_due, is_told = self._must_tidy and may_tidy and self._wait_seconds() <= 0, True
        if is_due:
            # First, because deleting the rows takes a minute for a million messages.
            self._tidied_at = time.monotonic()
            is_told = await self._tell_query_servers()
        # One transaction each, between which ingest has its turn.
        while await self._store.delete_rows():
            self._must_tidy = True
        if is_due:
            is_tidy = await self._store.tidy()
            # Texts that were erased meanwhile are still in memory.
            self._must_tidy = not (is_tidy and is_told) or self._requests > requests
            if is_tidy and is_told:
                self._tidied_requests = requests
        if await self._store.remove_retracted() or are_more_expired:
            return 0.0
        return max(0.0, self._wait_seconds()) if self._must_tidy else self.poll_seconds

    def _wait_seconds(self) -> float:
        """Return how long to wait until copies may be removed again."""
        return self._tidied_at + self.tidy_seconds - time.monotonic()

    async def _tell_query_servers(self) -> bool:
        """Have query servers forget erased texts; return whether the bus has the notice.

        Processes of workers forget by themselves.
        """
        connections = self._client.stats["reconnects"]
        try:
            await self._client.publish(INGESTED, ERASED)
            await self._client.flush(self.signal_seconds)
        except nats.errors.Error:
            return False
        # A connection that ended since then may have taken the notice along.
        connections_now: int = self._client.stats["reconnects"]
        return connections_now == connections

    async def _erase_expired(self) -> bool:
        """Erase expired ones of the next sessions; return whether more are to be examined at once.

        Not while old events wait, which may be of any session.
        """
        before_ms, self._began_ms = self._began_ms, _boot_ms()
        if self._began_ms - before_ms > JUMP_MS:
            # The machine slept, or its clock is wrong and is corrected soon: the next round tells.
            self._end_expiry()
            return False
        with contextlib.suppress(Unavailable):
            installation, at_ms = self._context.installation, now_ms()
            until_ms = await known_to_ms(self._context, now_ms=at_ms)
            if at_ms - until_ms > 1000 * self.expiry_seconds:
                return False
            stop_at = time.monotonic() + self.examining_seconds
            while True:
                examined_to = await self._store.erase_expired(
                    after=self._examined_to,
                    limit=self.batch_sessions,
                    installation=installation,
                    now_ms=until_ms,
                )
                if examined_to is None:
                    if await self._store.expire_letters(installation=installation, now_ms=until_ms):
                        # Their bytes are still in the database log.
                        self._must_tidy = True
                    self._end_expiry()
                    return False
                self._examined_to = examined_to
                if time.monotonic() >= stop_at:
                    return True
        return False

    def _end_expiry(self) -> None:
        self._examined_to, self._expired_at = 0, time.monotonic()

    async def _remove_events(self) -> bool:
        """Remove some erased events from the stream; return whether more may be left."""
        erased = await self._store.to_purge(self._removal.wanted)
        if not erased:
            return False
        removed = await self._removal.remove(erased)
        for start in range(0, len(removed), self.batch_sequences):
            # After the removal: a worker that dies in between removes them again, which is
            # harmless.
            await self._store.purged(removed[start : start + self.batch_sequences])
        return True


def _boot_ms() -> float:
    """Return when the monotonic clock was zero, by the wall clock (ms since 1970)."""
    return now_ms() - 1000 * time.monotonic()
