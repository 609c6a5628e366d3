"""`turnfold context`: a readable view of the window for the model."""

import asyncio
import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from turnfold.cli.connection import connected_client
from turnfold.cli.output import clipped, console, show_json
from turnfold.client import Summary, Window
from turnfold.core.text.calls import called_tool, is_custom
from turnfold.core.window.framing import Placement

CLIP = 600
ROLE_COLORS = {
    "system": "magenta",
    "developer": "magenta",
    "user": "green",
    "assistant": "cyan",
    "tool": "yellow",
}


class OutputFormat(StrEnum):
    """The API for which messages are formatted."""

    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("context")(context)


def context(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's id.")],
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")],
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="TOKENS", help="Size of the whole window, including the summary."
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
            help="Show an earlier window, by message id, RFC 3339 time or summary version.",
        ),
    ] = None,
    shape: Annotated[
        OutputFormat, typer.Option("--format", help="Format of the messages.")
    ] = OutputFormat.OPENAI,
    placement: Annotated[
        Placement, typer.Option(help="Position of the summary.")
    ] = Placement.SEPARATE,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the answer as one JSON object.")
    ] = False,
) -> None:
    """Show the model's next input: the summary, then the messages after it."""
    fields = {
        "max_tokens": max_tokens,
        "model": model,
        "as_of": as_of,
        "format": str(shape),
        "placement": str(placement),
    }
    window = asyncio.run(_window(agent, session, **fields))
    if as_json:
        show_json(window.raw)
    else:
        show_window(console(), window)


async def _window(agent: str, session: str, **fields: Any) -> Window:
    async with connected_client() as client:
        return await client.session(agent, session).context(**fields)


def show_window(
    out: Console, window: Window, *, with_summary: bool = True, last: int | None = None
) -> None:
    """Print the summary, the messages (or the `last` ones) with their roles, and the account."""
    if window.summary is not None and with_summary:
        out.print(summary_panel(window.summary))
    if not window.messages:
        out.print("No messages yet. Publish a turn to this session.")
    if window.system:
        out.print(_rendered({"role": "system", "content": window.system}, "apart"))
    shown = list(zip(window.messages, window.message_ids, strict=False))
    for message, message_id in shown if last is None else shown[-last:]:
        out.print(_rendered(message, message_id))
    out.print(Text(account_line(window), style="dim"))


def summary_panel(summary: Summary, *, lines: int = 40, entries: int = 12) -> Panel:
    """Build a panel for a version, with limits for the lines of text and the ledger entries."""
    text = [clipped(_printable(line), CLIP) for line in summary.text.strip().splitlines()]
    parts: list[RenderableType] = [Text("\n".join(text[:lines]) + _more(text, lines, "lines"))]
    if summary.ledger:
        values = "\n".join(
            f"· {clipped(_printable(entry), 160)}" for entry in summary.ledger[:entries]
        )
        parts.append(
            Text(f"\nledger\n{values}{_more(summary.ledger, entries, 'entries')}", style="dim")
        )
    covered = summary.covers.get("messages")
    about = [
        summary.kind,
        f"{summary.tokens:,} tokens",
        f"covers {covered:,} messages" if covered else "",
    ]
    return Panel(
        Group(*parts),
        title=f"summary, version {summary.version}",
        subtitle=" · ".join(filter(None, about)),
        border_style="blue",
    )


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


def _rendered(message: dict[str, Any], message_id: Any) -> Table:
    role = str(message.get("role"))
    if isinstance(message_id, str):
        id_text = message_id
    elif message_id:
        id_text = ", ".join(map(str, message_id))
    else:
        id_text = "generated for the window"
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", width=9, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(
        Text(role, style=f"bold {ROLE_COLORS.get(role, 'white')}"), Text(id_text, style="dim")
    )
    for text, style in _parts(message):
        if shown := clipped(_printable(text.strip()), CLIP):
            grid.add_row("", Text(shown, style=style))
    return grid


def _parts(message: dict[str, Any]) -> list[tuple[str, str]]:
    parts = [(_content(message.get("content")), "")]
    if reasoning := message.get("reasoning_content"):
        parts.insert(0, (str(reasoning), "dim italic"))
    for call in message.get("tool_calls") or ():
        tool = called_tool(call) or {}
        text = tool.get("input") if is_custom(call) else tool.get("arguments")
        parts.append((f"→ {tool.get('name')}({text})", "yellow"))
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
        case "text":
            return str(part.get("text"))
        case "tool_use":
            return f"→ {part.get('name')}({json.dumps(part.get('input'), ensure_ascii=False)})"
        case "tool_result":
            return _content(part.get("content"))
        case "thinking":
            return str(part.get("thinking"))
        case kind:
            return f"[{kind}]"


def _printable(text: str) -> str:
    """Replace characters that could control the terminal."""
    return "".join(
        character if character in "\n\t" or character.isprintable() else "\N{REPLACEMENT CHARACTER}"
        for character in text
    )
