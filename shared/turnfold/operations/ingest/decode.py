"""Read, count and classify events: everything that needs no database.

The receiver loads this module and the bus, and little else.
"""

import json
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

from turnfold.contracts.events import LIMITS, Event, EventLimits, claimed_key, read_event
from turnfold.contracts.subjects import key_of_event_subject
from turnfold.core.eviction.usage import read_report
from turnfold.core.history.priority import classify
from turnfold.core.summary.gist import write_gist
from turnfold.core.text.tokens import IMAGE_TOKENS, Count, count_message
from turnfold.errors import BadEvent
from turnfold.ports.ingest import PAYLOAD_KEPT_BYTES, DeadLetter, DecodedEvent, DecodedMessage


class Delivery(NamedTuple):
    """One message of the stream. `at_ms` is the stream's time in milliseconds since 1970."""

    subject: str
    payload: bytes
    stream_seq: int
    at_ms: int
    trace: str | None = None


class DecodedBatch(NamedTuple):
    """Decoded deliveries: valid events, dead letters, and the published bytes by sequence."""

    arrivals: list[DecodedEvent]
    dead: list[DeadLetter]
    payloads: dict[int, bytes]


def decode_batch(
    deliveries: Iterable[Delivery],
    *,
    count: Count,
    limits: EventLimits = LIMITS,
    image_tokens: int = IMAGE_TOKENS,
) -> DecodedBatch:
    """Decode deliveries; a bad one becomes a dead letter."""
    batch = DecodedBatch([], [], {})
    for delivery in deliveries:
        # Of valid events as well: the database may refuse one, and its dead letter needs the bytes.
        batch.payloads[delivery.stream_seq] = delivery.payload
        try:
            batch.arrivals.append(
                decode_event(delivery, count=count, limits=limits, image_tokens=image_tokens)
            )
        except BadEvent as error:
            batch.dead.append(to_dead_letter(delivery, error))
    return batch


def decode_event(
    delivery: Delivery,
    *,
    count: Count,
    limits: EventLimits = LIMITS,
    image_tokens: int = IMAGE_TOKENS,
) -> DecodedEvent:
    """Read an event, count its tokens and classify its messages. Nothing else tokenizes.

    Raises:
        BadEvent: the event can never be stored.
    """
    event = read_event(delivery.subject, delivery.payload, limits)
    # A single message has no call beside its result.
    calls = _calls(event) if len(event.parsed) > 1 else {}
    return DecodedEvent(
        delivery.stream_seq,
        delivery.at_ms,
        delivery.subject,
        event.key,
        event.event_id,
        event.digest,
        event.model,
        event.is_truncated,
        event.is_error,
        event.envelope,
        tuple(
            [
                _weighed(event, index, calls, count, image_tokens)
                for index in range(len(event.parsed))
            ]
        ),
        read_report(event.usage),
        delivery.trace,
        event.reported,
    )


def _weighed(
    event: Event,
    index: int,
    calls: dict[str, dict[str, Any]],
    count: Count,
    image_tokens: int,
) -> DecodedMessage:
    body = event.parsed[index]
    measured = count_message(body, count, image_tokens=image_tokens)
    call_id: object = body.get("tool_call_id") if body["role"] == "tool" else None
    return DecodedMessage(
        body["role"],
        measured.tokens,
        measured.content_tokens,
        measured.reasoning_tokens,
        measured.characters,
        measured.lines,
        int(classify(body, call=calls.get(str(call_id)) if calls else None)),
        event.metas[index],
        measured.is_irregular,
        measured.calls,
        measured.cuts,
        call_id if isinstance(call_id, str) and call_id else None,
        _digest_of_content(body) if body["role"] == "tool" else None,
        event.originals[index],
        event.bodies[index],
        write_gist(body, measured.calls, count),
    )


def _digest_of_content(result: dict[str, Any]) -> bytes:
    """Return a digest that is equal for results with the same content."""
    content = result.get("content")
    text = content if isinstance(content, str) else json.dumps(content, sort_keys=True)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _calls(event: Event) -> dict[str, dict[str, Any]]:
    """Return the calls of this event by id, to classify results that follow in the same turn."""
    calls_by_id: dict[str, dict[str, Any]] = {}
    for body in event.parsed:
        calls = body.get("tool_calls")
        if isinstance(calls, list):
            calls_by_id.update(
                (str(call.get("id")), call) for call in calls if isinstance(call, dict)
            )
    return calls_by_id


def to_dead_letter(delivery: Delivery, error: BadEvent) -> DeadLetter:
    """Return the dead letter of an event that can never be stored."""
    payload = delivery.payload
    detail = str(error).partition(": ")[2]
    return DeadLetter(
        delivery.stream_seq,
        delivery.at_ms,
        # Both databases refuse lone surrogates and NUL, and a dead letter must always be storable.
        delivery.subject.encode("utf-8", "replace").decode().replace("\0", ""),
        error.reason,
        json.dumps(detail)[1:-1],
        len(payload),
        payload[:PAYLOAD_KEPT_BYTES],
        key_of_event_subject(delivery.subject) or claimed_key(payload),
    )
