"""Commands that share a first word."""

import typer


def group(app: typer.Typer, name: str, about: str) -> typer.Typer:
    """The commands that begin with this word; each module that has one of them adds it to the same group."""
    for known in app.registered_groups:
        if known.name == name and known.typer_instance is not None:
            return known.typer_instance
    made = typer.Typer(help=about, no_args_is_help=True)
    app.add_typer(made, name=name)
    return made
