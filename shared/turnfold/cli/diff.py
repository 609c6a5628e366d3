"""How two versions of a summary differ, as lines that a person reads."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from enum import StrEnum
from typing import Any, NamedTuple

from turnfold.client import Summary
from turnfold.core.summary.sentences import sentences

LISTS = (
    "tasks",
    "constraints",
    "decisions",
    "facts",
    "actions",
    "commands",
    "errors",
    "open_questions",
)


class Mark(StrEnum):
    """What became of a line."""

    GONE = "-"
    NEW = "+"
    SAME = " "


class Line(NamedTuple):
    """A line of one part of a summary, and whether both versions have it."""

    part: str
    mark: Mark
    text: str


def differences(before: Summary, after: Summary) -> list[Line]:
    """Part by part: the lines that are gone, new, or in both; in the order of the later version, the gone ones where they stood."""
    found: list[Line] = []
    for part, old, new in _parts(before, after):
        found += [Line(part, mark, text) for mark, text in _compared(old, new)]
    return found


def _parts(before: Summary, after: Summary) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
    old, new = before.sections, after.sections
    if any(one.get(name) for one in (old, new) for name in LISTS):
        for name in LISTS:
            yield name.replace("_", " "), _entries(old.get(name)), _entries(new.get(name))
        yield "context", _told(old.get("context")), _told(new.get("context"))
    else:
        yield "text", _told(before.text), _told(after.text)
    yield "files", _files(old.get("file_changes")), _files(new.get("file_changes"))
    yield "exact values", before.ledger, after.ledger


def _told(prose: Any) -> list[str]:
    return list(sentences(str(prose or "")))


def _entries(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list | tuple) else []


def _files(value: Any) -> list[str]:
    changes = (
        [one for one in value if isinstance(one, Mapping)]
        if isinstance(value, list | tuple)
        else []
    )
    return [f"{one.get('path')} ({one.get('action')})" for one in changes]


def _compared(old: Sequence[str], new: Sequence[str]) -> Iterable[tuple[Mark, str]]:
    for what, first, last, begin, end in SequenceMatcher(
        a=list(old), b=list(new), autojunk=False
    ).get_opcodes():
        if what == "equal":
            yield from ((Mark.SAME, text) for text in old[first:last])
        else:
            yield from ((Mark.GONE, text) for text in old[first:last])
            yield from ((Mark.NEW, text) for text in new[begin:end])
