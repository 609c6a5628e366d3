"""`turnfold console`: the address of the console."""

import typer

from turnfold.cli.connection import http_settings

PATH = "/console"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("console")(console)


def console() -> None:
    """Print the address of the console, which shows a system in a browser."""
    typer.echo(f"{http_settings().http_url}{PATH}")
