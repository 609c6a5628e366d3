"""`turnfold sessions` and `summaries list|show`: sessions and their summaries."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from turnfold.cli.command_groups import group
from turnfold.cli.connection import http_get
from turnfold.cli.context import FULL, show_summary
from turnfold.cli.names import connected_session, unknown_agent
from turnfold.cli.output import console, print_rows, show_json
from turnfold.cli.parameters import Agent, AsJson, SessionName
from turnfold.client import Session, Summary
from turnfold.errors import Conflict

SESSION_COLUMNS = (
    "agent_id",
    "session_id",
    "messages_total",
    "messages_live",
    "messages_pending",
    "messages_covered",
    "tokens_total",
    "tokens_live",
    "factor",
    "summary_version",
    "last_event_at",
)
SUMMARY_COLUMNS = (
    "version",
    "in_force",
    "kind",
    "style",
    "model",
    "tokens",
    "covered",
    "created_at",
)

PAGE = 1_000


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("sessions")(sessions)
    summaries = group(app, "summaries", "Inspect and change the versions of a summary.")
    summaries.command("list")(summaries_list)
    summaries.command("show")(summaries_show)


def sessions(
    agent: Annotated[
        str | None, typer.Option(metavar="AGENT", help="Show only sessions of this agent.")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, metavar="COUNT", help="Show at most this many, newest first.")
    ] = 100,
    as_json: AsJson = False,
) -> None:
    """List the sessions with their counters, newest event first."""
    rows = asyncio.run(_listed(agent, limit))
    print_rows(
        "sessions",
        SESSION_COLUMNS,
        rows,
        as_json=as_json,
        empty="No sessions yet. Publish a turn, or run `turnfold replay FILE`.",
        headings=2,
    )


async def _listed(agent: str | None, limit: int) -> list[dict[str, Any]]:
    rows = await listed("sessions", agent_id=agent, limit=limit)
    if agent is not None and not rows:
        raise await unknown_agent(agent)
    return rows


async def listed(
    name: str, *, agent_id: str | None = None, limit: int | None = None
) -> list[dict[str, Any]]:
    """Return the newest rows of `/v1/sessions` or `/v1/erasures`, fetched in pages; or all rows."""
    return [row async for page in _pages(name, agent_id, limit) for row in page]


async def every_session() -> list[tuple[str, str]]:
    """Return the keys of all sessions, also of those that get an event meanwhile.

    Such a session moves to the front of the list before it was read. So the front is read again,
    down to where it was, until it fits on one page, which is a snapshot.
    """
    keys: dict[tuple[str, str], None] = {}
    front: str | None = None
    while True:
        newest: list[str] = []
        async for page in _pages("sessions", None, None):
            keys |= dict.fromkeys((row["agent_id"], row["session_id"]) for row in page)
            # Sessions without events are the last ones.
            times = [row["last_event_at"] or "" for row in page] or [""]
            newest.append(times[0])
            if front is not None and times[-1] < front:
                break
        if len(newest) == 1 or newest[0] == front:
            return list(keys)
        front = newest[0]


async def _pages(
    name: str, agent_id: str | None, limit: int | None
) -> AsyncIterator[list[dict[str, Any]]]:
    count = 0
    query: dict[str, Any] = {} if agent_id is None else {"agent_id": agent_id}
    while limit is None or count < limit:
        query["limit"] = PAGE if limit is None else min(PAGE, limit - count)
        page = await http_get(f"/v1/{name}?{urlencode(query)}")
        yield page[name]
        if page["next_after"] is None:
            break
        count += len(page[name])
        query["after"] = page["next_after"]


def summaries_list(agent: Agent, session: SessionName, as_json: AsJson = False) -> None:
    """List the versions of the summary."""
    rows = asyncio.run(_versions(agent, session))
    shown = (
        rows
        if as_json
        else [
            row | {"covered": Summary.of(row).covers.get("messages", row.get("messages_covered"))}
            for row in rows
        ]
    )
    print_rows(
        "summaries",
        SUMMARY_COLUMNS,
        shown,
        as_json=as_json,
        empty="No summary yet: no message was evicted.",
    )


def summaries_show(
    agent: Agent,
    session: SessionName,
    version: Annotated[
        int | None,
        typer.Argument(min=1, metavar="VERSION", help="The version (default: the one in force)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show one version of the summary in full."""
    summary = asyncio.run(_version(agent, session, version))
    if as_json:
        show_json(summary)
        return
    show_summary(console(), Summary.of(summary), **FULL)


async def _versions(agent: str, session: str) -> list[dict[str, Any]]:
    async with connected_session(agent, session) as chosen:
        versions: list[dict[str, Any]] = (await chosen.ask("summary.list"))["summaries"]
        return versions


async def _version(agent: str, session: str, version: int | None) -> dict[str, Any]:
    async with connected_session(agent, session) as chosen:
        return await chosen.ask(
            "summary.get", {"version": version if version is not None else await _in_force(chosen)}
        )


async def _in_force(session: Session) -> int:
    version: int | None = (await session.status()).get("summary_version")
    if not version:
        raise Conflict("the session has no summary yet; no message was evicted")
    return version
