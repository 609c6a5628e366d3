"""Two versions of a summary side by side."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple


class Row(NamedTuple):
    """Lines beside each other; `kind` is same, changed, gone or new. None where there is none."""

    kind: str
    before: str | None
    after: str | None


class Section(NamedTuple):
    """A part of both versions, and how many of its lines differ."""

    title: str
    rows: Sequence[Row]
    changes: int


def compared(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Section]:
    """Compare the texts and the ledgers of two versions, line by line."""
    pairs = (
        ("Text", before["text"].splitlines(), after["text"].splitlines()),
        ("Exact values", before["ledger"], after["ledger"]),
    )
    return [_section(title, old, new) for title, old, new in pairs if old or new]


def _section(title: str, old: Sequence[str], new: Sequence[str]) -> Section:
    rows = list(_rows(old, new))
    return Section(title, rows, sum(row.kind != "same" for row in rows))


def _rows(old: Sequence[str], new: Sequence[str]) -> Iterator[Row]:
    matcher = SequenceMatcher(a=list(old), b=list(new), autojunk=False)
    for kind, first, last, begin, end in matcher.get_opcodes():
        if kind == "equal":
            yield from (Row("same", text, text) for text in old[first:last])
            continue
        gone, added = old[first:last], new[begin:end]
        for number in range(max(len(gone), len(added))):
            left = gone[number] if number < len(gone) else None
            right = added[number] if number < len(added) else None
            yield Row(
                "gone" if right is None else "new" if left is None else "changed", left, right
            )
