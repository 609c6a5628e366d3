"""Groups of commands with the same first word."""

import typer


def group(app: typer.Typer, name: str, about: str) -> typer.Typer:
    """Return the group with this name; add it if it is new.

    Several modules add their commands to one group.
    """
    for known in app.registered_groups:
        if known.name == name and known.typer_instance is not None:
            return known.typer_instance
    new_group = typer.Typer(help=about, no_args_is_help=True)
    app.add_typer(new_group, name=name)
    return new_group
