"""The command line application.

A module that is named as a command has a function of that name. Modules with several commands add
them with a function `register`. `help_panels` lists all commands.
"""

import importlib
import os
import pkgutil
from collections.abc import Sequence
from typing import Annotated

import typer

import turnfold.cli
from turnfold.cli.command_groups import CommandsInPanels, PlainCommand
from turnfold.cli.help_panels import COMPLETE_VARIABLE, PANELS
from turnfold.cli.services import SERVICES

OTHER_COMMANDS = "Other commands"


def application(arguments: Sequence[str] = ()) -> typer.Typer:
    """Build the application with all commands that these arguments may need."""
    app = typer.Typer(
        name="turnfold",
        cls=CommandsInPanels,
        no_args_is_help=True,
        # Its options would stand first in every help; `turnfold completion` prints the script.
        add_completion=COMPLETE_VARIABLE in os.environ,
        context_settings={"help_option_names": ["-h", "--help"]},
        # A traceback with values of variables would show what users wrote.
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    command = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name in _modules_for(command):
        if not name.startswith("_"):
            module = importlib.import_module(f"turnfold.cli.{name}")
            if hasattr(module, "register"):
                module.register(app)
            elif name in PANELS and hasattr(module, name):
                app.command(name)(getattr(module, name))
    for command_info in app.registered_commands:
        # Commands that were added without a name have that of their function.
        name = command_info.name or str(getattr(command_info.callback, "__name__", ""))
        command_info.rich_help_panel = PANELS.get(name, OTHER_COMMANDS)
        command_info.cls = PlainCommand
    for group_info in app.registered_groups:
        group_info.rich_help_panel = PANELS.get(str(group_info.name), OTHER_COMMANDS)
        assert group_info.typer_instance is not None
        for command_info in group_info.typer_instance.registered_commands:
            command_info.cls = PlainCommand
    return app


def _modules_for(command: str | None) -> list[str]:
    # Commands start twice as fast without the modules of the others, and `mcp` also runs where
    # their packages are not installed. Some modules have the commands of several names.
    if command == "up" or command in SERVICES:
        return ["run"]
    names = sorted(module.name for module in pkgutil.iter_modules(turnfold.cli.__path__))
    return [command] if command in names and command in PANELS else names


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
    """Keep long conversations of LLM agents within the model's context window.

    Commands use the system that TURNFOLD_NATS_URL or TURNFOLD_DATA_DIR names,
    otherwise the one in .turnfold. `turnfold COMMAND -h` describes a command.
    """
