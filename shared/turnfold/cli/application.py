"""The command line application.

Every module of this package adds its commands with a function `register`.
"""

import importlib
import pkgutil
from collections.abc import Sequence
from typing import Annotated

import typer

import turnfold.cli
from turnfold.cli.services import SERVICES


def application(arguments: Sequence[str] = ()) -> typer.Typer:
    """Build the application with all commands that these arguments may need."""
    app = typer.Typer(
        name="turnfold",
        help="Background compaction for LLM agents.",
        no_args_is_help=True,
        add_completion=False,
        # A traceback with values of variables would show what users wrote.
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    command = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name in _modules_for(command):
        if not name.startswith("_"):
            register = getattr(importlib.import_module(f"turnfold.cli.{name}"), "register", None)
            if register is not None:
                register(app)
    return app


def _modules_for(command: str | None) -> list[str]:
    # Services and `up` start faster without the modules of the other commands, and `mcp` also runs
    # where their packages are not installed.
    if command == "up" or command in SERVICES:
        return ["run"]
    if command == "mcp":
        return ["mcp"]
    return sorted(module.name for module in pkgutil.iter_modules(turnfold.cli.__path__))


def _version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        typer.echo(version("turnfold"))
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Background compaction for LLM agents."""
