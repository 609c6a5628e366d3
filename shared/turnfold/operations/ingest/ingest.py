"""Store batches of events."""

from dataclasses import astuple

from turnfold.errors import BadEvent, EventFault, UnstorableBatch
from turnfold.operations.ingest.decode import DecodedBatch, Delivery, to_dead_letter
from turnfold.ports.ingest import IngestResult, IngestStore, Installation


async def ingest(
    batch: DecodedBatch, *, store: IngestStore, installation: Installation
) -> IngestResult:
    """Store a batch. An event that cannot be stored becomes a dead letter; the others are stored.

    Raises:
        Unavailable: nothing was stored; the same batch may be tried again.
        StartError: not all is stored; the stream is another one, or an older copy.
    """
    events, dead, payloads, replays = batch
    try:
        return await store.ingest(
            events, dead, installation=installation, payloads=payloads, replays=replays
        )
    except UnstorableBatch as error:
        # The dead letters themselves cannot be stored.
        if not events:
            raise
        if len(events) == 1 and not dead:
            (refused,) = events
            seq = refused.stream_seq
            delivery = Delivery(refused.subject, payloads[seq], seq, refused.at_ms)
            reason = BadEvent(EventFault.REFUSED_BY_DATABASE, str(error))
            letter = to_dead_letter(delivery, reason)
            return await store.ingest(
                [], [letter], installation=installation, payloads=payloads, replays=replays
            )
    # By halves: one bad event among n costs about log n transactions.
    half = len(events) // 2
    # The dead letters belong to the first half. For a single event that half is empty, so both are
    # stored separately, and the halving ends.
    parts = (
        batch._replace(events=events[:half]),
        batch._replace(events=events[half:], dead=[]),
    )
    first, second = [await ingest(part, store=store, installation=installation) for part in parts]
    return IngestResult(*(a + b for a, b in zip(astuple(first), astuple(second), strict=True)))
