"""Carry the entries of the previous version over into a new one, field by field.

A model lists new entries only. An earlier entry stays until an answer resolves it, so that no model
can drop a constraint by omitting it.
"""

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Final

from turnfold.core.summary.extractive.lines import list_texts

_LETTERS: Final = {"decisions": "d", "constraints": "c", "open_questions": "q"}
LIST_SECTIONS: Final = tuple(_LETTERS)
RESOLVED: Final = "resolved"
"""The section of an answer that names resolved entries. No version stores it."""

_LISTS_SHARE = 0.6
"""The share of the token limit that lists may take. The rest is for prose."""
_TOKENS_PER_MARK = 2
_NAME = re.compile(r"\s*([dcq]\d{1,3})\b", re.IGNORECASE)
"""The name of an entry, which some models write before its text or a reason."""
_NOT_WORD = re.compile(r"[\W_]+")


def numbered(sections: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the non-empty lists of a version, each entry under a name such as d1 or q2.

    An answer resolves entries by these names.
    """
    return {
        name: {f"{letter}{number}": text for number, text in enumerate(texts, start=1)}
        for name, letter in _LETTERS.items()
        if (texts := list_texts(sections.get(name)))
    }


def carry_over(
    before: Mapping[str, Any],
    answer: Mapping[str, Any],
    *,
    max_tokens: int,
    count: Callable[[str], int],
) -> dict[str, Any]:
    """Return the sections of an answer, with the earlier entries that it did not resolve.

    An entry that the answer repeats is kept once, as new. Lists take at most 60 % of `max_tokens`,
    and their oldest entries are dropped first. Constraints may take all of that; open questions
    take at most half of the rest.
    """
    sections = {name: value for name, value in answer.items() if name != RESOLVED}
    # The prompt names the entries of the same version by the same function.
    carried = numbered(before)
    known = {_key(text) for entries in carried.values() for text in entries.values()}
    resolved = {_resolved_by(str(name), known) for name in answer.get(RESOLVED) or ()}
    lists: dict[str, list[str]] = {}
    for name in LIST_SECTIONS:
        # Models resolve an entry by its name or by repeating its text.
        kept = [
            text
            for entry, text in carried.get(name, {}).items()
            if _key(entry) not in resolved and _key(text) not in resolved
        ]
        lists[name] = _without_repeats([*kept, *list_texts(answer.get(name))])
    room = int(max_tokens * _LISTS_SHARE)
    # In this order: a forgotten constraint does more harm than a forgotten decision.
    constraints, used = _newest(lists["constraints"], room, count)
    questions, used_by_questions = _newest(lists["open_questions"], (room - used) // 2, count)
    decisions, _ = _newest(lists["decisions"], room - used - used_by_questions, count)
    merged = {"decisions": decisions, "constraints": constraints, "open_questions": questions}
    return sections | {name: texts for name, texts in merged.items() if texts or name in sections}


def _resolved_by(answered: str, texts: Container[str]) -> str:
    """Return the key of the entry that an answer resolves: its text, or the name before it."""
    key = _key(answered)
    # An entry may itself begin like a name, as "Q3 figures" does.
    name = None if key in texts else _NAME.match(answered)
    return _key(name[1]) if name else key


def _newest(
    texts: Sequence[str], room_tokens: int, count: Callable[[str], int]
) -> tuple[list[str], int]:
    """Return as many of the newest entries as fit, and their tokens."""
    used = 0
    for index in range(len(texts) - 1, -1, -1):
        tokens = count(texts[index]) + _TOKENS_PER_MARK
        if used + tokens > room_tokens:
            return list(texts[index + 1 :]), used
        used += tokens
    return list(texts), used


def _without_repeats(texts: Iterable[str]) -> list[str]:
    """Return each entry once, at its last place."""
    unique: dict[str, str] = {}
    for text in texts:
        key = _key(text)
        # Removed first, so that the repeated entry moves to its new place.
        unique.pop(key, None)
        unique[key] = text
    return list(unique.values())


def _key(text: str) -> str:
    """Return the part of an entry that decides equality: its letters and digits."""
    return _NOT_WORD.sub("", text.casefold()) or text.strip()
