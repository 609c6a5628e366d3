"""`turnfold context`: a readable view of the window for the model."""

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from turnfold.cli.explain import explanations, show_explanations, summary_note
from turnfold.cli.names import connected_session
from turnfold.cli.output import clipped, console, printable, show_json
from turnfold.cli.parameters import Agent, SessionName
from turnfold.cli.tables import show_text
from turnfold.client import StoredMessage, Summary, Window
from turnfold.core.shapes.responses import REASONING, chat_views, kind_of
from turnfold.core.text.calls import call_texts
from turnfold.core.text.json_text import compact
from turnfold.core.text.tokens import is_media, spoken_text
from turnfold.core.window.framing import Placement
from turnfold.errors import Conflict
from turnfold.messages import Json, WindowFormat

CLIP = 600
MAX_LINES = 40
MAX_ENTRIES = 12
UNLIMITED = 1 << 30
FULL: dict[str, Any] = {"lines": UNLIMITED, "entries": UNLIMITED, "characters": UNLIMITED}
BODY_INDENT = 10
MOST_READINGS = 10
"""How often a window is read again because its session changed while its history was read."""
EMPTY_ARGUMENTS = ("", "{}", "null")
GENERATED = {
    "stand_in": "stands for a missing result",
    "summary": "the summary",
    "digest": "digest of messages that are not shown",
    "recall": "recalled from messages that are not shown",
}
"""Messages of a window that are not stored, by their form."""
SHORTENED = {"cut": "shortened", "line": "shortened to a line"}
ROLE_COLORS = {
    "system": "magenta",
    "developer": "magenta",
    "user": "green",
    "assistant": "cyan",
    "tool": "yellow",
}


Explain = Annotated[
    bool,
    typer.Option(
        "--explain", help="Show how each message appears in the window, or why it does not."
    ),
]


def context(  # noqa: PLR0917  # a parameter for each option
    agent: Agent,
    session: SessionName,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="TOKENS", help="Budget of the whole window, including the summary."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Model that will read the window (default: that of the newest event).",
        ),
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="Show the window as of a message id, RFC 3339 time or summary version.",
        ),
    ] = None,
    shape: Annotated[
        WindowFormat, typer.Option("--format", help="Format of the messages.")
    ] = "openai",
    placement: Annotated[
        Placement, typer.Option(help="Position of the summary.")
    ] = Placement.SEPARATE,
    explain: Explain = False,
    full: Annotated[bool, typer.Option("--full", help="Do not shorten long texts.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the answer as one JSON object.")
    ] = False,
) -> None:
    """Show the model's next input: the summary, then the messages after it."""
    fields = {
        "max_tokens": max_tokens,
        "model": model,
        "as_of": as_of,
        "format": shape,
        "placement": str(placement),
        "follow_budget": False,
    }
    if explain:
        window, messages = asyncio.run(_explained(agent, session, **fields))
        show_explanations(explanations(window, messages), window, as_json=as_json)
        return
    # Entries serve the headings; with --json, the answer is that of a request without them.
    window = asyncio.run(_window(agent, session, **fields, entries=None if as_json else True))
    if as_json:
        show_json(window.raw)
    else:
        out = console()
        if shape == "responses":
            window = replace(window, messages=[_as_chat(item) for item in window.messages])
        show_window(out, window, as_of=as_of, is_full=full)
        if not full and _is_clipped(window):
            hint = "This command shortens long texts; --full prints all that the model reads."
            show_text(out, Text(hint, style="dim"))


async def _window(agent: str, session: str, **fields: Any) -> Window:
    async with connected_session(agent, session) as chosen:
        window = await chosen.context(**fields)
        if not window.account.total:
            # An empty window is not an error, but a wrong name is.
            await chosen.status()
        return window


async def _explained(agent: str, session: str, **fields: Any) -> tuple[Window, list[StoredMessage]]:
    async with connected_session(agent, session) as chosen:
        window = await chosen.context(**fields, entries=True)
        for _ in range(MOST_READINGS):
            originals = chosen.originals(include_retracted=True, as_of=fields["as_of"])
            messages = [stored async for stored in originals]
            known, window = window, await chosen.context(**fields, entries=True, known=window)
            if window is known:
                return window, messages
        raise Conflict("the session changes while it is read; repeat, or set --as-of")


def show_window(
    out: Console,
    window: Window,
    *,
    with_summary: bool = True,
    last: int | None = None,
    as_of: str | None = None,
    is_full: bool = False,
) -> None:
    """Print the summary, the messages (or the `last` ones) with their roles, and the account.

    With `is_full`, long texts are not shortened. `as_of` names the moment in a sentence.
    """
    limit = UNLIMITED if is_full else CLIP
    if window.summary is not None and with_summary:
        limits: dict[str, Any] = FULL if is_full else {}
        show_summary(out, window.summary, note=summary_note(window), **limits)
    if not window.messages:
        out.print(
            "No messages yet. Publish a turn to this session."
            if as_of is None
            else f"The session had no messages as of {as_of}. Give a later time.",
            soft_wrap=True,
        )
    if window.system:
        show_message(out, {"role": "system", "content": window.system}, "apart", limit=limit)
    entries = window.entries or [{}] * len(window.messages)
    shown = list(zip(window.messages, window.message_ids, entries, strict=False))
    for message, message_id, entry in shown if last is None else shown[-last:]:
        show_message(
            out, message, _heading(message_id, entry), without=entry.get("without"), limit=limit
        )
    show_text(out, Text(account_line(window), style="dim"))


def _as_chat(item: Json) -> dict[str, Any]:
    """Return an item of the Responses API as a chat message, which is shown whole."""
    (view,) = chat_views([item], [""])
    reasoning = {"reasoning_content": view.extra} if kind_of(item) == REASONING else {}
    return view.message | reasoning


def _heading(message_id: Any, entry: Mapping[str, Any]) -> str:
    """Return the id of a message of a window, and what is left out of it."""
    ids = [message_id] if isinstance(message_id, str) else message_id or ()
    text = ", ".join(filter(None, ids))
    if not text:
        text = GENERATED.get(str(entry.get("form")), "generated for the window")
    notes = [SHORTENED[entry["form"]]] if entry.get("form") in SHORTENED else []
    if without := entry.get("without"):
        notes.append(f"without {', '.join(without)}")
    return " · ".join([text, *notes])


def show_summary(
    out: Console,
    summary: Summary,
    *,
    note: str = "",
    lines: int = MAX_LINES,
    entries: int = MAX_ENTRIES,
    characters: int = CLIP,
) -> None:
    """Print a version, with limits for the lines of text and the ledger entries.

    `note` follows the description in the heading.
    """
    covered = summary.covers.get("messages")
    about = [
        f"summary, version {summary.version}",
        summary.kind,
        f"{summary.tokens:,} tokens",
        f"covers {covered:,} messages" if covered else "",
    ]
    show_text(out, Text(" · ".join(filter(None, about)) + note, style="bold blue"))
    text = [clipped(printable(line), characters) for line in summary.text.strip().splitlines()]
    if text:
        show_text(out, Text("\n".join(text[:lines]) + _more(text, lines, "lines")), indent=2)
    if summary.ledger:
        values = [f"· {clipped(printable(entry), characters)}" for entry in summary.ledger]
        more = _more(values, entries, "entries")
        show_text(out, Text("ledger", style="dim"), indent=2)
        show_text(out, Text("\n".join(values[:entries]) + more, style="dim"), indent=2)
    out.print()


def _is_clipped(window: Window) -> bool:
    """Return whether `show_window` leaves out a part of the window unless it prints it in full."""
    texts = [window.system or ""]
    texts += [text for message in window.messages for text, _ in _parts(message, ())]
    if window.summary is not None:
        lines, ledger = window.summary.text.strip().splitlines(), window.summary.ledger
        if len(lines) > MAX_LINES or len(ledger) > MAX_ENTRIES:
            return True
        texts += [*lines, *ledger]
    return any(len(text.strip()) > CLIP for text in texts)


def _more(entries: Sequence[str], shown: int, what: str) -> str:
    return f"\n… and {len(entries) - shown} more {what}" if len(entries) > shown else ""


def account_line(window: Window) -> str:
    """Return one line that counts the session's messages by state and treatment."""
    account = window.account
    budget = f" of {window.budget_tokens:,}" if window.budget_tokens is not None else ""
    places = {
        "shown": account.shown,
        "of which trimmed": account.trimmed,
        "folded": account.folded,
        "in the summary": account.covered,
        "pending, shown": account.pending_shown,
        "pending, digested": account.pending_digested,
        "recalled": account.recalled,
        "synthesised": account.synthesised,
        "untold": account.untold,
    }
    counts = ", ".join(f"{count:,} {place}" for place, count in places.items() if count)
    freshness = "" if window.fresh else " · not fresh yet"
    tokens = f"{window.tokens:,}{budget} tokens"
    return f"{tokens} · {account.total:,} messages: {counts or 'none'}{freshness}"


def show_message(
    out: Console,
    message: Mapping[str, Any],
    heading: str,
    *,
    without: Collection[str] | None = None,
    limit: int = CLIP,
) -> None:
    """Print the role and a heading, then text and tool calls, each up to a number of characters.

    Arguments and reasoning that a window left out (`without`) are marked instead of shown.
    """
    role = str(message.get("role"))
    color = ROLE_COLORS.get(role, "white")
    first = Text.assemble((f"{role:>9}", f"bold {color}"), " ", (printable(heading), "dim"))
    out.print(first, soft_wrap=True)
    for text, style in _parts(message, without or ()):
        if shown := clipped(printable(text.strip()), limit):
            show_text(out, Text(shown, style=style), indent=BODY_INDENT)


def plain_text(message: Mapping[str, Any]) -> str:
    """Return the text, reasoning and calls of a message on one line."""
    return " ".join(" ".join(text for text, _ in _parts(message, ())).split())


def _parts(message: Mapping[str, Any], without: Collection[str]) -> list[tuple[str, str]]:
    parts = [(_content(message.get("content")) or spoken_text(message), "")]
    if reasoning := message.get("reasoning_content"):
        parts.insert(0, (str(reasoning), "dim italic"))
    for name, text in call_texts(message):
        # A call needs arguments, so a window without them has empty ones.
        is_left_out = "arguments" in without and text.strip() in EMPTY_ARGUMENTS
        parts.append((f"→ {name}({'… left out …' if is_left_out else text})", "yellow"))
    return parts


def _content(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    return "\n".join(_part(part) for part in parts)


def _part(part: Any) -> str:
    if not isinstance(part, dict):
        return str(part)
    match part.get("type"):
        case "tool_use":
            return f"→ {part.get('name')}({json.dumps(part.get('input'), ensure_ascii=False)})"
        case "tool_result":
            return _content(part.get("content"))
        case "thinking":
            return str(part.get("thinking"))
        case kind if is_media(part):
            return f"[{kind}]"
        case _:
            text = part.get("text")
            return text if isinstance(text, str) else compact(part)
