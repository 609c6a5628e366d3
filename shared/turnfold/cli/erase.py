"""`turnfold erase`: erase a session, or an agent with all its data."""

import asyncio
import sys
from typing import Annotated, Any

import typer

from turnfold.cli.connection import System, changing, system_here
from turnfold.cli.output import counted, show_json
from turnfold.cli.parameters import Agent, AsOneJson
from turnfold.errors import UnknownSession


def erase(
    agent: Agent,
    session: Annotated[
        str | None,
        typer.Argument(
            metavar="SESSION", help="The session's id (default: all sessions of the agent)."
        ),
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(
            metavar="PREFIX", help="Erase only the agent's sessions whose ids begin with this."
        ),
    ] = None,
    is_confirmed: Annotated[
        bool, typer.Option("--yes", help="Erase without confirmation.")
    ] = False,
    as_json: AsOneJson = False,
) -> None:
    """Erase a session, or an agent with all its sessions and its policy. This cannot be undone."""
    if session is not None and prefix is not None:
        raise typer.BadParameter("name a session or a --prefix, not both")
    what = f"the agent {agent} with all its sessions"
    if session is not None:
        what = f"the session {session} of {agent}"
    elif prefix is not None:
        what = f"the sessions of {agent} that begin with {prefix!r}"
    system = system_here(changes=True)
    if not is_confirmed:
        # A program cannot answer the question, and must not wait for it.
        if not sys.stdin.isatty():
            raise typer.BadParameter(
                f"this would erase {what} from the system {system.name}; confirm with --yes"
            )
        typer.confirm(f"Erase {what} for good from the system {system.name}?", abort=True, err=True)
    counts = asyncio.run(_erased(system, agent, session, prefix))
    if not any(counts[name] for name in ("sessions", "policies", "dead_letters")):
        raise UnknownSession(
            f"the system {system.name} stores no message, policy or dead letter of {what};"
            f" `turnfold sessions --agent {agent}` lists the agent's sessions"
        )
    if as_json:
        show_json(counts)
        return
    letters = counts["dead_letters"]
    more = f", {counted(letters, 'dead letter')}" if letters else ""
    typer.echo(
        f"Erased {what}: {counted(counts['sessions'], 'session')},"
        f" {counted(counts['messages'], 'message')}"
        f"{more}. System: {system.name}"
    )


async def _erased(
    system: System, agent: str, session: str | None, prefix: str | None
) -> dict[str, Any]:
    async with changing(system) as client:
        if session is not None:
            return await client.session(agent, session).erase()
        return await client.erase_agent(agent, prefix=prefix)
