"""Commands, and groups of them: the application itself, and commands with the same first word."""

import sys
from collections.abc import Sequence
from itertools import islice
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from turnfold.cli.help_panels import close_names, sort_key

WRONG_USAGE = 2


class PlainCommand(TyperCommand):
    """A command whose help shows no types of Python."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the arguments and options."""
        return [_without_type(param) for param in super().get_params(ctx)]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line; typer puts required ones in braces."""
        return [piece.strip("{").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; an error names the value without the words of a library."""
        try:
            return super().parse_args(ctx, _arguments_last(self.get_params(ctx), args))
        except typer.BadParameter as error:
            # Here, because it loads the models of all requests.
            from turnfold.contracts.reading import plain_words

            error.message = plain_words(error.message)
            raise


class SortedCommands(TyperGroup):
    """The commands of a group, by name."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options."""
        return [_without_type(param) for param in super().get_params(ctx)]

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the help."""
        return sorted(super().list_commands(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command; end the program with one sentence if none has this name."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            sys.stderr.write(
                f"turnfold: `{ctx.command_path}` has no command {args[0]!r};"
                f" {close_names(args[0], self.list_commands(ctx))}"
                f"`{ctx.command_path} -h` lists all\n"
            )
            raise typer.Exit(WRONG_USAGE)
        return super().resolve_command(ctx, args)


class CommandsInPanels(SortedCommands):
    """The commands of the application in panels, those used most often first."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the help."""
        return sorted(super().list_commands(ctx), key=sort_key)


def _arguments_last(params: Sequence[Any], words: list[str]) -> list[str]:
    """Return the options, and after `--` the arguments, if one of them begins with a dash.

    Ids of the Claude Agent SDK do. Options of one dash have one letter.
    """
    names = {name: param for param in params for name in param.opts}
    options: list[str] = []
    arguments: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            arguments += rest
        elif word.startswith("--") or (
            word.startswith("-") and (len(word) == 2 or f"-{word}" in names)
        ):
            options.append(word)
            param = names.get(word)
            if isinstance(param, TyperOption) and not param.is_flag:
                options += islice(rest, 1)
        else:
            arguments.append(word)
    if not any(word.startswith("-") for word in arguments):
        return words
    return [*options, "--", *arguments]


def _without_type(param: Any) -> Any:
    """Return the parameter; the help shows its name or its choices instead of a type like <str>."""
    # A command returns the same parameters each time: the help names the choices only once.
    if not isinstance(param, TyperOption | TyperArgument) or "display_type_rich" in vars(param):
        return param
    name = None if isinstance(param, TyperArgument) or param.is_flag else param.metavar
    if name is None and isinstance(param, TyperOption) and param.type_descriptor.choices:
        # As a type, they would be broken inside a word on 80 columns.
        name = param.opts[-1].lstrip("-").upper()
    if param.type_descriptor.choices:
        names = ", ".join(str(choice) for choice in param.type_descriptor.choices)
        param.help = f"{param.help} One of: {names}."
    vars(param)["display_type_rich"] = lambda **_: name
    return param


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
