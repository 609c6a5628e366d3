"""Parse, count and classify events: everything that needs no database.

The receiver process uses it, so it imports little. Elements that are not chat messages are stored
beside their chat view.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, NamedTuple

from turnfold.contracts.envelope import spread_carry
from turnfold.contracts.events import CHAT, LIMITS, Event, EventLimits, claimed_key, read_event
from turnfold.contracts.subjects import agent_of_event_subject, key_of_event_subject
from turnfold.core.eviction.usage import read_report
from turnfold.core.history.priority import classify, classify_results
from turnfold.core.shapes import anthropic, responses
from turnfold.core.shapes.packing import pack
from turnfold.core.shapes.views import ChatView
from turnfold.core.summary.gist_writer import write_gist
from turnfold.core.text.calls import call_entries
from turnfold.core.text.json_text import is_encodable
from turnfold.core.text.tokens import (
    IMAGE_TOKENS,
    INSTRUCTION_TOKENS,
    Count,
    count_message,
    text_of,
)
from turnfold.errors import BadEvent, EventFault
from turnfold.messages import ROLES, Element, Priority, Shape
from turnfold.ports.ingest import CLAIMS, DeadLetter, DecodedEvent, DecodedMessage


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
        # Even for valid events: the database may reject one, and its dead letter needs the bytes.
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
        messages, envelope = _weigh_elements(event, limits, count, image_tokens)
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


def weigh_message(
    event: Event,
    index: int,
    results: dict[str, Priority],
    count: Count,
    image_tokens: int,
) -> DecodedMessage:
    """Count the tokens of a message and classify it; see `result_priorities` for `results`."""
    body = event.parsed[index]
    measured = count_message(body, count, image_tokens=image_tokens)
    is_instruction = index > 0 and ROLES[body["role"]].is_system
    call_id: object = body.get("tool_call_id") if body["role"] == "tool" else None
    priority = results.get(str(call_id)) if results and call_id is not None else None
    return DecodedMessage(
        body["role"],
        measured.tokens + INSTRUCTION_TOKENS * is_instruction,
        measured.content_tokens,
        measured.reasoning_tokens,
        measured.characters,
        measured.lines,
        int(classify(body) if priority is None else priority),
        event.metas[index],
        measured.is_irregular,
        measured.calls,
        measured.cuts,
        call_id if isinstance(call_id, str) and call_id else None,
        _digest_of_content(body) if body["role"] == "tool" else None,
        event.originals[index],
        event.bodies[index],
        write_gist(body, measured.calls, count),
        is_error=body["role"] == "tool" and body.get("is_error") is True,
    )


def result_priorities(messages: Sequence[dict[str, Any]]) -> dict[str, Priority]:
    """Return the priority of the results of calls in the same turn, by the id of the call.

    Each call is judged once: it may be large, and have many results.
    """
    answered = {str(body.get("tool_call_id")) for body in messages if body["role"] == "tool"}
    if not answered:
        return {}
    calls = [call for body in messages for call in call_entries(body) if isinstance(call, dict)]
    calls_by_id = {str(call.get("id")): call for call in calls}
    return {
        call_id: classify_results(calls_by_id[call_id]) for call_id in answered & calls_by_id.keys()
    }


def _digest_of_content(result: dict[str, Any]) -> bytes:
    """Return a digest that is equal for results with the same content."""
    content = result.get("content")
    text = content if isinstance(content, str) else json.dumps(content, sort_keys=True)
    # JSON may contain lone surrogates, for which UTF-8 has no encoding.
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _weigh_elements(
    event: Event, limits: EventLimits, count: Count, image_tokens: int
) -> tuple[list[DecodedMessage], str | None]:
    """Return the messages of an event whose elements are not chat messages, and its envelope.

    Raises:
        BadEvent: the elements result in more messages than an event may have.
    """
    read_views = responses.chat_views if event.shape is Shape.RESPONSES else anthropic.chat_views
    views = read_views(event.parsed, event.bodies)
    if len(views) > limits.messages:
        raise BadEvent(
            EventFault.TOO_MANY_MESSAGES,
            f"{len(views)} messages; at most {limits.messages} are allowed",
        )
    bodies = [_body(view) for view in views]
    in_chat = replace(
        event,
        parsed=tuple(view.message for view in views),
        bodies=tuple(bodies),
        metas=tuple(view.is_meta or event.metas[view.source] for view in views),
        originals=tuple(map(_original, views, bodies)),
    )
    results = result_priorities(in_chat.parsed)
    messages = [
        _with_extra(
            weigh_message(in_chat, index, results, count, image_tokens), view, count, image_tokens
        )
        for index, view in enumerate(views)
    ]
    return messages, spread_carry(event.envelope, [view.source for view in views])


def _body(view: ChatView) -> str:
    # In the encoding of the element, so that both have the same text.
    body = json.dumps(view.message, ensure_ascii=view.text.isascii())
    # An element may escape half a surrogate pair beside other characters, which it does not escape.
    return body if is_encodable(body) else json.dumps(view.message)


def _original(view: ChatView, body: str) -> str | None:
    if view.element is Element.JOINED:
        return view.text
    literal = json.dumps(text_of(view.message), ensure_ascii=view.text.isascii())
    return pack(view.text, body, literal)


def _with_extra(
    message: DecodedMessage, view: ChatView, count: Count, image_tokens: int
) -> DecodedMessage:
    tokens = message.tokens + (count(view.extra) if view.extra else 0) + view.files * image_tokens
    # Only the user message is marked, not the results that were published with it.
    is_meta = message.is_meta and message.role == "user"
    digest = message.content_digest
    if digest is not None and view.files:
        # The chat view of two results may differ in nothing but the bytes that it leaves out.
        digest = _digest_of_content({"content": json.loads(view.text)})
    return message._replace(
        tokens=tokens,
        is_meta=is_meta,
        content_digest=digest,
        element=int(view.element),
        is_error=view.is_error,
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
    # For every mismatch: an erasure would read the bytes of those without it.
    is_mismatch = error.reason is EventFault.SUBJECT_MISMATCH
    if claimed is not None and (claimed != key or is_mismatch):
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
