"""`turnfold context --explain`: how a window shows each message of its session, or why not."""

import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

from rich.text import Text

from turnfold.cli.output import console, print_rows, show_json
from turnfold.cli.tables import show_text
from turnfold.client import StoredMessage, Window
from turnfold.core.history.pairing import CallPosition, ResultPosition, match_results
from turnfold.core.shapes.responses import REASONING, kind_of
from turnfold.core.text.calls import call_entries, called_tool
from turnfold.core.text.json_text import compact
from turnfold.messages import Role

FORMS = {
    "whole": "whole",
    "cut": "shortened",
    "line": "shortened to a line",
    "mended": "rewritten",
}
COLUMNS = ("messages", "first", "last", "state", "shown")
UNPAIRED = {False: "its call is not stored", True: "its call has another result"}
"""The reason a result answers no call, by whether its id has calls: none of them is open then."""
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


def explanations(window: Window, messages: Sequence[StoredMessage]) -> list[Explanation]:
    """Explain every message of a session; `window` has been asked for with `entries`."""
    shown: dict[str, str] = {}
    for entry in window.entries or ():
        ids = entry["id"] if isinstance(entry["id"], list) else [entry["id"]]
        without = f", without {', '.join(entry['without'])}" if entry.get("without") else ""
        shown |= {id: FORMS[entry["form"]] + without for id in ids if id and entry["form"] in FORMS}
    placeless = _placeless(messages)
    recalled = set[str]((window.raw.get("recall") or {}).get("message_ids") or ())
    return [
        Explanation(
            stored.message_id,
            stored.position,
            str(stored.message.get("role")),
            stored.state,
            stored.message_id in shown,
            shown.get(stored.message_id)
            or _absence(
                stored,
                window,
                placeless.get(stored.position),
                is_recalled=stored.message_id in recalled,
            ),
        )
        for stored in messages
    ]


def _placeless(messages: Sequence[StoredMessage]) -> dict[int, str]:
    """Return why messages have no place in a window of any budget, by their positions."""
    systems: list[int] = []
    evicted = {stored.position for stored in messages if stored.state != "live"}
    calls: defaultdict[str, list[CallPosition]] = defaultdict(list)
    results: defaultdict[str, list[ResultPosition]] = defaultdict(list)
    for stored in messages:
        if stored.state == "retracted":
            continue
        position, message = stored.position, stored.message
        role = message.get("role")
        if role in (Role.SYSTEM, Role.DEVELOPER) and stored.message_id.endswith("#0"):
            systems.append(position)
        elif role == Role.TOOL:
            content = compact(message.get("content")).encode("utf-8", "surrogatepass")
            results[str(message.get("tool_call_id"))].append(ResultPosition(position, content))
        for slot, entry in enumerate(call_entries(message)):
            if called_tool(entry):
                calls[str(entry.get("id"))].append(CallPosition(position, slot))
    placeless = dict.fromkeys(systems[:-1], "replaced by a newer system message")
    placeless |= dict.fromkeys(_unfollowed(messages), "no item of its response follows")
    for call_id, of_call in results.items():
        for position, match in match_results(calls[call_id], of_call).items():
            if match.is_copy:
                placeless[position] = "copy of another result"
            elif match.answers is None:
                placeless[position] = UNPAIRED[bool(calls[call_id])]
            elif match.answers.position in evicted:
                placeless[position] = "its call left the window before it came"
    return placeless


def _unfollowed(messages: Sequence[StoredMessage]) -> list[int]:
    """Return the positions of reasoning items that no item of their response follows."""
    positions: list[int] = []
    is_followed = False
    for stored in reversed(messages):
        if stored.state == "retracted":
            continue
        if kind_of(stored.element or {}) != REASONING:
            is_followed = stored.message.get("role") == Role.ASSISTANT
        elif not is_followed:
            positions.append(stored.position)
    return positions


def _absence(
    stored: StoredMessage, window: Window, placeless: str | None, *, is_recalled: bool
) -> str:
    """Return why a window does not show a message, and what represents it instead."""
    match stored.state:
        case "retracted":
            reason = "not shown: retracted"
        case "covered":
            version = f" version {window.summary.version}" if window.summary else ""
            reason = f"not shown: summary{version} covers it"
        case "pending":
            reason = "not shown: waits for a summary, counted by a digest"
        case _ if placeless:
            reason = f"not shown: {placeless}"
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
    for _, stretch in groupby(
        explained, lambda message: (message.is_shown, message.state, message.shown)
    ):
        group = list(stretch)
        if len(group) <= LONGEST_LIST or group[0].is_shown:
            rows += [_row([message]) for message in group]
        else:
            rows.append(_row(group))
    title = f"{window.tokens:,} tokens"
    if window.budget_tokens is not None:
        title = f"{window.tokens:,} of {window.budget_tokens:,} tokens"
    print_rows(
        title,
        COLUMNS,
        rows,
        as_json=False,
        empty="The session has no messages.",
        texts=("shown",),
        headings=2,
    )
    if window.summary is not None and sys.stdout.isatty():
        summary = window.summary
        show_text(
            console(),
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
