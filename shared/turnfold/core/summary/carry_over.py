"""What a record held before stays in it until a model says that it is settled: merged by field, by code."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

LIST_SECTIONS: Final = ("decisions", "constraints", "open_questions")
RESOLVED: Final = "resolved"
"""The section of an answer that names entries of the record before which hold no longer; no version stores it."""

_LETTERS: Final = {"decisions": "d", "constraints": "c", "open_questions": "q"}
_LISTS_SHARE = 0.6
_NOT_WORD = re.compile(r"[\W_]+")


def numbered(sections: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The lists of a record, each entry under a name (d1, c1, q1, …) by which an answer can say that it is settled."""
    return {
        name: {
            f"{_LETTERS[name]}{number}": text
            for number, text in enumerate(_texts(sections.get(name)), start=1)
        }
        for name in LIST_SECTIONS
        if _texts(sections.get(name))
    }


def carry_over(
    before: Mapping[str, Any],
    said: Mapping[str, Any],
    *,
    max_tokens: int,
    count: Callable[[str], int],
) -> dict[str, Any]:
    """The sections of an answer with the entries of the record before that it did not resolve.

    An entry that is said again is there once, as new. Lists take a share of the tokens at most, the oldest entries out
    first; constraints have all of the share before anything else has any.
    """
    resolved = {_key(str(name)) for name in said.get(RESOLVED) or ()}
    sections = {name: value for name, value in said.items() if name != RESOLVED}
    carried = numbered(before)
    lists: dict[str, list[str]] = {}
    for name in LIST_SECTIONS:
        kept = [
            text
            for entry, text in carried.get(name, {}).items()
            if _key(entry) not in resolved and _key(text) not in resolved
        ]
        lists[name] = _once([*kept, *_texts(said.get(name))])
    room = int(max_tokens * _LISTS_SHARE)
    constraints, used = _newest(lists["constraints"], room, count)
    questions, asked = _newest(lists["open_questions"], (room - used) // 2, count)
    decisions, _ = _newest(lists["decisions"], room - used - asked, count)
    found = {"decisions": decisions, "constraints": constraints, "open_questions": questions}
    return sections | {name: texts for name, texts in found.items() if texts or name in sections}


def _newest(texts: Sequence[str], room: int, count: Callable[[str], int]) -> tuple[list[str], int]:
    """As many of the newest entries as there is room for, and what they take."""
    used = 0
    for index in range(len(texts) - 1, -1, -1):
        tokens = count(texts[index]) + 2
        if used + tokens > room:
            return list(texts[index + 1 :]), used
        used += tokens
    return list(texts), used


def _once(texts: Iterable[str]) -> list[str]:
    """Each entry once, where it was said last."""
    found: dict[str, str] = {}
    for text in texts:
        if key := _key(text):
            found.pop(key, None)
            found[key] = text
    return list(found.values())


def _key(text: str) -> str:
    return _NOT_WORD.sub("", text.casefold()) or text.strip()


def _texts(value: Any) -> list[str]:
    return (
        [text for text in value if isinstance(text, str) and text.strip()]
        if isinstance(value, list | tuple)
        else []
    )
