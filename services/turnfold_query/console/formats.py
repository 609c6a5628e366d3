"""Filters of the templates: numbers, times, texts of messages, and links."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from turnfold.core.text.calls import call_texts

TEXT_CHARACTERS = 20_000
PREVIEW_CHARACTERS = 160
_SIZES = (
    (1_000_000_000, 1_000_000_000, "B"),
    (1_000_000, 1_000_000, "M"),
    (10_000, 1_000, "k"),
)


def number(value: float | None) -> str:
    """Return a number with separators."""
    return "–" if value is None else f"{value:,}"


def short(value: int) -> str:
    """Return a large number in few characters, such as 1.6 M."""
    for least, size, unit in _SIZES:
        if value >= least:
            scaled = value / size
            shown = f"{scaled:.0f}" if scaled >= 100 else f"{scaled:.1f}".removesuffix(".0")
            return f"{shown}\N{NO-BREAK SPACE}{unit}"
    return f"{value:,}"


def money(value: float) -> str:
    """Return US dollars, with more digits for small sums."""
    return f"${value:,.2f}" if value >= 1 or not value else f"${value:.4f}"


def clock(value: str | None) -> str:
    """Return an RFC 3339 time as date and time of day in UTC."""
    return "–" if value is None else f"{value[:10]} {value[11:19]}"


def ago(value: str | None) -> str:
    """Return how long ago an RFC 3339 time was, in words."""
    if value is None:
        return "never"
    seconds = int((datetime.now(UTC) - datetime.fromisoformat(value)).total_seconds())
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return "just now" if seconds < 5 else f"{seconds} s ago"


def segment(value: str) -> str:
    """Return an id as one segment of a path."""
    # Dots too: a browser would resolve `..` before it sends the path.
    return quote(value, safe="").replace(".", "%2E") if value in {".", ".."} else quote(value, "")


def text_of(message: Mapping[str, Any]) -> str:
    """Return what a message says and calls, as plain text."""
    parts = [_content(message.get("content"))]
    parts += [f"→ {name}({text})" for name, text in call_texts(message)]
    if not any(parts) and message.get("refusal"):
        parts.append(str(message["refusal"]))
    return "\n".join(part for part in parts if part)


def _content(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(
            str(part["text"])
            if isinstance(part, Mapping) and isinstance(part.get("text"), str)
            else json.dumps(part, ensure_ascii=False)
            for part in content
        )
    return json.dumps(content, ensure_ascii=False)


def clipped(text: str, most: int = TEXT_CHARACTERS) -> str:
    """Return a text, or its beginning and how much is missing."""
    if len(text) <= most:
        return text
    return f"{text[:most]}\n… {len(text) - most:,} more characters"


def preview(text: str) -> str:
    """Return the beginning of a text in one line."""
    line = " ".join(text[: 2 * PREVIEW_CHARACTERS].split())
    return line if len(line) <= PREVIEW_CHARACTERS else f"{line[:PREVIEW_CHARACTERS]}…"


def details(text: str) -> str:
    """Return the JSON details of an audit row as `name: value` pairs."""
    try:
        fields = json.loads(text)
    except ValueError:
        return text
    if not isinstance(fields, dict):
        return text
    return " · ".join(
        f"{name} {value if isinstance(value, str) else json.dumps(value)}"
        for name, value in fields.items()
        if value is not None
    )


FILTERS = {
    "ago": ago,
    "clipped": clipped,
    "clock": clock,
    "details": details,
    "money": money,
    "number": number,
    "preview": preview,
    "segment": segment,
    "short": short,
    "text_of": text_of,
}
"""The filters by the names that templates use."""
