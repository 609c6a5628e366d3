"""Parse, count and classify events: everything that needs no database.

The receiver process uses it, so it imports little.
"""

import json
from collections.abc import Iterable
from typing import NamedTuple

from turnfold.contracts.events import CHAT, LIMITS, EventLimits, claimed_key, read_event
from turnfold.contracts.subjects import agent_of_event_subject, key_of_event_subject
from turnfold.core.eviction.usage import read_report
from turnfold.core.text.tokens import IMAGE_TOKENS, Count
from turnfold.errors import BadEvent
from turnfold.operations.ingest.weigh import result_priorities, weigh_elements, weigh_message
from turnfold.ports.ingest import CLAIMS, DeadLetter, DecodedEvent


class Delivery(NamedTuple):
    """One message of the stream. `at_ms` is the stream's time in milliseconds since 1970.

    `signed_actor` is the header of this name; any publisher may have written it.
    `replay_of` is the sequence of the dead letter that it replays; 0 if it replays none.
    """

    subject: str
    payload: bytes
    stream_seq: int
    at_ms: int
    signed_actor: str | None = None
    replay_of: int = 0
    trace: str | None = None


class DecodedBatch(NamedTuple):
    """Decoded deliveries: valid events, dead letters, and the published bytes by sequence.

    `replays` maps the sequences of replayed dead letters to those of the letters.
    """

    events: list[DecodedEvent]
    dead: list[DeadLetter]
    payloads: dict[int, bytes]
    replays: dict[int, int]

    @classmethod
    def empty(cls) -> "DecodedBatch":
        """Return an empty batch."""
        return cls([], [], {}, {})

    def add(self, other: "DecodedBatch") -> None:
        """Add the events of another batch."""
        self.events.extend(other.events)
        self.dead.extend(other.dead)
        self.payloads.update(other.payloads)
        self.replays.update(other.replays)


def decode_batch(
    deliveries: Iterable[Delivery],
    *,
    count: Count,
    limits: EventLimits = LIMITS,
    image_tokens: int = IMAGE_TOKENS,
) -> DecodedBatch:
    """Decode deliveries; a bad one becomes a dead letter."""
    batch = DecodedBatch.empty()
    for delivery in deliveries:
        # Also for valid events: the database may reject one, and its dead letter needs the bytes.
        batch.payloads[delivery.stream_seq] = delivery.payload
        if delivery.replay_of:
            batch.replays[delivery.stream_seq] = delivery.replay_of
        try:
            batch.events.append(
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
    envelope = event.envelope
    if event.shape is CHAT:
        # A single message has no call beside its result.
        results = result_priorities(event.parsed) if len(event.parsed) > 1 else {}
        messages = [
            weigh_message(event, index, results, count, image_tokens)
            for index in range(len(event.parsed))
        ]
    else:
        messages, envelope = weigh_elements(event, limits, count, image_tokens)
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
        envelope,
        tuple(messages),
        read_report(event.usage),
        delivery.trace,
        event.reported,
        event.retraction,
        delivery.signed_actor if event.retraction is not None else None,
    )


def to_dead_letter(delivery: Delivery, error: BadEvent) -> DeadLetter:
    """Return the dead letter of an event that can never be stored."""
    # Escaped, because no database accepts lone surrogates, and PostgreSQL no NUL.
    detail = json.dumps(str(error).partition(": ")[2])[1:-1]
    key, claimed = key_of_event_subject(delivery.subject), claimed_key(delivery.payload)
    agent_id = agent_of_event_subject(delivery.subject)
    if key is None and claimed is not None and agent_id in (None, claimed.agent_id):
        # Only then: whoever may publish as one agent must not have another's events refused.
        key = claimed
    if claimed is not None and claimed != key:
        detail += CLAIMS + json.dumps(claimed._asdict())
    return DeadLetter.of(
        delivery.stream_seq,
        delivery.at_ms,
        delivery.subject,
        error.reason,
        detail,
        delivery.payload,
        key,
    )
