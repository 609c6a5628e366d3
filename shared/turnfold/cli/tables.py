"""Tables for a terminal of any width: nothing is cut off, and no id is broken.

A table that is wider than the terminal becomes a block of lines for each row.
"""

import json
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

GAP = 2
INDENT = 2
LEAST_TEXT_WIDTH = 24
"""The width below which a column of text would be hard to read."""
LABELS = {
    "agent_id": "agent",
    "session_id": "session",
    "messages_total": "messages",
    "messages_live": "live",
    "messages_pending": "pending",
    "messages_covered": "covered",
    "tokens_total": "tokens",
    "summary_version": "version",
    "summary_versions": "versions",
    "last_event_at": "last event",
    "created_at": "created",
    "covers_messages": "covers",
    "dead_letter_id": "id",
    "stream_seq": "seq",
    "size_bytes": "bytes",
}
"""Headings that are shorter than the names of their columns."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]+")
UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that control a terminal, or turn the direction of its lines."""
TIME = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d(?:\.\d+)?)Z")

Row = Mapping[str, Any]


def show_table(
    out: Console,
    title: str,
    columns: Sequence[str],
    rows: Iterable[Row],
    *,
    texts: Sequence[str] = (),
    headings: int = 1,
    as_blocks: bool = False,
) -> None:
    """Print rows as a table, or as blocks if the table does not fit or `as_blocks` is set.

    Columns in `texts` wrap between words; all others stay on one line. Columns without a value in
    any row are left out. The first `headings` columns are the first line of a block, and the first
    of the texts needs no label in it. Times are UTC.
    """
    row_list = list(rows)
    shown = [
        name
        for number, name in enumerate(columns)
        if number < headings or any(cell(row.get(name)) for row in row_list)
    ]
    if title:
        out.print(Text(title, style="bold italic"))
    widths = {name: _least_width(name, row_list, is_text=name in texts) for name in shown}
    spare = out.width - sum(widths.values()) - GAP * (len(shown) - 1)
    if not as_blocks and spare >= 0:
        _widen_texts(widths, row_list, texts, spare)
        out.print(_table(widths, row_list, texts))
        return
    for row in row_list:
        _show_block(out, shown, row, headings, unlabeled=texts[:1])


def show_text(out: Console, text: Text, *, indent: int = 0) -> None:
    """Print text with this indentation; break lines between words only."""
    width = max(out.width - indent, 1)
    for line in text.split("\n", allow_blank=True):
        line.expand_tabs(4)
        for part in line.divide(_breaks(line.plain, width)):
            part.rstrip()
            # Neither wrapped nor cropped again: a longer word is left to the terminal.
            out.print(Text(" " * indent) + part, soft_wrap=True)


def _breaks(line: str, width: int) -> list[int]:
    """Return where a line breaks. Wide characters, as in Chinese, need no spaces between them."""
    breaks: list[int] = []
    used = 0
    for word in re.finditer(r"\s*\S+", line):
        pieces = list(word[0]) if _has_wide(word[0]) else [word[0]]
        place = word.start()
        for piece in pieces:
            # White space that is left over stands at the end of a line.
            if used and used + cell_len(piece.rstrip()) > width and not piece.isspace():
                begin = place + len(piece) - len(piece.lstrip())
                breaks.append(begin)
                used = cell_len(piece.lstrip())
            else:
                used += cell_len(piece)
            place += len(piece)
    return breaks


def _has_wide(word: str) -> bool:
    # The marks of vowels in Arabic have no width of their own, and do not make a word wide.
    return cell_len(word) != len(word) and any(cell_len(character) > 1 for character in word)


def label(column: str) -> str:
    """Return the heading of a column."""
    return LABELS.get(column, column.replace("_", " "))


def _least_width(name: str, rows: Sequence[Row], *, is_text: bool) -> int:
    cells = [_shown(name, row) for row in rows]
    heading = max(map(cell_len, label(name).split()), default=0)
    widest = max(map(cell_len, cells), default=0)
    if is_text:
        longest_word = max((cell_len(word) for text in cells for word in text.split()), default=0)
        widest = max(longest_word, min(widest, LEAST_TEXT_WIDTH))
    return max(heading, widest)


def _widen_texts(
    widths: dict[str, int], rows: Sequence[Row], texts: Sequence[str], spare: int
) -> None:
    """Share the spare width between columns of text, at most to what their widest cell needs.

    Left to it, Rich shrinks a column below its longest word, and then crops what has no room.
    """
    wanted = {
        name: max((cell_len(_shown(name, row)) for row in rows), default=0) - widths[name]
        for name in texts
        if name in widths
    }
    for rank, name in enumerate(sorted(wanted, key=wanted.__getitem__)):
        added = max(min(wanted[name], spare // (len(wanted) - rank)), 0)
        widths[name] += added
        spare -= added


def _table(widths: Mapping[str, int], rows: Sequence[Row], texts: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for name, width in widths.items():
        is_number = bool(rows) and all(
            isinstance(row.get(name), int | float | None) for row in rows
        )
        table.add_column(
            "\n".join(textwrap.wrap(label(name), max(width, 1))),
            justify="right" if is_number else "left",
            vertical="top",
            no_wrap=name not in texts,
            width=width,
        )
    for row in rows:
        table.add_row(*(Text(_shown(name, row)) for name in widths))
    return table


def _show_block(
    out: Console, columns: Sequence[str], row: Row, headings: int, *, unlabeled: Sequence[str]
) -> None:
    heading = [
        f"{label(name)} {_shown(name, row)}"
        if isinstance(row.get(name), int)
        else _shown(name, row)
        for name in columns[:headings]
    ]
    show_text(out, Text("  ".join(filter(None, heading)), style="bold"))
    line = Text()
    for name in columns[headings:]:
        if not (value := _shown(name, row)):
            continue
        pair = Text.assemble(("" if name in unlabeled else f"{label(name)} ", "dim"), value)
        if line and line.cell_len + 3 + pair.cell_len > out.width - INDENT:
            show_text(out, line, indent=INDENT)
            line = Text()
        line = Text("   ").join([line, pair]) if line else pair
    if line:
        show_text(out, line, indent=INDENT)


def _shown(column: str, row: Row) -> str:
    """Return the text of a value, with counts grouped by thousands."""
    value = row.get(column)
    is_count = (
        isinstance(value, int)
        and not isinstance(value, bool)
        and not column.endswith(("_id", "_seq"))
    )
    if is_count:
        return f"{value:,}"
    return TIME.sub(r"\1 \2", UNSAFE.sub("\N{REPLACEMENT CHARACTER}", cell_line(value)))


def cell_line(value: Any) -> str:
    """Return the text of one value on one line, without characters that control a terminal.

    Ids have no such characters, and are not changed.
    """
    return _CONTROL.sub(" ", cell(value))


def cell(value: Any) -> str:
    """Return the text of one value."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case str():
            return value
        case _:
            return json.dumps(value, ensure_ascii=False)
