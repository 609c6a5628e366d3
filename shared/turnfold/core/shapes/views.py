"""The chat view of an element: what evictions, counts, digests, recall and summaries work on."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from turnfold.core.text.json_text import compact
from turnfold.messages import Element

NOTHING_SAID: Final = {"role": "assistant", "content": None}
"""The chat view of an item whose content is part of the message before it."""


class ChatView(NamedTuple):
    """A chat message, and the verbatim text of its element.

    `extra` is text of the element that costs tokens and is not in the message. `source` is the
    index of the published element; several results in one Anthropic message have the same.
    """

    message: dict[str, Any]
    text: str
    element: Element
    source: int
    extra: str = ""
    is_error: bool = False
    is_meta: bool = False


def unknown_fields(fields: Mapping[str, Any], known: frozenset[str]) -> str:
    """Return the fields that no chat message has as JSON text; empty if there are none."""
    # Most elements have known fields alone.
    if fields.keys() <= known:
        return ""
    unknown = {
        name: value
        for name, value in fields.items()
        if name not in known and value is not None and value not in ("", [], {})
    }
    return compact(unknown) if unknown else ""


def joined_content(parts: list[Any]) -> Any:
    """Return content parts as chat content: a single text as a string."""
    if len(parts) == 1 and parts[0].get("type") == "text":
        return parts[0]["text"]
    return parts


def text_part(text: str) -> dict[str, Any]:
    """Return a text as a content part of a chat message."""
    return {"type": "text", "text": text}


def is_text_part(part: object, kind: str) -> bool:
    """Return whether a content part is a text of this type."""
    return (
        isinstance(part, Mapping) and part.get("type") == kind and isinstance(part.get("text"), str)
    )
