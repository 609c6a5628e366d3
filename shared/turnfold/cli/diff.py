"""`turnfold summaries diff`: the differences between two versions of a summary, as lines."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from enum import StrEnum
from itertools import groupby
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.text import Text

from turnfold.cli.names import connected_session
from turnfold.cli.output import clipped, console, one_line, show_json
from turnfold.cli.parameters import Agent, AsJson, SessionName
from turnfold.cli.tables import show_text
from turnfold.client import Summary
from turnfold.core.summary.extractive.lines import LISTS
from turnfold.core.summary.sentences import sentences
from turnfold.errors import Conflict


class Mark(StrEnum):
    """The kind of difference."""

    GONE = "-"
    NEW = "+"
    SAME = " "


Version = Annotated[int, typer.Argument(min=1, metavar="VERSION", help="The number of a version.")]
COLORS = {Mark.GONE: "red", Mark.NEW: "green", Mark.SAME: "dim"}
MAX_LINE_LENGTH = 400
PART_TITLES = {"exact values": "ledger"}
"""Titles that differ from the part's name in the JSON output."""


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
    # Without `autojunk`, which ignores frequent lines of texts with 200 lines or more.
    for what, first, last, begin, end in SequenceMatcher(
        a=list(old), b=list(new), autojunk=False
    ).get_opcodes():
        if what == "equal":
            yield from ((Mark.SAME, text) for text in old[first:last])
        else:
            yield from ((Mark.GONE, text) for text in old[first:last])
            yield from ((Mark.NEW, text) for text in new[begin:end])


def diff(
    agent: Agent,
    session: SessionName,
    before: Version,
    after: Annotated[
        int | None,
        typer.Argument(
            min=1, metavar="OTHER", help="The other version (default: the one in force)."
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also show lines that both versions have.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare two versions: removed and added lines."""
    old, new = asyncio.run(_read_versions(agent, session, before, after))
    lines = differences(old, new)
    if as_json:
        show_json(
            *(
                {"part": part, "change": mark.name.lower(), "text": text}
                for part, mark, text in lines
            )
        )
        return
    _show(console(), old, new, lines, everything=everything)


async def _read_versions(
    agent: str, session: str, before: int, after: int | None
) -> tuple[Summary, Summary]:
    async with connected_session(agent, session) as chosen:
        if after is None:
            after = (await chosen.status()).get("summary_version")
        if after is None:
            raise Conflict("the session has no summary in force; specify two versions")
        return await chosen.summary(before), await chosen.summary(after)


def _show(
    out: Console, old: Summary, new: Summary, lines: Sequence[Line], *, everything: bool
) -> None:
    for summary, mark in ((old, Mark.GONE), (new, Mark.NEW)):
        out.print(Text(f"{mark * 3} {_about(summary)}", style=f"bold {COLORS[mark]}"))
    shown = 0
    for part, part_lines in groupby(lines, key=lambda line: line.part):
        all_lines = list(part_lines)
        changed = [line for line in all_lines if everything or line.mark is not Mark.SAME]
        same = sum(line.mark is Mark.SAME for line in all_lines)
        if changed:
            shown += 1
            out.print(
                Text(f"\n{PART_TITLES.get(part, part)}", style="bold")
                + Text("" if everything or not same else f"  ({same} in both)", style="dim")
            )
        for line in changed:
            text = f"{line.mark} {clipped(one_line(line.text), MAX_LINE_LENGTH)}"
            show_text(out, Text(text, style=COLORS[line.mark]))
    if not shown:
        out.print("\nThe versions do not differ.")


def _about(summary: Summary) -> str:
    author = summary.model if summary.kind == "llm" and summary.model else summary.kind
    covered = summary.covers.get("messages", 0)
    return (
        f"version {summary.version} · {author} · {summary.tokens:,} tokens · {covered:,} messages"
    )
