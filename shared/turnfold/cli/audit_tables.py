"""Audit rows on a terminal: a short table for each session, or every field of each row."""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.text import Text

from turnfold.cli.tables import Row, cell, show_table, show_text

COLUMNS = ("time", "phase", "what", "tokens_before", "tokens_after", "seal")
SEAL_CHARACTERS = 8
FIRST = ("at", "phase")
NEXT = ("actor", "compaction_id", "reason", "tokens_before", "tokens_after")
LAST = ("audit_id", "ordinal", "hash", "prev_hash")
KNOWN = {"agent_id", "session_id", "at_ms", "details", *FIRST, *NEXT, *LAST}


def with_fields(row: Row) -> dict[str, Any]:
    """Return an audit row with its details as fields instead of as a JSON text."""
    return {**row, "details": json.loads(row["details"])}


def show_trails(out: Console, rows: Iterable[Row], *, details: bool) -> None:
    """Print rows in order of time, a table for each stretch of rows of one session."""
    for number, (key, trail) in enumerate(
        groupby(rows, lambda row: (row["agent_id"], row["session_id"]))
    ):
        if number:
            out.print()
        title = " / ".join(key)
        if details:
            show_text(out, Text(title, style="bold italic"))
            for row in trail:
                _show_details(out, with_fields(row))
        else:
            show_trail(out, title, list(trail))


def show_trail(out: Console, title: str, rows: Sequence[Row]) -> None:
    """Print a table with the time of day of each row, what happened, and the start of its hash."""
    table: list[Row] = []
    day = ""
    for row in rows:
        if row["at"][:10] != day:
            day = row["at"][:10]
            table.append({"time": day})
        table.append(_summarized(row))
    show_table(out, title, COLUMNS, table, texts=("what",), headings=2)


def _summarized(row: Row) -> dict[str, Any]:
    return {
        **row,
        "time": str(row["at"])[11:23],
        "what": _description(row["phase"], row.get("reason"), json.loads(row["details"])),
        "seal": row["hash"][:SEAL_CHARACTERS],
    }


def _description(phase: str, reason: str | None, details: Mapping[str, Any]) -> str:
    words: list[str] = []
    match phase:
        case "selective_start":
            words = [f"{details.get('trigger')}: {details.get('live') or 0} live"]
        case "evicted":
            evicted, kept = details.get("evicted") or 0, details.get("kept") or 0
            words = [f"{details.get('trigger')}: {evicted} of {evicted + kept} evicted"]
        case "summary_start" | "attempt_failed":
            words = [f"attempt {details['attempt']}"] if "attempt" in details else []
        case "summary_done" | "selective_done" | "promoted" | "restored":
            version = details.get("version")
            words = ["no version" if version is None else f"version {version}"]
            words += [details["kind"]] if details.get("kind") else []
        case _:
            words = [
                f"{name.replace('_', ' ')} {_value(value)}"
                for name, value in details.items()
                if value not in (None, "") and name != "session_model"
            ][:3]
    return ", ".join([*words, *([reason] if reason else [])])


def _value(value: Any) -> str:
    """Return the text of a detail: numbers of a policy as NAME=VALUE, as commands take them."""
    if not isinstance(value, Mapping):
        return cell(value)
    return " ".join(
        f"{name}={'null' if number is None else cell(number)}" for name, number in value.items()
    )


def _show_details(out: Console, row: Row) -> None:
    """Print every field of a row that has a value."""
    extra = {name: value for name, value in row.items() if name not in KNOWN}
    fields = {name: row.get(name) for name in (*FIRST, *NEXT)} | row["details"] | extra
    fields |= {name: row.get(name) for name in LAST}
    columns = list(fields)
    blocks = {name: _value(value) for name, value in fields.items()}
    show_table(out, "", columns, [blocks], headings=len(FIRST), as_blocks=True)
