"""How commands show what they found: tables on a terminal, tab-separated lines in a pipe, JSON where asked."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

PIPE_WIDTH = 120
MIN_WIDTH = 14


def console() -> Console:
    """Standard output as people read it; in a pipe without colours and with a fixed width."""
    return Console(
        width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, soft_wrap=False
    )


def show_json(value: Any) -> None:
    """One value on one line."""
    typer.echo(
        json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
        .encode("utf-8", "backslashreplace")
        .decode()
    )


def print_rows(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    *,
    as_json: bool,
    empty: str,
) -> None:
    """Rows of these columns; as JSON each row stands whole on a line of its own, whatever the columns."""
    if as_json:
        for row in rows:
            show_json(row)
        return
    found = list(rows)
    if not sys.stdout.isatty():
        typer.echo("\t".join(columns))
        for row in found:
            typer.echo("\t".join(" ".join(cell(row.get(column)).split()) for column in columns))
        return
    if not found:
        typer.echo(empty)
        return
    console().print(build_table(title, columns, found))


def build_table(title: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Table:
    """A table for a terminal; numbers stand to the right, and those that count something with their thousands apart."""
    found = list(rows)
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        is_number = bool(found) and all(
            isinstance(row.get(column), int | float | None) for row in found
        )
        widest = max((len(cell(row.get(column))) for row in found), default=0)
        table.add_column(
            column.replace("_", " "),
            justify="right" if is_number else "left",
            overflow="fold",
            min_width=min(widest, MIN_WIDTH),
        )
    for row in found:
        table.add_row(*(escape(_counted(column, row.get(column))) for column in columns))
    return table


def _counted(column: str, value: Any) -> str:
    is_count = (
        isinstance(value, int)
        and not isinstance(value, bool)
        and not column.endswith(("_id", "_seq"))
    )
    return f"{value:,}" if is_count else cell(value)


def cell(value: Any) -> str:
    """One value as a reader wants it."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case str():
            return value
        case _:
            return json.dumps(value, ensure_ascii=False)


def clipped(text: str, characters: int) -> str:
    """The text with its middle left out where it is longer than that."""
    if len(text) <= characters:
        return text
    head, tail = characters * 2 // 3, characters // 4
    return f"{text[:head]} [… {len(text) - head - tail:,} characters …] {text[-tail:]}"
