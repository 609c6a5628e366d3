"""The first journey: what was published becomes rows, and old rows leave the window."""

from collections.abc import Awaitable, Callable, Sequence

from turnfold.errors import BadEvent, UnstorableBatch
from turnfold.operations.weighing import Batch, Delivery, bury
from turnfold.ports import Arrival, DeadLetter, Ingested, IntakeStore, Rules

Weigh = Callable[[Sequence[Delivery]], Awaitable[Batch]]
Store = Callable[[Sequence[Arrival], Sequence[DeadLetter]], Awaitable[Ingested]]


async def ingest(deliveries: Sequence[Delivery], *, store: IntakeStore, rules: Rules, weigh: Weigh) -> Ingested:
    """Store a batch; whatever cannot be stored becomes a dead letter without taking its neighbours along.

    Raises:
        Unavailable: nothing was stored; the same batch may be tried again.
    """
    arrivals, dead = await weigh(deliveries)
    by_seq = {delivery.stream_seq: delivery for delivery in deliveries}
    payloads = {delivery.stream_seq: delivery.payload for delivery in deliveries}

    async def stored(arrivals: Sequence[Arrival], dead: Sequence[DeadLetter]) -> Ingested:
        return await store.ingest(arrivals, dead, rules=rules, payloads=payloads)

    return await _store(arrivals, dead, by_seq, stored)


async def _store(arrivals: list[Arrival], dead: list[DeadLetter], deliveries: dict[int, Delivery], store: Store) -> Ingested:
    try:
        return await store(arrivals, dead)
    except UnstorableBatch as error:
        if len(arrivals) <= 1 and not (arrivals and dead):
            letters = [bury(deliveries[arrival.stream_seq], BadEvent("refused_by_database", str(error))) for arrival in arrivals]
            if not letters:
                raise
            return await store([], letters)
    half = len(arrivals) // 2
    first = await _store(arrivals[:half], dead, deliveries, store)
    second = await _store(arrivals[half:], [], deliveries, store)
    return Ingested(*(a + b for a, b in zip(_figures(first), _figures(second), strict=True)))


def _figures(done: Ingested) -> tuple[int, int, int, int, int]:
    return done.events, done.messages, done.duplicates, done.dead_letters, done.evictions
