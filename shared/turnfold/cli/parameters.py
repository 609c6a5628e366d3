"""Arguments and options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

Agent = Annotated[str, typer.Argument(metavar="AGENT", help="The agent's id.")]
SessionName = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
AsOneJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def named_directory(text: str) -> Path:
    """Parse the path of a directory. An empty one, as of an unset variable, is a mistake."""
    if not text.strip():
        raise typer.BadParameter("must name a directory")
    return Path(text)
