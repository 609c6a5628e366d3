"""Store an element beside its chat view without storing its long text twice."""

from typing import Final

LEAST_CHARACTERS: Final = 128
"""Shorter texts are stored twice: a reference to them would save little."""

# No JSON text contains this character, because a JSON string must escape it.
_HOLE: Final = "\x1f"


def pack(text: str, body: str, literal: str) -> str | None:
    """Return an element as it is stored beside the JSON of its chat view; None if both are equal.

    `literal` is a JSON string that both may contain. The stored text refers to it in the body.
    """
    if text == body:
        return None
    if len(literal) < LEAST_CHARACTERS:
        return text
    at, start = text.find(literal), body.find(literal)
    if at < 0 or start < 0:
        return text
    rest = text[at + len(literal) :]
    return f"{start},{len(literal)}{_HOLE}{text[:at]}{_HOLE}{rest}"


def unpack(packed: str | None, body: str) -> str:
    """Return the verbatim element; the inverse of `pack`."""
    if packed is None:
        return body
    place, is_reference, rest = packed.partition(_HOLE)
    if not is_reference:
        return packed
    start, length = map(int, place.split(","))
    before, after = rest.split(_HOLE)
    return f"{before}{body[start : start + length]}{after}"
