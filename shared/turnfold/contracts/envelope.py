"""The envelope of an event: all of it but its messages, verbatim.

`carry` is a part of it: a list of JSON values parallel to the messages, for their producer alone.
"""

import json
from collections.abc import Container, Mapping, Sequence
from typing import Any

from turnfold.contracts.strict_json import element_texts, member_texts, wrong_shape

CARRY = "carry"
CARRY_MARK = f'"{CARRY}": '
"""Stands in every envelope that carries something, and in few others."""

_IDENTITY = ("event_id", "agent_id", "session_id", "type")


def envelope_of(raw: Mapping[str, str], without: Container[str]) -> str | None:
    """Return the members of an event as JSON, except its identity and those named; None if none."""
    rest = {
        name: text for name, text in raw.items() if name not in _IDENTITY and name not in without
    }
    return _written(rest) if rest else None


def check_carry(carry: Any, messages: int) -> None:
    """Check that there is one value for each message, or nothing.

    Raises:
        BadEvent: there is something else.
    """
    if carry is not None and (not isinstance(carry, list) or len(carry) != messages):
        raise wrong_shape(f"{CARRY} must be a list of {messages}, one for each message")


def carried_texts(envelope: str) -> list[str | None]:
    """Return what an envelope carries for each message, as JSON texts; None for null."""
    text = member_texts(envelope).get(CARRY, "null")
    if not text.startswith("["):
        return []
    return [None if element == "null" else element for element in element_texts(text)]


def spread_carry(envelope: str | None, sources: Sequence[int]) -> str | None:
    """Return the envelope of an event whose elements became several messages.

    `sources` has the element of each message. The first message of an element gets what was
    carried for it.
    """
    if envelope is None or CARRY_MARK not in envelope:
        return envelope
    members, carried = member_texts(envelope), carried_texts(envelope)
    if not carried:
        return envelope
    texts: list[str] = []
    seen: set[int] = set()
    for source in sources:
        texts.append("null" if source in seen else carried[source] or "null")
        seen.add(source)
    return _written(members | {CARRY: f"[{', '.join(texts)}]"})


def _written(members: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(name)}: {text}" for name, text in members.items()) + "}"
