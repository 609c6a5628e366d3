"""`turnfold context --explain`: how a window shows each message of its session, or why not."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from rich.text import Text

from turnfold.cli.output import console, show_json
from turnfold.cli.tables import show_table, show_text
from turnfold.client import StoredMessage, Window

FORMS = {
    "whole": "whole",
    "cut": "shortened",
    "line": "shortened to a line",
    "mended": "rewritten, nothing omitted",
}
COLUMNS = ("messages", "first", "last", "state", "shown")
LONGEST_LIST = 3
"""The most neighboring messages with the same explanation that have a row each."""


class Explanation(NamedTuple):
    """A message of the session: its state, and how a window shows it or why it does not."""

    message_id: str
    position: int
    role: str
    state: str
    is_shown: bool
    shown: str


def explanations(window: Window, messages: Iterable[StoredMessage]) -> list[Explanation]:
    """Explain every message of a session; `window` has been asked for with `entries`."""
    shown: dict[str, str] = {}
    for entry in window.entries or ():
        ids = entry["id"] if isinstance(entry["id"], list) else [entry["id"]]
        without = f", without {', '.join(entry['without'])}" if entry.get("without") else ""
        shown |= {id: FORMS[entry["form"]] + without for id in ids if id and entry["form"] in FORMS}
    recalled = set[str]((window.raw.get("recall") or {}).get("message_ids") or ())
    return [
        Explanation(
            stored.message_id,
            stored.position,
            str(stored.message.get("role")),
            stored.state,
            stored.message_id in shown,
            shown.get(stored.message_id)
            or _absence(stored, window, is_recalled=stored.message_id in recalled),
        )
        for stored in messages
    ]


def _absence(stored: StoredMessage, window: Window, *, is_recalled: bool) -> str:
    """Return why a window does not show a message, and what speaks for it instead."""
    match stored.state:
        case "retracted":
            reason = "not shown: retracted"
        case "covered":
            version = f" version {window.summary.version}" if window.summary else ""
            reason = f"not shown: summary{version} covers it"
        case "pending":
            reason = "not shown: waits for a summary, counted by a digest"
        case _:
            reason = "not shown: no room in the budget"
            if window.account.folded_told:
                reason += ", counted by a digest"
    return f"{reason}, quoted by recall" if is_recalled else reason


def show_explanations(explained: Sequence[Explanation], window: Window, *, as_json: bool) -> None:
    """Print a row for each shown message and for each stretch of others; as JSON, for each."""
    if as_json:
        show_json(*(explanation._asdict() for explanation in explained))
        return
    rows: list[dict[str, Any]] = []
    for _, stretch in groupby(explained, lambda one: (one.is_shown, one.state, one.shown)):
        group = list(stretch)
        if len(group) <= LONGEST_LIST or group[0].is_shown:
            rows += [_row([one]) for one in group]
        else:
            rows.append(_row(group))
    out = console()
    title = f"{window.tokens:,} tokens"
    if window.budget_tokens is not None:
        title = f"{window.tokens:,} of {window.budget_tokens:,} tokens"
    show_table(out, title, COLUMNS, rows, texts=("shown",), headings=3)
    if window.summary is not None:
        summary = window.summary
        show_text(
            out,
            Text(
                f"summary version {summary.version}: {summary.tokens:,} tokens"
                f"{summary_note(window)}",
                style="dim",
            ),
        )


def summary_note(window: Window) -> str:
    """Return what a window left out of its summary, to follow the summary's description."""
    summary = window.summary
    if summary is None or not window.raw["summary"].get("trimmed"):
        return ""
    if summary.text or summary.ledger:
        return " · shortened to fit the budget"
    return " · left out: no room in the budget"


def _row(group: Sequence[Explanation]) -> dict[str, Any]:
    first, last = group[0], group[-1]
    return {
        "messages": first.role if len(group) == 1 else f"{len(group):,} messages",
        "first": first.message_id,
        "last": last.message_id if len(group) > 1 else None,
        "state": first.state,
        "shown": first.shown,
    }
