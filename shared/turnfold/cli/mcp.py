"""`turnfold mcp`: an MCP server for one session."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from turnfold.cli.connection import connected_client
from turnfold.cli.parameters import Agent, SessionName
from turnfold.client import Session, session_key
from turnfold.client.http import HttpSession
from turnfold.errors import StartError
from turnfold.settings import read_settings


def mcp(
    agent: Agent,
    session: SessionName,
    http_url: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="URL",
            help="Read over HTTP, with the token in TURNFOLD_HTTP_TOKEN, instead of NATS.",
        ),
    ] = None,
) -> None:
    """Serve one session to a model as MCP tools, over stdin and stdout."""
    try:
        from turnfold.integrations.mcp import serve
    except ImportError as error:
        raise StartError(str(error)) from error
    # Wrong ids, settings and URLs end the command before it serves.
    key, settings = session_key(agent, session), read_settings(os.environ)
    over_http = None if http_url is None else HttpSession(http_url, key, token=settings.http_token)

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Session | HttpSession, None]:
        if over_http is not None:
            yield over_http
        else:
            # For each call, so that the server outlives restarts of the system.
            async with connected_client() as client:
                yield client.session(agent, session)

    asyncio.run(serve(opened))
