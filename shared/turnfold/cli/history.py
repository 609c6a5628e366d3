"""`turnfold history`: the original messages of a session, in order."""

import asyncio
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from turnfold.cli.context import CLIP, UNLIMITED, plain_text, show_message
from turnfold.cli.names import connected_session
from turnfold.cli.output import console, print_lines, show_json
from turnfold.cli.parameters import Agent, AsJson, SessionName
from turnfold.client import Session, StoredMessage
from turnfold.messages import State

COLUMNS = ("position", "message_id", "state", "role", "text")
PAGE = 500


def history(
    agent: Agent,
    session: SessionName,
    state: Annotated[State | None, typer.Option(help="Show only messages in this state.")] = None,
    newest: Annotated[
        int,
        typer.Option(min=0, metavar="COUNT", help="Show the last COUNT messages; 0 shows all."),
    ] = 20,
    as_of: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="Show the history as of a message id, RFC 3339 time or summary version.",
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Do not shorten long texts.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the original messages of a session: live, pending, covered and retracted ones."""
    messages = asyncio.run(_read(agent, session, state, newest, as_of))
    if as_json:
        show_json(*map(_as_json, messages))
    elif not sys.stdout.isatty():
        print_lines(COLUMNS, map(_columns, messages))
    else:
        _show(messages, limit=UNLIMITED if full else CLIP)


def _columns(stored: StoredMessage) -> tuple[Any, ...]:
    role, text = stored.message.get("role"), plain_text(stored.message)
    return stored.position, stored.message_id, stored.state, role, text


def _show(messages: Sequence[StoredMessage], *, limit: int) -> None:
    out = console()
    if not messages:
        out.print("No messages in this state.")
    for stored in messages:
        heading = f"{stored.message_id} · {stored.state} · position {stored.position}"
        show_message(out, stored.message, heading, limit=limit)


async def _read(
    agent: str, session: str, state: State | None, newest: int, as_of: str | None
) -> list[StoredMessage]:
    async with connected_session(agent, session) as chosen:
        if not newest:
            stored = [
                original async for original in chosen.originals(include_retracted=True, as_of=as_of)
            ]
            return [original for original in stored if state in (None, original.state)]
        return await _newest(chosen, state, newest, as_of)


async def _newest(
    session: Session, state: State | None, count: int, as_of: str | None
) -> list[StoredMessage]:
    """Return the last messages in a state, in order; pages are read from the end."""
    found: list[StoredMessage] = []
    before: int | None = None
    while len(found) < count:
        # Later pages are full ones: of a rare state, a page may hold no message.
        page = await session.history(
            newest=min(count, PAGE) if before is None else None,
            before_position=before,
            limit=None if before is None else PAGE,
            include_retracted=True,
            as_of=as_of,
        )
        found = [original for original in page.messages if state in (None, original.state)] + found
        before = page.previous_position
        if before is None:
            break
    return found[-count:]


def _as_json(stored: StoredMessage) -> dict[str, object]:
    fields = {
        "message_id": stored.message_id,
        "position": stored.position,
        "state": stored.state,
        "message": stored.message,
        "original_content": stored.original_content,
        "is_meta": stored.is_meta or None,
        "is_error": stored.is_error or None,
        "shape": stored.shape if stored.shape != "chat" else None,
        "element": stored.element,
        "carry": stored.carry,
    }
    return {name: value for name, value in fields.items() if value is not None}
