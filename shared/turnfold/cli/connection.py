"""Connections of commands to the running system: over NATS, or over HTTP for the other requests."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import typer

from turnfold.cli.up import DATA_DIR
from turnfold.client import Client, connect
from turnfold.client.http import fetch
from turnfold.errors import NotAllowed, StartError
from turnfold.process.directory import running_system
from turnfold.settings import Settings, read_settings, redacted


class System(NamedTuple):
    """The system that a command uses: its settings, and its name in messages."""

    settings: Settings
    name: str


def system_here(*, changes: bool = False) -> System:
    """Find the system that the environment names, by its NATS URL or its data directory.

    If the environment names none, this is the system that runs in `.turnfold`. A command that only
    reads falls back to the default ports. A command with `changes` requires a name.

    Raises:
        StartError: no system runs in the named directory, none is named, or a setting is
            invalid.
    """
    variables = dict(os.environ)
    settings = read_settings(variables)
    if "nats_url" in settings.explicit_names:
        return System(settings, redacted(settings.nats_url))
    if settings.data_dir is not None:
        if running_system(settings.data_dir) is None:
            raise StartError(
                f"no system runs in {settings.data_dir}; start it with `turnfold up`,"
                " correct TURNFOLD_DATA_DIR, or set TURNFOLD_NATS_URL"
            )
        return System(settings, _in_directory(settings.data_dir, settings))
    if running_system(DATA_DIR) is not None:
        # Read again, because the addresses of this system are in the ready file of its directory.
        settings = read_settings({**variables, "TURNFOLD_DATA_DIR": str(DATA_DIR)})
        return System(settings, _in_directory(DATA_DIR, settings))
    if changes:
        raise StartError(
            "no system is named; set TURNFOLD_NATS_URL, or TURNFOLD_DATA_DIR"
            " to the data directory of the system to change"
        )
    return System(settings, f"{redacted(settings.nats_url)}, the default")


@asynccontextmanager
async def changing(system: System) -> AsyncGenerator[Client, None]:
    """Yield a client for a command that changes a system; name the system on stderr at the end."""
    async with connected_client(system.settings) as client:
        yield client
    typer.echo(f"system: {system.name}", err=True)


def _in_directory(path: Path, settings: Settings) -> str:
    return f"{path.expanduser().resolve()} ({redacted(settings.nats_url)})"


@asynccontextmanager
async def connected_client(settings: Settings | None = None) -> AsyncGenerator[Client, None]:
    """Yield a client for the running system; use it only to read unless `settings` are passed."""
    chosen = settings or system_here().settings
    async with connect(chosen.nats_url, environ=chosen.identity.as_environ()) as client:
        yield client


def http_settings() -> Settings:
    """Return the settings of the system that the environment names, to ask it over HTTP.

    Raises:
        StartError: the environment names NATS but not HTTP, and the default port may belong to
            another system.
    """
    chosen = system_here().settings
    if "nats_url" in chosen.explicit_names and {"http_host", "http_port"}.isdisjoint(
        chosen.explicit_names
    ):
        raise StartError(
            "this command reads over HTTP, and TURNFOLD_NATS_URL does not name the HTTP server;"
            " set TURNFOLD_HTTP_HOST or TURNFOLD_HTTP_PORT as well"
        )
    return chosen


async def http_get(path: str) -> dict[str, Any]:
    """Return the query service's answer to an HTTP request.

    Raises:
        RequestError: the answer is an error, or no server answers.
        StartError: see `http_settings`.
    """
    chosen = http_settings()
    try:
        return await fetch(chosen.http_url, path, token=chosen.http_token)
    except NotAllowed as error:
        raise NotAllowed(f"{error}; commands send the one in TURNFOLD_HTTP_TOKEN") from error
