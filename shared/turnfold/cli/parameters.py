"""Arguments and options that several commands have."""

from typing import Annotated

import typer

Agent = Annotated[str, typer.Argument(metavar="AGENT", help="The agent's id.")]
SessionName = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
AsOneJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
