"""Pages about the versions of a session's summary."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any, NamedTuple

from starlette.responses import Response

from turnfold.messages import MOST_INT32
from turnfold_query.console.views import PageView, redirect


async def versions(view: PageView) -> Response:
    """Show all versions, newest first."""
    listed = (await view.get_session("/summaries"))["summaries"]
    return view.page(
        "versions.html",
        counts=await view.get_session(),
        tab="versions",
        session_path=view.session_path,
        versions=listed[::-1],
        in_force=next((row["version"] for row in listed if row["in_force"]), None),
        did=view.text("did"),
    )


async def version(view: PageView) -> Response:
    """Show the text and the ledger of a version, and the sources of a line or an entry."""
    number = view.number("version")
    entry, line = view.whole("entry", most=MOST_INT32), view.whole("line", most=MOST_INT32)
    chosen = await view.get_session(f"/summaries/{number}")
    sources = None
    if entry is not None or line is not None:
        where = {"entry": entry} if entry is not None else {"line": line}
        sources = await view.get_session(f"/summaries/{number}/sources", **where)
    return view.page(
        "version.html",
        counts=await view.get_session(),
        tab="versions",
        session_path=view.session_path,
        version=chosen,
        # As the API counts them: `splitlines` also divides within these lines.
        lines=chosen["text"].split("\n") if chosen["text"] else [],
        sources=sources,
        entry=entry,
        line=line,
        did=view.text("did"),
    )


async def compare(view: PageView) -> Response:
    """Show two versions side by side."""
    before, after = view.whole("before", most=MOST_INT32), view.whole("after", most=MOST_INT32)
    if not before or not after:
        return redirect(f"{view.session_path}/versions")
    old = await view.get_session(f"/summaries/{before}")
    new = await view.get_session(f"/summaries/{after}")
    return view.page(
        "compare.html",
        counts=await view.get_session(),
        tab="versions",
        session_path=view.session_path,
        before=old,
        after=new,
        # In a thread, because long texts that differ take long to compare.
        sections=await asyncio.to_thread(compared, old, new),
    )


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
    for operation, first, last, begin, end in matcher.get_opcodes():
        if operation == "equal":
            yield from (Row("same", text, text) for text in old[first:last])
            continue
        for left, right in zip_longest(old[first:last], new[begin:end]):
            kind = "gone" if right is None else "new" if left is None else "changed"
            yield Row(kind, left, right)
