"""Groups of commands: the application itself, and commands with the same first word."""

import sys
from typing import Any

import typer
from typer.core import TyperGroup

from turnfold.cli.command_names import close_names, sort_key

WRONG_USAGE = 2


class SortedCommands(TyperGroup):
    """The commands in groups, with those used most often first."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the help."""
        return sorted(super().list_commands(ctx), key=sort_key)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command; end the program with one sentence if there is none of this name."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            sys.stderr.write(
                f"turnfold: `{ctx.command_path}` has no command {args[0]!r};"
                f" {close_names(args[0], self.list_commands(ctx))}"
                f"`{ctx.command_path} -h` lists all\n"
            )
            raise typer.Exit(WRONG_USAGE)
        return super().resolve_command(ctx, args)


def group(app: typer.Typer, name: str, about: str) -> typer.Typer:
    """Return the group with this name; add it if it is new.

    Several modules add their commands to one group.
    """
    for known in app.registered_groups:
        if known.name == name and known.typer_instance is not None:
            return known.typer_instance
    new_group = typer.Typer(help=about, cls=SortedCommands, no_args_is_help=True)
    app.add_typer(new_group, name=name)
    return new_group
