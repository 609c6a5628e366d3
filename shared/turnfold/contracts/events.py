r"""Strict reading of events, with the exact text of each message.

The text of each message is cut out of the event, so that the stored text equals the published one:
key order, numbers, white space, and escapes such as `\u0000` or a lone surrogate. The escaped form
keeps these characters out of the databases.
"""

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

from turnfold.contracts.elements import FAULTS
from turnfold.contracts.envelope import check_carry, envelope_of
from turnfold.contracts.reported_window import ReportedWindow
from turnfold.contracts.retractions import (
    MESSAGE_ID_MAX_CHARACTERS,
    Retraction,
    read_retraction,
)
from turnfold.contracts.strict_json import Members, read_members, without_member, wrong_shape
from turnfold.contracts.subjects import (
    EVENT_TYPES,
    ID_MAX_BYTES,
    TOOL_RESULT,
    TURN_COMPLETED,
    TURN_RETRACTED,
    USAGE_REPORTED,
    id_fault,
    token_of,
)
from turnfold.errors import BadEvent, Conflict, EventFault
from turnfold.messages import META_MARK, AgentId, EventId, SessionId, SessionKey, Shape


class EventLimits(NamedTuple):
    """The limits of an event: bytes of JSON, messages, and levels of nesting."""

    bytes: int = 4 * 1024 * 1024
    messages: int = 1_000
    depth: int = 64


LIMITS = EventLimits()
CHAT = Shape.CHAT
"""A name of the module, because members of an enumeration are found slowly."""
EVENT_ID_TAKEN = (
    "this event id stands for other content or another session of the agent, and the event was not"
    " stored; publish it under an id of its own"
)
MODEL_MAX_CHARACTERS = 256
LIMIT_AT_MOST = 1_000_000_000


# Not frozen, because freezing triples the cost of construction, and a worker builds thousands per
# second. No code changes an event.
@dataclass(slots=True)
class Event:
    """One event of any type, as its messages.

    `usage.reported` has none, but `reported`, and `turn.retracted` has `retraction`.

    `bodies` are the messages of the window, as JSON texts, and `parsed` holds the same as values.
    `originals` has the published text if it differs (the JSON content of a tool result). `metas`
    tells of each message whether a program wrote it. `digest` is equal for equal texts. With a
    `shape` other than chat, `bodies` and `parsed` are elements of that shape.
    """

    key: SessionKey
    event_id: EventId
    bodies: tuple[str, ...]
    parsed: tuple[dict[str, Any], ...]
    digest: bytes
    originals: tuple[str | None, ...] = (None,)
    model: str | None = None
    usage: dict[str, Any] | None = None
    metas: tuple[bool, ...] = (False,)
    is_truncated: bool = False
    is_error: bool = False
    envelope: str | None = None
    reported: ReportedWindow | None = None
    shape: Shape = CHAT
    retraction: Retraction | None = None


def read_event(subject: str, payload: bytes, limits: EventLimits = LIMITS) -> Event:
    """Read an event that was published to a subject.

    Raises:
        BadEvent: it can never be stored.
    """
    kind = _kind_of(subject)
    event = read_payload(kind, payload, limits)
    # With roles, a key publishes only to subjects of its agent. The payload must name the same.
    if (
        subject != kind
        and subject != f"{kind}.{_token(event.key.agent_id)}.{_token(event.key.session_id)}"
    ):
        raise BadEvent(
            EventFault.SUBJECT_MISMATCH, "the subject names another agent or session than the event"
        )
    return event


def read_payload(kind: str, payload: bytes, limits: EventLimits = LIMITS) -> Event:
    """Read the JSON of an event of this type; see `read_event`."""
    return _event_of(kind, _members(payload, limits), limits)


def read_typed(payload: bytes, limits: EventLimits) -> tuple[str, Event]:
    """Read an event whose type is in its field `type`, as over HTTP; return the type, too."""
    members = _members(payload, limits)
    kind = members[0].get("type")
    if kind not in EVENT_TYPES:
        raise wrong_shape(f"type must be one of {', '.join(EVENT_TYPES)}")
    return str(kind), _event_of(str(kind), members, limits)


def _members(payload: bytes, limits: EventLimits) -> Members:
    if len(payload) > limits.bytes:
        raise BadEvent(
            EventFault.TOO_LARGE, f"{len(payload)} bytes; at most {limits.bytes} are allowed"
        )
    return read_members(payload, limits.depth)


def _event_of(kind: str, members: Members, limits: EventLimits) -> Event:
    fields, raw, elements = members
    if kind == TURN_COMPLETED:
        return _turn_completed(fields, raw, elements, limits.messages)
    if kind == TOOL_RESULT:
        return _tool_returned(fields, raw)
    if kind == USAGE_REPORTED:
        return _usage_reported(fields, raw)
    if kind == TURN_RETRACTED:
        return _turn_retracted(fields, raw)
    raise BadEvent(EventFault.UNKNOWN_TYPE, repr(kind)[:80])


def is_same_event(event: Event, stored: Event) -> bool:
    """Return whether two events under one id say the same: in equal texts, or in other JSON."""
    return event.key == stored.key and (
        event.digest == stored.digest
        or (
            # Events without messages would be equal here: only their digests tell them apart.
            bool(event.parsed)
            and (event.shape, _said(event)) == (stored.shape, _said(stored))
            and event.is_error == stored.is_error
        )
    )


def _said(event: Event) -> list[dict[str, Any]]:
    # A result of JSON is compared by its value, not by the text that windows show.
    pairs = zip(event.parsed, event.originals, strict=True)
    return [body if text is None else body | {"content": json.loads(text)} for body, text in pairs]


def check_copy(kind: str, payload: bytes, stored: bytes, limits: EventLimits = LIMITS) -> None:
    """Compare an event with the one that the stream holds under its id.

    Raises:
        Conflict: they differ, so the new one was not stored.
    """
    if payload == stored:
        return
    try:
        is_same = is_same_event(
            read_payload(kind, payload, limits), read_payload(kind, stored, limits)
        )
    except BadEvent:
        is_same = False
    if not is_same:
        raise Conflict(EVENT_ID_TAKEN)


def _kind_of(subject: str) -> str:
    for kind in EVENT_TYPES:
        if subject == kind or subject.startswith(kind + "."):
            return kind
    raise BadEvent(EventFault.UNKNOWN_TYPE, repr(subject)[:80])


_token = lru_cache(maxsize=8_192)(token_of)


# --- event types


def _turn_completed(
    fields: dict[str, Any], raw: dict[str, str], elements: list[str], most: int
) -> Event:
    key, event_id = _identity(fields)
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise wrong_shape("messages must be a list of at least one message")
    if len(messages) > most:
        raise BadEvent(
            EventFault.TOO_MANY_MESSAGES, f"{len(messages)} messages; at most {most} are allowed"
        )
    named = fields.get("shape")
    shape = elements_shape(CHAT if named is None else named, messages)
    if "carry" in fields:
        check_carry(fields["carry"], len(messages))
    metadata = _optional(fields, "metadata", dict)
    is_meta = bool(_optional(fields, "is_meta", bool))
    # Before the marks are taken off, so that the digest is that of the published texts.
    digest = _digest(elements)
    metas = [
        (is_meta or META_MARK in message)
        # First, because the mark is taken off even if the whole event is marked.
        and (_take_mark(message, elements, index) or is_meta)
        and message.get("role") == "user"
        for index, message in enumerate(messages)
    ]
    return Event(
        key=key,
        event_id=event_id,
        bodies=tuple(elements),
        parsed=tuple(messages),
        originals=(None,) * len(messages),
        metas=tuple(metas),
        digest=digest,
        model=_optional(fields, "model", str),
        usage=_optional(fields, "usage", dict),
        is_truncated=bool(metadata) and metadata.get("truncated") is True,
        envelope=envelope_of(raw, ("messages",)),
        shape=shape,
    )


def elements_shape(name: object, elements: list[Any]) -> Shape:
    """Return the shape of this name, if every element has it.

    Raises:
        BadEvent: there is no such shape, or an element has another one.
    """
    fault_of = FAULTS.get(name) if isinstance(name, str) else None
    if fault_of is None:
        raise wrong_shape(f"shape must be one of {', '.join(Shape)}")
    for place, element in enumerate(elements):
        if fault := fault_of(element):
            raise wrong_shape(f"messages[{place}]: {fault}")
    return CHAT if name is CHAT else Shape(str(name))


def _take_mark(message: dict[str, Any], elements: list[str], index: int) -> bool:
    """Take the mark of a program's message off its value and its text; return whether it is set.

    A member of this name that holds no boolean is not ours, and stays.
    """
    mark = message.get(META_MARK)
    if not isinstance(mark, bool):
        return False
    del message[META_MARK]
    elements[index] = without_member(elements[index], META_MARK)
    return mark


def _tool_returned(fields: dict[str, Any], raw: dict[str, str]) -> Event:
    key, event_id = _identity(fields)
    if not isinstance(fields.get("tool_call_id"), str):
        raise wrong_shape("tool_call_id must be a string")
    if "content" not in fields:
        raise wrong_shape("content is missing; it may be null")
    check_carry(fields.get("carry"), 1)
    name = _optional(fields, "name", str)
    is_error = bool(_optional(fields, "is_error", bool))
    metadata = _optional(fields, "metadata", dict)
    content, shown, original = fields["content"], raw["content"], None
    if not _is_message_content(content):
        # A chat message cannot hold this value, so windows show its JSON. History returns the
        # original.
        content, original = json.dumps(content, ensure_ascii=False, separators=(",", ":")), shown
        # Escaped: the text may hold lone surrogates, which UTF-8 cannot encode.
        shown = json.dumps(content, ensure_ascii=True)
    named = f', "name": {raw["name"]}' if name is not None else ""
    body = f'{{"role": "tool", "tool_call_id": {raw["tool_call_id"]}{named}, "content": {shown}}}'
    parsed = {"role": "tool", "tool_call_id": fields["tool_call_id"], "content": content}
    return Event(
        key=key,
        event_id=event_id,
        bodies=(body,),
        parsed=(parsed | {"name": name} if name is not None else parsed,),
        originals=(original,),
        digest=_digest([raw["tool_call_id"], raw["content"], str(is_error)]),
        is_error=is_error,
        is_truncated=bool(metadata) and metadata.get("truncated") is True,
        envelope=envelope_of(raw, ("tool_call_id", "name", "content")),
    )


def _usage_reported(fields: dict[str, Any], raw: dict[str, str]) -> Event:
    model = fields.get("model")
    if not isinstance(model, str) or not 1 <= len(model) <= MODEL_MAX_CHARACTERS:
        raise wrong_shape(f"model must be a string of 1 to {MODEL_MAX_CHARACTERS} characters")
    limit = _optional(fields, "limit_tokens", int)
    if limit is not None and (isinstance(limit, bool) or not 1 <= limit <= LIMIT_AT_MOST):
        raise wrong_shape(f"limit_tokens must be 1 to {LIMIT_AT_MOST}")
    usage = _optional(fields, "usage", dict)
    message_id = _optional(fields, "message_id", str)
    if message_id is not None and len(message_id) > MESSAGE_ID_MAX_CHARACTERS:
        raise wrong_shape("message_id is too long")
    _optional(fields, "metadata", dict)
    is_overflow = bool(_optional(fields, "is_overflow", bool))
    content = (model, limit, usage, message_id, is_overflow)
    return _without_messages(
        fields,
        raw,
        json.dumps(content, sort_keys=True),
        model=model,
        usage=usage,
        reported=ReportedWindow(limit, is_overflow=is_overflow, message_id=message_id),
    )


def _turn_retracted(fields: dict[str, Any], raw: dict[str, str]) -> Event:
    retraction = read_retraction(fields)
    _optional(fields, "metadata", dict)
    content = json.dumps([TURN_RETRACTED, *retraction])
    return _without_messages(fields, raw, content, retraction=retraction)


def _without_messages(
    fields: dict[str, Any], raw: dict[str, str], content: str, **more: Any
) -> Event:
    key, event_id = _identity(fields)
    none: Any = {"bodies": (), "parsed": (), "originals": (), "metas": ()}
    return Event(
        key, event_id, **none, digest=_digest([content]), envelope=envelope_of(raw, ()), **more
    )


def _is_message_content(content: Any) -> bool:
    """Return whether a chat message may contain the value as it is: a string, null, or parts."""
    if isinstance(content, list):
        return bool(content) and all(
            isinstance(part, dict) and isinstance(part.get("type"), str) for part in content
        )
    return content is None or isinstance(content, str)


def _identity(fields: dict[str, Any]) -> tuple[SessionKey, EventId]:
    key = SessionKey(AgentId(_id(fields, "agent_id")), SessionId(_id(fields, "session_id")))
    return key, EventId(_id(fields, "event_id"))


def _id(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if (
        isinstance(value, str)
        and value.isascii()
        and value.isprintable()
        and 1 <= len(value) <= ID_MAX_BYTES
    ):
        return value
    fault = id_fault(value)
    if fault:
        raise wrong_shape(f"{name} {fault}")
    return str(value)


def claimed_key(payload: bytes) -> SessionKey | None:
    """Return the session that a payload names, valid event or not; None if it names none."""
    try:
        # The values of a larger one could take a hundred times its bytes.
        fields = json.loads(payload) if len(payload) <= LIMITS.bytes else None
    except (ValueError, RecursionError):
        fields = None
    fields = fields or {name: _written(payload, name) for name in SessionKey._fields}
    if not isinstance(fields, dict):
        return None
    agent_id, session_id = (fields.get(name) for name in SessionKey._fields)
    if id_fault(agent_id) or id_fault(session_id):
        return None
    return SessionKey(AgentId(str(agent_id)), SessionId(str(session_id)))


def _written(payload: bytes, name: str) -> str | None:
    """Return the first string after this name in a text that is not JSON."""
    # Bounded repetition: the payload is not JSON and may have megabytes.
    match = re.search(rb'"%s"\s*:\s*("(?:[^"\\]|\\.){1,2000}")' % name.encode(), payload)
    try:
        return str(json.loads(match[1])) if match else None
    except ValueError:
        return None


def _optional(fields: dict[str, Any], name: str, kind: type) -> Any:
    value = fields.get(name)
    if value is not None and not isinstance(value, kind):
        raise wrong_shape(f"{name} must be a {kind.__name__}")
    return value


def _digest(texts: list[str]) -> bytes:
    # A separator that JSON cannot contain unescaped: no two lists of texts give one digest.
    return blake2b("\x1f".join(texts).encode("utf-8", "surrogatepass"), digest_size=16).digest()
