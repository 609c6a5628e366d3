"""Write JSON as windows show it."""

import json
from typing import Final

# Created once: `json.dumps` creates one per value, and an event may contain a million values.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def compact(value: object) -> str:
    """Serialize to compact JSON, as a chat view shows it."""
    return _ENCODER.encode(value)


def json_text(value: object) -> str:
    """Serialize to compact JSON that UTF-8 can encode; lone surrogates are escaped."""
    text = compact(value)
    return text if is_encodable(text) else json.dumps(value, separators=(",", ":"))


def is_encodable(text: str) -> bool:
    """Return whether UTF-8 can encode a text: whether it contains no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
