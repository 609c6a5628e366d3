"""The lines of an extractive summary: which section each belongs to, and how much it weighs.

`picking` makes lines of messages, and `extract` makes them of the previous version. The weight of
a line depends on its text alone, so that carrying it over does not change it; the part that depends
on the place in the conversation is added afterwards.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from turnfold.core.summary.sentences import SentenceKind, is_lasting, says_name, sentence_kinds

LASTING_SECTIONS: Final = frozenset({"facts", "constraints"})
"""Sections whose lines do not lose weight with age."""
MAX_LINES: Final[Mapping[str, int]] = {
    "tasks": 10, "constraints": 10, "decisions": 8, "facts": 20, "context": 14, "actions": 10,
    "commands": 6, "errors": 4, "open_questions": 5,
}  # fmt: skip
"""The most lines of each section, in the order in which a summary shows them."""
LISTS: Final = tuple(name for name in MAX_LINES if name != "context")
"""The sections that are lists of lines. The section `context` is one text."""
BASE_WEIGHTS: Final[Mapping[str, int]] = {
    "tasks": 72, "constraints": 86, "decisions": 82, "facts": 40, "context": 38, "actions": 68,
    "commands": 44, "errors": 56, "open_questions": 76,
}  # fmt: skip
FIRST_REQUEST_BONUS: Final = 26
"""Added to the weight of the first request, which all later messages serve."""
LINES_PER_MESSAGE: Final = 40

_DIGIT = re.compile(r"\d")
# Signs between digits stay: 1.5 is not 15.
_NOT_WORD = re.compile(r"(?<!\d)[\W_]+|[\W_]+(?!\d)")
# "Price: 12 EUR" is rarely clear without the lines around it.
_LABELED = re.compile(r"[\w ()/-]{2,30}[:：] ?\S.{0,40}$")


@dataclass(slots=True)
class SummaryLine:
    """A line that may enter a summary. Mutable: merging duplicates raises the weight.

    `order` is the index of the message that the line comes from, -1 for the previous version.
    """

    section: str
    text: str
    weight: float
    order: int


def weight_of(section: str, text: str, kinds: frozenset[SentenceKind] | None = None) -> float:
    """Return how much a line matters, from the line alone. `kinds` saves finding them again."""
    weight = float(BASE_WEIGHTS[section])
    has_digit = _DIGIT.search(text) is not None
    if section == "facts":
        kinds = sentence_kinds(text, is_user=True) if kinds is None else kinds
        weight += 38 if SentenceKind.FACT in kinds else 0
        weight += 8 if has_digit else 0
        weight += 20 if says_name(text) else 0
        weight += 6 if is_lasting(text) else 0
    elif section == "context":
        kinds = sentence_kinds(text, is_user=False) if kinds is None else kinds
        weight += 8 if SentenceKind.RESULT in kinds else 0
        weight += 6 if SentenceKind.DECISION in kinds else 0
        weight += 5 if has_digit else 0
        weight -= 20 if _LABELED.match(text) else 0
    return weight - (10 if is_slight(text) else 0)


def is_slight(text: str) -> bool:
    """Return whether a line is too short to be useful and has no number either."""
    return len(text) < (32 if text.isascii() else 12) and _DIGIT.search(text) is None


def without_duplicates(lines: Iterable[SummaryLine]) -> list[SummaryLine]:
    """Return each line once, at its first place and with its highest weight.

    Two lines are equal if the letters and digits of their first 120 characters are.
    """
    unique: dict[str, SummaryLine] = {}
    for line in lines:
        key = _NOT_WORD.sub("", line.text[:120].casefold())
        if not key:
            continue
        first = unique.get(key)
        if first is None:
            unique[key] = line
        else:
            first.weight = max(first.weight, line.weight)
    return list(unique.values())


def list_texts(stored: Any) -> list[str]:
    """Return the lines of a stored list section; none if it has another shape."""
    if not isinstance(stored, list | tuple):
        return []
    return [item for item in stored if isinstance(item, str) and item.strip()]


def context_lines(stored: Any) -> list[str]:
    """Return the lines of a stored `context` section; none if it is not a text."""
    if not isinstance(stored, str):
        return []
    return [line.strip() for line in stored.split("\n") if line.strip()]
