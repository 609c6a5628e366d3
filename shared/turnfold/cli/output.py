"""Output of commands: tables on a terminal, tab-separated lines in a pipe, JSON on request."""

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import typer
from rich.console import Console

from turnfold.cli.tables import UNSAFE, cell_line, show_table

PIPE_WIDTH = 120
# JSON does not require to escape these, and a terminal obeys them.
_CONTROL_IN_JSON = re.compile(r"[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def console() -> Console:
    """Return a console for stdout; in a pipe it has no colors and a fixed width.

    It prints texts as they are: brackets and colons in ids and paths are not markup.
    """
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(width=width, highlight=False, soft_wrap=False, markup=False, emoji=False)


def show_json(*values: Any) -> None:
    """Print each value as one line of JSON."""
    for value in values:
        text = json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
        text = _CONTROL_IN_JSON.sub(lambda control: f"\\u{ord(control[0]):04x}", text)
        # Published texts may have lone surrogates, which no terminal can show.
        typer.echo(text.encode("utf-8", "backslashreplace").decode())


def print_rows(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    *,
    as_json: bool,
    empty: str,
    texts: Sequence[str] = (),
    headings: int = 1,
) -> None:
    """Print rows with these columns; as JSON, print each whole row on one line.

    For `texts` and `headings`, see `show_table`.
    """
    if as_json:
        show_json(*rows)
        return
    row_list = list(rows)
    if not sys.stdout.isatty():
        print_lines(columns, ([row.get(column) for column in columns] for row in row_list))
        return
    if not row_list:
        typer.echo(empty)
        return
    show_table(console(), title, columns, row_list, texts=texts, headings=headings)


def print_lines(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    """Print the names of columns, then the values of each row on a line, separated by tabs."""
    typer.echo("\t".join(columns))
    for row in rows:
        # A tab or line break inside a value would break columns apart.
        typer.echo("\t".join(map(cell_line, row)))


def counted(number: int, noun: str) -> str:
    """Return a number of things.

    >>> counted(1, "event"), counted(1_200, "event")
    ('1 event', '1,200 events')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """Replace characters that could control the terminal, or turn the direction of its lines."""
    return UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """Replace line breaks, and characters that `printable` replaces, by blanks."""
    return UNSAFE.sub(" ", text).replace("\n", " ").replace("\t", " ")


def clipped(text: str, characters: int) -> str:
    """Return the text; if it exceeds the length, leave out its middle."""
    if len(text) <= characters:
        return text
    head, tail = characters * 2 // 3, characters // 4
    return f"{text[:head]} [… {len(text) - head - tail:,} characters …] {text[-tail:]}"
