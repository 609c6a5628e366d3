"""Outgoing events: their ids, subjects and encoded payloads."""

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from turnfold.contracts.events import (
    LIMIT_AT_MOST,
    LIMITS,
    MODEL_MAX_CHARACTERS,
    elements_shape,
    read_payload,
)
from turnfold.contracts.retractions import RETRACTED_AT_MOST
from turnfold.contracts.subjects import (
    TOOL_RESULT,
    TURN_COMPLETED,
    TURN_RETRACTED,
    USAGE_REPORTED,
    id_fault,
    session_subject,
)
from turnfold.errors import BadEvent, BadRequest, TooLarge
from turnfold.messages import AgentId, Json, SessionId, SessionKey, Shape, ShapeName
from turnfold.process.clock import now_ms

BATCH_EVENTS = 1_000
"""The maximum number of messages in one batch of a NATS server."""
BATCH_BYTES = 8 * 1024 * 1024

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


@dataclass(frozen=True, slots=True)
class OutgoingEvent:
    """One encoded event. Publishing it again publishes the same event."""

    kind: str
    key: SessionKey
    event_id: str
    payload: bytes

    @property
    def subject(self) -> str:
        """The NATS subject of the event."""
        return session_subject(self.kind, self.key)


@dataclass(frozen=True, slots=True)
class Receipt:
    """The acknowledgement of one event.

    `seq` is the position in the stream and the freshness token of a query. `is_waiting` means that
    the event is in the client's buffer. `seq` is 0 then.
    """

    event_id: str
    seq: int
    is_duplicate: bool = False
    is_waiting: bool = False


def batches(events: Iterable[OutgoingEvent], *, most: int) -> Iterator[list[OutgoingEvent]]:
    """Split events into batches of at most `most` events and about 8 MiB, in order."""
    batch: list[OutgoingEvent] = []
    size = 0
    for event in events:
        batch.append(event)
        size += len(event.payload)
        # The event that reaches the size is included, so a batch may have almost 12 MiB.
        if len(batch) >= most or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def session_key(agent_id: str, session_id: str) -> SessionKey:
    """Return the session key of these two ids.

    Raises:
        BadRequest: an id is empty, longer than 256 bytes or contains control characters.
    """
    for name, identifier in (("agent_id", agent_id), ("session_id", session_id)):
        if fault := id_fault(identifier):
            raise BadRequest(f"{name} {fault}")
    return SessionKey(AgentId(agent_id), SessionId(session_id))


def turn_event(  # noqa: PLR0913  # the event has these fields
    key: SessionKey,
    messages: Sequence[Json],
    *,
    event_id: str | None = None,
    model: str | None = None,
    usage: Json | None = None,
    is_meta: bool = False,
    metadata: Json | None = None,
    occurred_at: datetime | None = None,
    shape: ShapeName | None = None,
    carry: Sequence[Any] | None = None,
) -> OutgoingEvent:
    """Build a `turn.completed` event from OpenAI chat messages, or from elements of a shape.

    `carry` has one JSON value or None for each message.

    Raises:
        BadRequest: there are no messages, one is not of the shape, `carry` has another length, or
            a value is not JSON.
        TooLarge: more than 1,000 messages or 4 MiB.
    """
    if isinstance(messages, str | Mapping) or not messages:
        raise BadRequest("a turn must be a list of at least one message")
    if len(messages) > LIMITS.messages:
        raise TooLarge(f"{len(messages)} messages; publish at most {LIMITS.messages} in one event")
    if carry is not None and len(carry) != len(messages):
        raise BadRequest(
            f"carry has {len(carry)} values for {len(messages)} messages; pass one for each"
        )
    try:
        elements_shape(shape or Shape.CHAT, list(messages))
    except BadEvent as error:
        raise BadRequest(f"the turn cannot be stored: {error.detail}") from error
    return _event(
        TURN_COMPLETED,
        key,
        event_id,
        occurred_at,
        {"messages": list(messages)},
        model=model,
        usage=usage,
        is_meta=is_meta or None,
        metadata=metadata,
        shape=shape,
        carry=None if carry is None else list(carry),
    )


def result_event(  # noqa: PLR0913  # the event has these fields
    key: SessionKey,
    tool_call_id: str,
    content: Any,
    *,
    event_id: str | None = None,
    name: str | None = None,
    is_error: bool = False,
    metadata: Json | None = None,
    occurred_at: datetime | None = None,
    carry: Any = None,
) -> OutgoingEvent:
    """Build a `tool.result` event; `content` is a string, parts, or any JSON, including null.

    `carry` is any JSON value.

    Raises:
        BadRequest: a value is not JSON.
        TooLarge: more than 4 MiB.
    """
    return _event(
        TOOL_RESULT,
        key,
        event_id,
        occurred_at,
        {"tool_call_id": tool_call_id, "content": content},
        name=name,
        is_error=is_error or None,
        metadata=metadata,
        carry=None if carry is None else [carry],
    )


def usage_event(
    key: SessionKey,
    model: str,
    *,
    event_id: str | None = None,
    usage: Json | None = None,
    message_id: str | None = None,
    limit_tokens: int | None = None,
    is_overflow: bool = False,
) -> OutgoingEvent:
    """Build a `usage.reported` event: what a call revealed about its model's window.

    Raises:
        BadRequest: a value is not JSON, the model's name is empty or too long, or the limit is not
            a size.
        TooLarge: more than 4 MiB.
    """
    if not 1 <= len(model) <= MODEL_MAX_CHARACTERS:
        raise BadRequest(f"model must have 1 to {MODEL_MAX_CHARACTERS} characters")
    if limit_tokens is not None and not 1 <= limit_tokens <= LIMIT_AT_MOST:
        raise BadRequest(f"limit_tokens must be 1 to {LIMIT_AT_MOST}")
    return _event(
        USAGE_REPORTED,
        key,
        event_id,
        None,
        {"model": model},
        usage=usage,
        message_id=message_id,
        limit_tokens=limit_tokens,
        is_overflow=is_overflow or None,
    )


def retraction_event(
    key: SessionKey,
    message_ids: Sequence[str] = (),
    *,
    event_id: str | None = None,
    after: str | None = None,
    is_all: bool = False,
) -> OutgoingEvent:
    """Build a `turn.retracted` event: these messages, all after one, or all.

    Raises:
        BadRequest: not exactly one of the three is given, or there are more than 10,000 ids.
    """
    if sum([bool(message_ids), after is not None, is_all]) != 1:
        raise BadRequest("name the messages to retract by ids, by after, or all of them")
    if len(message_ids) > RETRACTED_AT_MOST:
        raise BadRequest(f"at most {RETRACTED_AT_MOST} messages can be retracted by id at once")
    fields: dict[str, Any] = {"all": True} if is_all else {"after": after}
    if message_ids:
        fields = {"message_ids": list(message_ids)}
    return _event(TURN_RETRACTED, key, event_id, None, fields)


def _event(
    kind: str,
    key: SessionKey,
    event_id: str | None,
    occurred_at: datetime | None,
    fields: Mapping[str, Any],
    **optional: Any,
) -> OutgoingEvent:
    """Encode an event; optional fields that are None are left out."""
    event_id = event_id if event_id is not None else new_event_id()
    if fault := id_fault(event_id):
        raise BadRequest(f"event_id {fault}")
    at = (occurred_at or datetime.now(UTC)).isoformat().replace("+00:00", "Z")
    identity = {"event_id": event_id, **key._asdict(), "occurred_at": at}
    stated = {name: value for name, value in optional.items() if value is not None}
    payload = encoded({**identity, **fields, **stated})
    if len(payload) > LIMITS.bytes:
        raise TooLarge(
            f"the event is too large ({len(payload)} bytes, at most {LIMITS.bytes});"
            " publish fewer messages at once"
        )
    return OutgoingEvent(kind, key, event_id, payload)


def check_storable(events: Iterable[OutgoingEvent]) -> None:
    """Read events as the services do.

    Raises:
        BadRequest: one of them would become a dead letter.
    """
    for event in events:
        try:
            read_payload(event.kind, event.payload)
        except BadEvent as error:
            raise BadRequest(f"a message cannot be stored: {error}") from error


def encoded(value: Any) -> bytes:
    """Encode a value as compact JSON; escape it only if it contains a lone surrogate.

    Raises:
        BadRequest: the value, or a part of it, is not JSON.
    """
    try:
        try:
            # Not escaped: an escaped letter beyond ASCII takes at least twice its bytes in UTF-8.
            return json.dumps(
                value, ensure_ascii=False, allow_nan=False, separators=(",", ":")
            ).encode()
        except UnicodeEncodeError:
            return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequest(f"the value cannot be sent as JSON: {error}") from error


def new_event_id() -> str:
    """Return a new ULID: 26 characters that sort by creation time in milliseconds.

    >>> len(new_event_id())
    26
    """
    # 48 bits of time, then 80 random ones, in 26 digits of 5 bits.
    number = now_ms() << 80 | secrets.randbits(80)
    return "".join(_CROCKFORD[number >> shift & 31] for shift in range(125, -1, -5))
