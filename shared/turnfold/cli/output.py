"""Output of commands: tables on a terminal, tab-separated lines in a pipe, JSON on request."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

PIPE_WIDTH = 120
MIN_COLUMN_WIDTH = 14


def console() -> Console:
    """Return a console for stdout; in a pipe it has no colors and a fixed width."""
    return Console(
        width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, soft_wrap=False
    )


def show_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    typer.echo(
        # Escaped below, because published texts may have lone surrogates, which no terminal can
        # show.
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
    """Print rows with these columns; as JSON, print each whole row on one line."""
    if as_json:
        for row in rows:
            show_json(row)
        return
    row_list = list(rows)
    if not sys.stdout.isatty():
        typer.echo("\t".join(columns))
        for row in row_list:
            # One line per row: white space inside a value would break columns apart.
            typer.echo("\t".join(" ".join(cell(row.get(column)).split()) for column in columns))
        return
    if not row_list:
        typer.echo(empty)
        return
    console().print(build_table(title, columns, row_list))


def build_table(title: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Table:
    """Build a table for a terminal, with numbers right-aligned and counts grouped by thousands."""
    row_list = list(rows)
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        is_number = bool(row_list) and all(
            isinstance(row.get(column), int | float | None) for row in row_list
        )
        widest = max((len(cell(row.get(column))) for row in row_list), default=0)
        table.add_column(
            column.replace("_", " "),
            justify="right" if is_number else "left",
            overflow="fold",
            min_width=min(widest, MIN_COLUMN_WIDTH),
        )
    for row in row_list:
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


def clipped(text: str, characters: int) -> str:
    """Return the text; if it exceeds the length, leave out its middle."""
    if len(text) <= characters:
        return text
    head, tail = characters * 2 // 3, characters // 4
    return f"{text[:head]} [… {len(text) - head - tail:,} characters …] {text[-tail:]}"
