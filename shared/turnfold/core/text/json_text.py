"""Write JSON as windows show it, and change the texts of JSON values."""

import json
from collections.abc import Callable
from typing import Any, Final

# Created once: `json.dumps` creates one per value, and an event may contain a million values.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def compact(value: object) -> str:
    """Serialize to compact JSON, as a chat view shows it."""
    return _ENCODER.encode(value)


def json_text(value: object) -> str:
    """Serialize to compact JSON that UTF-8 can encode; lone surrogates are escaped."""
    text = compact(value)
    return text if is_encodable(text) else json.dumps(value, separators=(",", ":"))


def with_texts(value: Any, change: Callable[[str], str], *, names: bool = False) -> Any:
    """Return a JSON value in which every text is changed, with `names` also those of members."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list | tuple):
        return [with_texts(item, change, names=names) for item in value]
    if isinstance(value, dict):
        return {
            change(name) if names else name: with_texts(item, change, names=names)
            for name, item in value.items()
        }
    return value


def is_encodable(text: str) -> bool:
    """Return whether UTF-8 can encode a text: whether it contains no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
