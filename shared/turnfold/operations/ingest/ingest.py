"""Store batches of events."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import astuple

from turnfold.errors import BadEvent, EventFault, UnstorableBatch
from turnfold.operations.ingest.decode import DecodedBatch, Delivery, to_dead_letter
from turnfold.ports.ingest import DeadLetter, DecodedEvent, IngestResult, IngestStore, Installation

Store = Callable[[Sequence[DecodedEvent], Sequence[DeadLetter]], Awaitable[IngestResult]]


async def ingest(
    batch: DecodedBatch, *, store: IngestStore, installation: Installation
) -> IngestResult:
    """Store a batch. An event that cannot be stored becomes a dead letter; the others are stored.

    Raises:
        Unavailable: nothing was stored; the same batch may be tried again.
    """

    async def stored(arrivals: Sequence[DecodedEvent], dead: Sequence[DeadLetter]) -> IngestResult:
        return await store.ingest(
            arrivals, dead, installation=installation, payloads=batch.payloads
        )

    return await _store(batch.arrivals, batch.dead, batch.payloads, stored)


async def _store(
    arrivals: list[DecodedEvent],
    dead: list[DeadLetter],
    payloads: Mapping[int, bytes],
    store: Store,
) -> IngestResult:
    try:
        return await store(arrivals, dead)
    except UnstorableBatch as error:
        if len(arrivals) <= 1 and not (arrivals and dead):
            refused = BadEvent(EventFault.REFUSED_BY_DATABASE, str(error))
            letters = [
                to_dead_letter(
                    Delivery(
                        arrival.subject,
                        payloads[arrival.stream_seq],
                        arrival.stream_seq,
                        arrival.at_ms,
                    ),
                    refused,
                )
                for arrival in arrivals
            ]
            # The dead letters themselves cannot be stored.
            if not letters:
                raise
            return await store([], letters)
    # By halves: one bad event among n costs about log n transactions.
    half = len(arrivals) // 2
    first = await _store(arrivals[:half], dead, payloads, store)
    second = await _store(arrivals[half:], [], payloads, store)
    return IngestResult(*(a + b for a, b in zip(astuple(first), astuple(second), strict=True)))
