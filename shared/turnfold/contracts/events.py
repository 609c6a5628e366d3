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

from turnfold.contracts.strict_json import read_members, without_member
from turnfold.contracts.subjects import (
    EVENT_TYPES,
    ID_MAX_BYTES,
    TOOL_RESULT,
    TURN_COMPLETED,
    USAGE_REPORTED,
    id_fault,
    token_of,
)
from turnfold.errors import BadEvent
from turnfold.messages import META_MARK, ROLES, AgentId, EventId, SessionId, SessionKey


class EventLimits(NamedTuple):
    """The limits of an event: bytes of JSON, messages, and levels of nesting."""

    bytes: int = 4 * 1024 * 1024
    messages: int = 1_000
    depth: int = 64


LIMITS = EventLimits()


MODEL_MAX_CHARACTERS = 256
MESSAGE_ID_MAX_CHARACTERS = ID_MAX_BYTES + 5
"""The longest id of a message: an event id, `#` and an index below 1,024."""
LIMIT_AT_MOST = 1_000_000_000


class ReportedWindow(NamedTuple):
    """The content of `usage.reported`: a model's window, and whether a call exceeded it.

    `limit_tokens` is the size that the provider named; None if it named none. `message_id` is the
    message that answered the call.
    """

    limit_tokens: int | None = None
    is_overflow: bool = False
    message_id: str | None = None


# Not frozen, because freezing triples the cost of construction, and a worker builds thousands per
# second. No code changes an event.
@dataclass(slots=True)
class Event:
    """One event of any type, as its messages; `usage.reported` has none, but `reported`.

    `bodies` are the messages of the window, as JSON texts, and `parsed` holds the same as values.
    `originals` has the published text if it differs (the JSON content of a tool result). `metas`
    tells of each message whether a program wrote it. `digest` is equal for equal texts.
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


def read_event(subject: str, payload: bytes, limits: EventLimits = LIMITS) -> Event:
    """Read an event that was published to a subject.

    Raises:
        BadEvent: it can never be stored. The reason is `too_large`, `not_json`, `too_deep`,
            `wrong_shape`, `too_many_messages`, `unknown_type` or `subject_mismatch`.
    """
    kind = _kind_of(subject)
    event = read_payload(kind, payload, limits)
    if (
        subject != kind
        and subject != f"{kind}.{_token(event.key.agent_id)}.{_token(event.key.session_id)}"
    ):
        raise BadEvent(
            "subject_mismatch", "the subject names another agent or session than the event"
        )
    return event


def read_payload(kind: str, payload: bytes, limits: EventLimits = LIMITS) -> Event:
    """Read the JSON of an event of this type; see `read_event`."""
    if len(payload) > limits.bytes:
        raise BadEvent("too_large", f"{len(payload)} bytes; at most {limits.bytes} are allowed")
    fields, raw, elements = read_members(payload, limits.depth)
    if kind == TURN_COMPLETED:
        return _turn_completed(fields, raw, elements, limits.messages)
    if kind == TOOL_RESULT:
        return _tool_returned(fields, raw)
    if kind == USAGE_REPORTED:
        return _usage_reported(fields, raw)
    raise BadEvent("unknown_type", repr(kind)[:80])


def _kind_of(subject: str) -> str:
    for kind in EVENT_TYPES:
        if subject == kind or subject.startswith(kind + "."):
            return kind
    raise BadEvent("unknown_type", repr(subject)[:80])


_token = lru_cache(maxsize=8_192)(token_of)


# --- event types


def _turn_completed(
    fields: dict[str, Any], raw: dict[str, str], elements: list[str], most: int
) -> Event:
    key, event_id = _identity(fields)
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadEvent("wrong_shape", "messages must be a list of at least one message")
    if len(messages) > most:
        raise BadEvent("too_many_messages", f"{len(messages)} messages; at most {most} are allowed")
    for message in messages:
        if (
            not isinstance(message, dict)
            or not isinstance(role := message.get("role"), str)
            or role not in ROLES
        ):
            raise BadEvent(
                "wrong_shape", f"a message needs one of the roles {', '.join(sorted(ROLES))}"
            )
    metadata = _optional(fields, "metadata", dict)
    is_meta = bool(_optional(fields, "is_meta", bool))
    # Before the marks are taken off, so that the digest is that of the published texts.
    digest = _digest(elements)
    metas = [
        (_take_mark(message, elements, index) or is_meta) and message["role"] == "user"
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
        envelope=_envelope(raw, ("messages",)),
    )


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
        raise BadEvent("wrong_shape", "tool_call_id must be a string")
    if "content" not in fields:
        raise BadEvent("wrong_shape", "content is missing; it may be null")
    name = _optional(fields, "name", str)
    is_error = bool(_optional(fields, "is_error", bool))
    metadata = _optional(fields, "metadata", dict)
    content, shown, original = fields["content"], raw["content"], None
    if not _is_message_content(content):
        # A chat message cannot hold this value, so windows show its JSON. History returns the
        # original.
        content, original = json.dumps(content, ensure_ascii=False, separators=(",", ":")), shown
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
        envelope=_envelope(raw, ("tool_call_id", "name", "content")),
    )


def _usage_reported(fields: dict[str, Any], raw: dict[str, str]) -> Event:
    key, event_id = _identity(fields)
    model = fields.get("model")
    if not isinstance(model, str) or not 1 <= len(model) <= MODEL_MAX_CHARACTERS:
        raise BadEvent(
            "wrong_shape", f"model must be a string of 1 to {MODEL_MAX_CHARACTERS} characters"
        )
    limit = _optional(fields, "limit_tokens", int)
    if limit is not None and (isinstance(limit, bool) or not 1 <= limit <= LIMIT_AT_MOST):
        raise BadEvent("wrong_shape", f"limit_tokens must be 1 to {LIMIT_AT_MOST}")
    usage = _optional(fields, "usage", dict)
    message_id = _optional(fields, "message_id", str)
    if message_id is not None and len(message_id) > MESSAGE_ID_MAX_CHARACTERS:
        raise BadEvent("wrong_shape", "message_id is too long to be one")
    _optional(fields, "metadata", dict)
    is_overflow = bool(_optional(fields, "is_overflow", bool))
    content = (model, limit, usage, message_id, is_overflow)
    return Event(
        key=key,
        event_id=event_id,
        bodies=(),
        parsed=(),
        originals=(),
        metas=(),
        digest=_digest([json.dumps(content, sort_keys=True)]),
        model=model,
        usage=usage,
        envelope=_envelope(raw, ()),
        reported=ReportedWindow(limit, is_overflow=is_overflow, message_id=message_id),
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
        raise BadEvent("wrong_shape", f"{name} {fault}")
    return str(value)


def claimed_key(payload: bytes) -> SessionKey | None:
    """Return the session that a payload names, valid event or not; None if it names none."""
    try:
        fields = json.loads(payload)
    except (ValueError, RecursionError):
        fields = {name: _written(payload, name) for name in SessionKey._fields}
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
        raise BadEvent("wrong_shape", f"{name} must be a {kind.__name__}")
    return value


_IDENTITY = ("event_id", "agent_id", "session_id", "type")


def _envelope(raw: dict[str, str], without: tuple[str, ...]) -> str | None:
    rest = [
        f"{json.dumps(name)}: {text}"
        for name, text in raw.items()
        if name not in _IDENTITY and name not in without
    ]
    return "{" + ", ".join(rest) + "}" if rest else None


def _digest(texts: list[str]) -> bytes:
    # A separator that JSON cannot contain unescaped: no two lists of texts give one digest.
    return blake2b("\x1f".join(texts).encode("utf-8", "surrogatepass"), digest_size=16).digest()
