"""Differences between two versions of a summary, as lines."""

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
    """The kind of difference."""

    GONE = "-"
    NEW = "+"
    SAME = " "


class Line(NamedTuple):
    """A line of one part of a summary, and which of the versions contain it."""

    part: str
    mark: Mark
    text: str


def differences(before: Summary, after: Summary) -> list[Line]:
    """Compare two versions part by part; return removed, added and common lines.

    Lines follow the order of the later version. Removed lines keep their place.
    """
    lines: list[Line] = []
    for part, old, new in _parts(before, after):
        lines += [Line(part, mark, text) for mark, text in _compared(old, new)]
    return lines


def _parts(before: Summary, after: Summary) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
    old, new = before.sections, after.sections
    if any(sections.get(name) for sections in (old, new) for name in LISTS):
        for name in LISTS:
            yield name.replace("_", " "), _entries(old.get(name)), _entries(new.get(name))
        yield "context", _sentences(old.get("context")), _sentences(new.get("context"))
    else:
        yield "text", _sentences(before.text), _sentences(after.text)
    yield "files", _files(old.get("file_changes")), _files(new.get("file_changes"))
    yield "exact values", before.ledger, after.ledger


def _sentences(prose: Any) -> list[str]:
    return list(sentences(str(prose or "")))


def _entries(value: Any) -> list[str]:
    return [str(entry) for entry in value] if isinstance(value, list | tuple) else []


def _files(value: Any) -> list[str]:
    changes = (
        [change for change in value if isinstance(change, Mapping)]
        if isinstance(value, list | tuple)
        else []
    )
    return [f"{change.get('path')} ({change.get('action')})" for change in changes]


def _compared(old: Sequence[str], new: Sequence[str]) -> Iterable[tuple[Mark, str]]:
    for what, first, last, begin, end in SequenceMatcher(
        a=list(old), b=list(new), autojunk=False
    ).get_opcodes():
        if what == "equal":
            yield from ((Mark.SAME, text) for text in old[first:last])
        else:
            yield from ((Mark.GONE, text) for text in old[first:last])
            yield from ((Mark.NEW, text) for text in new[begin:end])
