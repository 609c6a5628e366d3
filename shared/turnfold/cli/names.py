"""Sessions and agents by name: a wrong name fails, with the names that are close to it."""

import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from turnfold.cli.connection import connected_client, http_get
from turnfold.cli.help_panels import close_names
from turnfold.client import Client, Session
from turnfold.errors import RequestError, TurnfoldError, UnknownSession

LISTED = 1_000


@asynccontextmanager
async def existing_session(
    client: Client, agent: str, session: str
) -> AsyncGenerator[Session, None]:
    """Yield a session; an error because it is unknown names those that are close.

    Raises:
        UnknownSession: a request failed, because no event under this name is stored.
    """
    try:
        # An error in the body of the `with` is raised here.
        yield client.session(agent, session)
    except UnknownSession as error:
        raise await unknown_session(client, agent, session) from error


@asynccontextmanager
async def connected_session(agent: str, session: str) -> AsyncGenerator[Session, None]:
    """Connect in order to read, and yield a session of `existing_session`."""
    async with connected_client() as client, existing_session(client, agent, session) as chosen:
        yield chosen


async def unknown_session(client: Client, agent: str, session: str) -> UnknownSession:
    """Return an error that says which part of the name is wrong."""
    names: list[str] = []
    with contextlib.suppress(RequestError):
        async for name in client.sessions(agent):
            names.append(name)
            if len(names) == LISTED:
                break
    if not names:
        return await unknown_agent(agent)
    return UnknownSession(
        f"agent {agent!r} has no session {session!r};"
        f" {close_names(session, names)}`turnfold sessions --agent {agent}` lists its sessions"
    )


async def has_sessions(client: Client, agent: str) -> bool:
    """Return whether an agent has published anything."""
    async for _ in client.sessions(agent):
        return True
    return False


async def unknown_agent(agent: str) -> UnknownSession:
    """Return an error that names the agents with a similar id."""
    names: set[str] = set()
    # Needs HTTP, and an operator's token where tokens are in force.
    with contextlib.suppress(TurnfoldError):
        page = await http_get(f"/v1/sessions?limit={LISTED}")
        names = {row["agent_id"] for row in page["sessions"]}
    return UnknownSession(
        f"no event of agent {agent!r} is stored;"
        f" {close_names(agent, sorted(names))}`turnfold sessions` lists all sessions"
    )
