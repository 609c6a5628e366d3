"""The first journey: what was published becomes rows, and old rows leave the window."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from turnfold.contracts.events import LIMITS, Event, Limits, read_event
from turnfold.core.priority import classify
from turnfold.core.tokens import Count, measure
from turnfold.errors import BadEvent, UnstorableBatch
from turnfold.ports import Arrival, DeadLetter, Ingested, IntakeStore, Rules

PAYLOAD_KEPT_BYTES = 64 * 1024
"""How much of a bad event its dead letter keeps."""


class Delivery(NamedTuple):
    """One message as the stream delivered it; times are the stream's, in milliseconds since 1970."""

    subject: str
    payload: bytes
    stream_seq: int
    at_ms: int


async def ingest(deliveries: Sequence[Delivery], *, store: IntakeStore, rules: Rules, count: Count, limits: Limits = LIMITS) -> Ingested:
    """Store a batch; whatever cannot be stored becomes a dead letter without taking its neighbours along.

    Raises:
        Unavailable: nothing was stored; the same batch may be tried again.
    """
    arrivals: list[Arrival] = []
    dead: list[DeadLetter] = []
    for delivery in deliveries:
        try:
            arrivals.append(weigh(delivery, read_event(delivery.subject, delivery.payload, limits), count))
        except BadEvent as error:
            dead.append(_bury(delivery, error))
    return await _store(arrivals, dead, {delivery.stream_seq: delivery for delivery in deliveries}, store, rules)


def weigh(delivery: Delivery, event: Event, count: Count) -> Arrival:
    """Count and classify an event's messages: the only place where anything is tokenised."""
    calls = _calls(event) if len(event.parsed) > 1 else {}
    return Arrival(
        delivery.stream_seq,
        delivery.at_ms,
        delivery.subject,
        event,
        tuple([measure(body, count) for body in event.parsed]),
        tuple([classify(body, call=calls.get(str(body.get("tool_call_id"))) if calls else None) for body in event.parsed]),
    )


def _calls(event: Event) -> dict[str, dict[str, Any]]:
    """The calls of this very event by id: enough to tell, in a whole turn, a result that was read from one that was written."""
    found: dict[str, dict[str, Any]] = {}
    for body in event.parsed:
        calls = body.get("tool_calls") if len(body) > 2 else None
        if isinstance(calls, list):
            found.update((str(call.get("id")), call) for call in calls if isinstance(call, dict))
    return found


async def _store(
    arrivals: list[Arrival], dead: list[DeadLetter], deliveries: dict[int, Delivery], store: IntakeStore, rules: Rules
) -> Ingested:
    try:
        return await store.ingest(arrivals, dead, rules=rules)
    except UnstorableBatch as error:
        if len(arrivals) <= 1 and not (arrivals and dead):
            letters = [_bury(deliveries[arrival.stream_seq], BadEvent("refused_by_database", str(error))) for arrival in arrivals]
            if not letters:
                raise
            return await store.ingest([], letters, rules=rules)
    half = len(arrivals) // 2
    first = await _store(arrivals[:half], dead, deliveries, store, rules)
    second = await _store(arrivals[half:], [], deliveries, store, rules)
    return Ingested(*(a + b for a, b in zip(_figures(first), _figures(second), strict=True)))


def _figures(done: Ingested) -> tuple[int, int, int, int, int]:
    return done.events, done.messages, done.duplicates, done.dead_letters, done.evictions


def _bury(delivery: Delivery, error: BadEvent) -> DeadLetter:
    payload = delivery.payload
    detail = str(error).partition(": ")[2]
    return DeadLetter(
        delivery.stream_seq,
        delivery.at_ms,
        delivery.subject.encode("utf-8", "replace").decode().replace("\0", ""),
        error.reason,
        json.dumps(detail)[1:-1],
        len(payload),
        payload[:PAYLOAD_KEPT_BYTES],
    )
