"""`turnfold console`: the address of the console."""

import asyncio

import typer

from turnfold.cli.connection import http_get, http_settings

PATH = "/console"
_NAMING = frozenset({"nats_url", "http_host", "http_port"})


def console() -> None:
    """Print the address of the console, which shows a system in a browser."""
    settings = http_settings()
    if settings.data_dir is None and not settings.explicit_names & _NAMING:
        # Nothing was named, and perhaps nothing listens on the default port.
        asyncio.run(http_get("/healthz"))
    typer.echo(f"{settings.http_url}{PATH}")
