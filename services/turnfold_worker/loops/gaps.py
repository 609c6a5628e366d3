"""Detection of sequences that the event stream no longer holds."""

from collections.abc import AsyncGenerator, Sequence

import structlog

from turnfold.bus.asking import asking, find_event
from turnfold.bus.stream_state import ack_floor
from turnfold.contracts.subjects import EVENTS_STREAM
from turnfold.store.ingest.ingest import SqlIngestStore
from turnfold_worker.context import WorkerContext
from turnfold_worker.loops.polling import PollingLoop

log = structlog.get_logger()


class GapFinder(PollingLoop):
    """Mark sequences that the stream no longer holds as ingested, so that none is waited for."""

    poll_seconds = 2.0
    max_requests = 200
    """Look-ups after which what they have found is stored; the round ends if that is nothing."""

    def __init__(self, context: WorkerContext, *, store: SqlIngestStore) -> None:
        super().__init__()
        self._store = store
        self._client = context.client

    async def work(self) -> float:
        """Look up the missing sequences in the stream."""
        floor = await ack_floor(self._client)
        gaps = await self._store.gaps(up_to=floor)
        if not gaps:
            return self.poll_seconds
        with asking():
            state = (await self._client.jetstream().stream_info(EVENTS_STREAM)).state
        if gaps[0][0] < state.first_seq:
            # Again: another worker may have stored events since, and purged them.
            gaps = await self._store.gaps(up_to=floor)
        purged = [
            (first, min(last, state.first_seq - 1))
            for first, last in gaps
            if first < state.first_seq
        ]
        if purged:
            # Workers purge only what is stored: the database is older than the stream's retention.
            lost = sum(last - first + 1 for first, last in purged)
            log.warning("events.lost", events=lost, up_to_seq=purged[-1][1])
            await self._store.mark_ingested(purged)
        # Without deletions, the stream still has every event from its first sequence on: a gap is
        # on its way, or `CatchUp` stores it.
        if state.num_deleted:
            inner = [
                (max(first, state.first_seq), last)
                for first, last in gaps
                if last >= state.first_seq
            ]
            async for deleted in self._deleted(inner):
                await self._store.mark_ingested(deleted)
        return self.poll_seconds

    async def _deleted(
        self, gaps: Sequence[tuple[int, int]]
    ) -> AsyncGenerator[Sequence[tuple[int, int]]]:
        """Yield the ranges within `gaps` that were deleted from the middle of the stream.

        The stream can also list all its deleted sequences, but every erasure lengthens that list.
        """
        deleted: list[tuple[int, int]] = []
        requests = 0
        for first, last in gaps:
            seq = first
            while seq <= last:
                held = await self._first_held(seq)
                if held is None or held > seq:
                    deleted.append((seq, last if held is None else min(last, held - 1)))
                seq = last + 1 if held is None else held + 1
                requests += 1
                if requests == self.max_requests:
                    # Events that the stream holds are on their way, or `CatchUp` stores them. The
                    # next round continues with what is left.
                    if not deleted:
                        return
                    yield deleted
                    deleted, requests = [], 0
        if deleted:
            yield deleted

    async def _first_held(self, seq: int) -> int | None:
        """Return the first sequence from `seq` on that the stream holds."""
        held = await find_event(self._client, seq=seq, next_by_subj=">")
        with asking():
            return None if held is None else int(held["message"]["seq"])
