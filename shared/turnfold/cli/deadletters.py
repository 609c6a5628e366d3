"""`turnfold deadletters list|show|replay`: events that could not be stored, and a second try after a fix."""

import asyncio
import base64
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any

import typer

from turnfold.cli.command_groups import group
from turnfold.cli.connection import System, changing, http_get, system_to_change
from turnfold.cli.output import print_rows, show_json
from turnfold.errors import Conflict

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]

LISTED = ("dead_letter_id", "at", "subject", "stream_seq", "reason", "size_bytes", "replayed_at")
REPLAYED = ("dead_letter_id", "subject", "outcome", "seq", "reason", "became")
AT_ONCE = 50
PATIENCE_SECONDS = 30.0
GOOD = ("stored", "replayed_before")
"""What needs no further look."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    letters = group(app, "deadletters", "Events that could not be stored.")
    letters.command("list")(list_)
    letters.command("show")(show)
    letters.command("replay")(replay)


def list_(as_json: AsJson = False) -> None:
    """List the events that could not be stored, with the reasons."""
    rows: list[dict[str, Any]] = asyncio.run(http_get("/v1/deadletters"))["dead_letters"]
    print_rows("dead letters", LISTED, rows, as_json=as_json, empty="No dead letters.")


def show(
    dead_letter_id: Annotated[int, typer.Argument(min=1, help="Its number in the list.")],
    as_json: AsJson = False,
) -> None:
    """Show one of them with its bytes, as far as they were kept; what could move a terminal's cursor is escaped."""
    told = asyncio.run(http_get(f"/v1/deadletters/{dead_letter_id}"))
    if as_json:
        show_json(told)
        return
    text = told.pop("payload", None)
    kept = (
        text if text is not None else base64.b64decode(told.pop("payload_base64")).decode("latin-1")
    )
    for name, value in told.items():
        typer.echo(f"{name}: {printable(str(value))}")
    typer.echo("")
    typer.echo(printable(kept))


def replay(
    ids: Annotated[
        list[int] | None,
        typer.Argument(min=1, metavar="[ID]...", help="Their numbers in the list."),
    ] = None,
    reason: Annotated[
        str | None, typer.Option(help="Those with this reason that were not replayed yet.")
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="All that were not replayed yet.")] = False,
    as_json: AsJson = False,
) -> None:
    """Publish dead letters again, after what was wrong with them is mended; each once."""
    if [bool(ids), reason is not None, is_all].count(True) != 1:
        raise typer.BadParameter("name letters by their numbers, or give --reason, or --all")
    rows = asyncio.run(_replayed(system_to_change(), ids or (), reason))
    print_rows("replayed", REPLAYED, rows, as_json=as_json, empty="Nothing to replay.")
    if bad := [row for row in rows if row["outcome"] not in GOOD]:
        raise Conflict(
            f"{len(bad)} of {len(rows)} are not stored (first: {bad[0]['dead_letter_id']}, {bad[0]['outcome']}); "
            "`turnfold deadletters show` has their bytes"
        )


async def _replayed(system: System, ids: Sequence[int], reason: str | None) -> list[dict[str, Any]]:
    return [row async for page in _pages(system, ids, reason) for row in page]


async def _pages(
    system: System, ids: Sequence[int], reason: str | None
) -> AsyncGenerator[list[dict[str, Any]]]:
    async with changing(system) as client:
        for start in range(0, len(ids), AT_ONCE):
            asked: dict[str, Any] = {"dead_letter_ids": list(ids[start : start + AT_ONCE])}
            yield (
                await client.ask("deadletters.replay", asked, patience_seconds=PATIENCE_SECONDS)
            )["dead_letters"]
        is_done, asked = bool(ids), {"reason": reason} if reason is not None else {"all": True}
        while not is_done:
            told = await client.ask("deadletters.replay", asked, patience_seconds=PATIENCE_SECONDS)
            yield told["dead_letters"]
            is_done, asked = (
                told["is_done"],
                asked | {"after": told["after"], "until": told["until"]},
            )


def printable(text: str) -> str:
    """The text with everything escaped that is no character to be seen, line ends and tabs apart."""
    return "".join(
        one
        if one.isprintable() or one in "\n\t"
        else one.encode("unicode_escape", "backslashreplace").decode()
        for one in text
    )
