"""Read the answer of a model, and make it fit its limits.

Models wrap JSON in prose and fences, leave trailing commas, and put objects where texts belong. All
of this is read; what has no meaning is left out.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from turnfold.core.summary.carry_over import LIST_SECTIONS, RESOLVED
from turnfold.core.summary.extractive.rendering import render
from turnfold.core.summary.gate import Reason, response_text
from turnfold.core.summary.sources import word_count
from turnfold.core.text.lines import printable, printable_json
from turnfold.errors import SummarizerError

MAX_ENTRY_DEPTH: Final = 16
"""Values that a model nests deeper inside an entry are left out."""

_SECTIONS: Final = frozenset({*LIST_SECTIONS, "file_changes", "context"})
_MIN_WORDS = 12
_CLOSING = r"[\"'\u2019\u201d)\]*_`]{0,3}"
# A stop inside a word ends no sentence: half of 2.5 is another number.
_SENTENCE = re.compile(
    rf"(?>(?:[^.!?。！？\n]|[.!?](?!{_CLOSING}(?:\s|\Z)))*)"
    rf"(?:[.!?]{_CLOSING}\s*|[。！？\n]\s*|\Z)"
)
# Chinese, Japanese and Korean may be cut anywhere.
# From the beginning of a word alone, so that one of many characters is read once.
_LAST_WORD = re.compile(r"(?<![^\s\u2e80-\uffff])[^\s\u2e80-\uffff]++\Z")
_WORD_GOES_ON = re.compile(r"[^\s\u2e80-\uffff]{2}")
_FENCE = re.compile(r"```[A-Za-z]*\s*\n?(.*?)(?:```|\Z)", re.DOTALL)
_TRAILING_COMMA = re.compile(r",(\s*[}\]])")
_KEY = re.compile(r'"(?:decisions|constraints|open_questions|file_changes|context)"\s*:')

TextAndSections = tuple[str, dict[str, Any]]


def parse_answer(text: str, style: str, *, max_words: int = 0) -> TextAndSections:
    """Return the text and the sections of an answer. `max_words` limits its prose, 0 does not.

    In the structured style, a JSON object is found inside fences and prose. Plain prose becomes the
    section `context`.

    Raises:
        SummarizerError: `unparsable` for broken JSON, `empty_summary` for an answer without text.
    """
    answer = _from_string(printable(response_text(text)))
    record = None if style == "narrative" else _object_in(answer)
    if record is None:
        prose = shortened(_without_fence(answer), max_words)
        return _not_empty(prose, {"context": prose})
    sections: dict[str, Any] = {name: _entries(record.get(name)) for name in LIST_SECTIONS}
    changes = [_file_change(item) for item in _items(record.get("file_changes"))]
    sections["file_changes"] = [change for change in changes if change]
    sections["context"] = shortened("\n".join(_entries(record.get("context"))), max_words)
    if resolved := _entries(record.get(RESOLVED)):
        sections[RESOLVED] = resolved
    return _not_empty(render(sections), sections)


def shortened(text: str, max_words: int) -> str:
    """Shorten prose to whole sentences of at most `max_words` words; 0 or less sets no limit.

    The end is kept first, because ongoing matters are there, and then as much of the start as fits.
    """
    if max_words <= 0 or word_count(text) <= max_words:
        return text
    pieces = _SENTENCE.findall(text)
    sizes = [word_count(piece) for piece in pieces]
    head, tail, used = 0, len(pieces), 0.0
    while tail > 0 and used + sizes[tail - 1] <= max_words * 0.4:
        tail -= 1
        used += sizes[tail]
    while head < tail and used + sizes[head] <= max_words:
        used += sizes[head]
        head += 1
    start, end = "".join(pieces[:head]).rstrip(), "".join(pieces[tail:]).lstrip()
    kept = start + ("\n" if head else "") + end
    return kept.strip() or _first_words(text, max_words)


def fitted(
    text: str, sections: dict[str, Any], *, max_tokens: int, count: Callable[[str], int]
) -> TextAndSections:
    """Shorten a version to its token limit.

    The longest list loses its oldest entries, or the prose is shortened if that is longer; then
    files are dropped. Constraints are shortened last, and one of them stays. If all of this does
    not suffice, the text is cut.
    """
    sections = dict(sections)
    is_prose = set(sections) == {"context"}
    while (tokens := count(text)) > max_tokens and _shorten_once(sections, tokens, max_tokens):
        text = str(sections["context"]) if is_prose else render(sections)
    # Its start may have more tokens per character than the whole.
    while (tokens := count(text)) > max_tokens and len(text) > 1:
        text = _start_of(text, min(len(text) - 1, len(text) * max_tokens // tokens))
    return text, sections


def _shorten_once(sections: dict[str, Any], tokens: int, max_tokens: int) -> bool:
    """Shorten one section in proportion to the excess; return whether any could be."""
    context = str(sections.get("context") or "")
    longest = max(("decisions", "open_questions"), key=lambda name: _characters(sections, name))
    if not _characters(sections, longest):
        longest = "constraints"
    prefers_prose = longest == "constraints" or _characters(sections, longest) <= len(context)
    words = word_count(context)
    entries = list(sections.get(longest) or ())
    if prefers_prose and words > _MIN_WORDS:
        # At least four words less each time, so that the loop ends.
        most = min(int(words * max_tokens / tokens), int(words) - 4)
        sections["context"] = shortened(context, max(8, most))
    elif prefers_prose and sections.get("file_changes"):
        changes = list(sections["file_changes"])
        sections["file_changes"] = changes[len(changes) // 2 + 1 :]
    elif len(entries) > (longest == "constraints"):
        surplus = len(entries) - len(entries) * max_tokens // tokens
        sections[longest] = entries[max(1, surplus) :]
    else:
        return False
    return True


def _characters(sections: Mapping[str, Any], name: str) -> int:
    return sum(len(item) for item in sections.get(name) or ())


def _first_words(text: str, max_words: int) -> str:
    """Return the start of a text without sentences, as far as `max_words` words reach."""
    start = _start_of(" ".join(text.split()[:max_words]), max_words * 8)
    words = word_count(start)
    return start if words <= max_words else _start_of(start, int(len(start) * max_words / words))


def _start_of(text: str, characters: int) -> str:
    """Return the first characters of a text, without half a word unless that is most of them."""
    start = text[: max(1, characters)]
    if _WORD_GOES_ON.match(text, len(start) - 1):
        whole = _LAST_WORD.sub("", start)
        return whole if len(whole) * 2 >= len(start) else start
    return start


def _not_empty(text: str, sections: dict[str, Any]) -> TextAndSections:
    if not text.strip():
        raise SummarizerError(Reason.EMPTY_SUMMARY, "the answer holds no text")
    return text, sections


def _without_fence(answer: str) -> str:
    fenced = _FENCE.fullmatch(answer)
    return fenced[1].strip() if fenced else answer


def _object_in(answer: str) -> Mapping[str, Any] | None:
    """Return the JSON object of an answer, or None if the answer is prose."""
    fenced = _FENCE.search(answer)
    candidate = answer
    if fenced and "{" in fenced[1] and not answer.lstrip().startswith("{"):
        # To the end of the answer, because a text within the JSON may quote a fence.
        candidate = answer[fenced.start(1) :]
    start = candidate.find("{")
    starts_as_json = answer.lstrip().startswith(("{", "["))
    if start < 0:
        if starts_as_json:
            raise SummarizerError(Reason.UNPARSABLE, "the answer is a list")
        return None
    has_key = _KEY.search(candidate) is not None
    # `raw_decode` ignores the text after the object; `strict=False` allows line ends in strings.
    for attempt in (candidate[start:], _TRAILING_COMMA.sub(r"\1", candidate[start:])):
        try:
            value = printable_json(json.JSONDecoder(strict=False).raw_decode(attempt)[0])
        except (ValueError, RecursionError):
            continue
        # Prose may contain another object, such as an example.
        if isinstance(value, Mapping) and (has_key or start == 0):
            return _unwrapped(value)
    if start == 0 or fenced or has_key or starts_as_json:
        raise SummarizerError(Reason.UNPARSABLE, "the answer is not JSON")
    return None


def _unwrapped(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the record, which models also put into an object of its own, as in a schema."""
    inner = [item for item in value.values() if isinstance(item, Mapping)]
    is_record = not _SECTIONS.isdisjoint(value)
    return value if is_record or len(inner) != 1 else inner[0]


def _from_string(answer: str) -> str:
    """Return the text of an answer that is one JSON string."""
    try:
        text = json.loads(answer, strict=False) if answer.startswith('"') else answer
    except ValueError:
        return answer
    return response_text(printable(text)) if isinstance(text, str) else answer


def _items(value: Any) -> Sequence[Any]:
    if isinstance(value, list):
        return value
    return () if value is None else (value,)


def _entries(value: Any) -> list[str]:
    return [entry for entry in (_entry(item) for item in _items(value)) if entry]


def _entry(item: Any, depth: int = 0) -> str:
    """Return an item of a list as one text, whatever a model put there."""
    if isinstance(item, str):
        return item.strip()
    if depth > MAX_ENTRY_DEPTH or item is None or isinstance(item, bool):
        return ""
    if isinstance(item, Mapping):
        texts = ((key, _entry(value, depth + 1)) for key, value in item.items())
        return "; ".join(f"{key}: {text}" for key, text in texts if text)
    if isinstance(item, list):
        return "; ".join(text for inner in item if (text := _entry(inner, depth + 1)))
    return str(item)


def _file_change(item: Any) -> dict[str, str] | None:
    if isinstance(item, str) and item.strip():
        return {"path": item.strip(), "action": "modified"}
    if isinstance(item, Mapping) and isinstance(item.get("path"), str) and item["path"].strip():
        is_read = "read" in str(item.get("action", "")).lower()
        return {"path": item["path"].strip(), "action": "read" if is_read else "modified"}
    return None
