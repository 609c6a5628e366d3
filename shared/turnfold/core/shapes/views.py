"""The chat view of an element: what evictions, counts, digests, recall and summaries work on."""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from turnfold.core.text.json_text import compact
from turnfold.messages import Element

NOTHING_SAID: Final = {"role": "assistant", "content": None}
"""The chat view of an item whose content is part of the message before it."""

LEFT_OUT: Final = "[left out]"
_DATA_URL: Final = re.compile("data:[^,]{0,200};base64,", re.IGNORECASE)


class ChatView(NamedTuple):
    """A chat message, and the verbatim text of its element.

    `extra` is text of the element that costs tokens and is not in the message, and `files` the
    number of such media. `source` is the index of the published element; several results in one
    Anthropic message have the same.
    """

    message: dict[str, Any]
    text: str
    element: Element
    source: int
    extra: str = ""
    is_error: bool = False
    is_meta: bool = False
    files: int = 0


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


def told(value: object) -> str:
    """Return a value as compact JSON without the bytes of media in it: they are not text."""
    return compact(_without_bytes(value))


def _without_bytes(value: Any) -> Any:
    if isinstance(value, str):
        return LEFT_OUT if _DATA_URL.match(value) else value
    if isinstance(value, list):
        return [_without_bytes(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    hidden = {"data": LEFT_OUT} if _is_base64(value) else {}
    return {name: _without_bytes(item) for name, item in value.items()} | hidden


def files_in(value: object) -> int:
    """Return how many media a value holds: base64, data URLs, and files at the provider."""
    if isinstance(value, str):
        return int(_DATA_URL.match(value) is not None)
    if isinstance(value, list):
        return sum(map(files_in, value))
    if not isinstance(value, Mapping):
        return 0
    is_at_provider = value.get("type") == "file" and isinstance(value.get("file_id"), str)
    return sum(map(files_in, value.values())) + (_is_base64(value) or is_at_provider)


def _is_base64(source: Mapping[str, Any]) -> bool:
    is_source = source.get("type") in ("base64", "output_audio")
    return is_source and isinstance(source.get("data"), str)


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
