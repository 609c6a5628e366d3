"""Filters of the templates: numbers, times, texts of messages, and links."""

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from markupsafe import Markup

from turnfold.core.text.calls import call_texts
from turnfold.core.text.search import SearchQuery
from turnfold.core.text.tokens import spoken_text
from turnfold.core.text.words import is_cjk
from turnfold_query.console.api import DOTS_END

TEXT_CHARACTERS = 20_000
PREVIEW_CHARACTERS = 160
_TURNING: Final = re.compile(r"[\u202a-\u202e\u2066-\u2069]")
SNIPPET_BEFORE = 50
_SIZES = (
    (999_500_000, 1_000_000_000, "B"),
    (999_500, 1_000_000, "M"),
    (10_000, 1_000, "k"),
)
"""From which number on there is a unit, its size and its name: 999,500 is rounded to a million."""


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
    if value >= 1 or not value:
        return f"${value:,.2f}"
    return f"${value:.4f}" if value >= 0.00005 else "<$0.0001"


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
    """Return an id as one segment of a path of the console."""
    return value + DOTS_END if value in {".", ".."} else quote(value, "")


def text_of(message: Mapping[str, Any]) -> str:
    """Return what a message says and calls, as plain text."""
    parts = [_content(message.get("content")) or spoken_text(message)]
    parts += [f"→ {name}({text})" for name, text in call_texts(message)]
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


def sentence(text: str) -> str:
    """Return the message of an error as a sentence of a page."""
    # Some begin with the name of a field and a colon.
    name, colon, _ = text.partition(":")
    begun = text if colon and name.isidentifier() else text[:1].upper() + text[1:]
    return begun + ("" if text.endswith((".", "?", "!")) else ".")


def finalize(value: Any) -> Any:
    """Replace characters that turn the direction of text, behind which it looks like another.

    Markup stays, such as the value of a field, which comes back with the form.
    """
    return _TURNING.sub("\N{REPLACEMENT CHARACTER}", value) if type(value) is str else value


def snippet(text: str, query: str) -> Markup:
    """Return the part of a text that a query found, in one line, with the words marked."""
    question = SearchQuery.of(query)
    longest = sorted(question.words, key=lambda word: (-len(word), word))
    line = finalize(" ".join(text.split()))
    places = (_words(word).search(line) for word in (question.text, *longest))
    first = next((place.start() for place in places if place), 0)
    start = max(0, first - SNIPPET_BEFORE) if len(line) > PREVIEW_CHARACTERS else 0
    shown = line[start : start + PREVIEW_CHARACTERS]
    parts, at = ["…" if start else ""], 0
    for place in _words(*longest).finditer(shown):
        parts += [shown[at : place.start()], Markup("<mark>{}</mark>").format(place[0])]
        at = place.end()
    parts += [shown[at:], "…" if start + len(shown) < len(line) else ""]
    # Joined to markup, so that all plain parts are escaped.
    return Markup().join(parts)


def _words(*words: str) -> re.Pattern[str]:
    """Match words where the search finds them: at their beginning, or anywhere in CJK text."""
    forms = (
        re.escape(word) if is_cjk(word[0]) else rf"(?<![^\W_]){re.escape(word)}" for word in words
    )
    return re.compile("|".join(forms), re.IGNORECASE)


def details(text: str) -> str:
    """Return the JSON details of an audit row as `name: value` pairs."""
    try:
        fields = json.loads(text)
    except ValueError:
        return text
    if not isinstance(fields, dict):
        return text
    return " · ".join(
        f"{name} {value if isinstance(value, str) else _value(value)}"
        for name, value in fields.items()
        if value is not None
    )


def _value(value: Any) -> str:
    # Sums of money are small, and inexact in binary: 0.00019319999999999998.
    return (
        f"{value:.10f}".rstrip("0").rstrip(".") if isinstance(value, float) else json.dumps(value)
    )


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "ago": ago,
    "clipped": clipped,
    "clock": clock,
    "details": details,
    "money": money,
    "number": number,
    "preview": preview,
    "segment": segment,
    "sentence": sentence,
    "short": short,
    "snippet": snippet,
    "text_of": text_of,
}
"""The filters by the names that templates use."""
