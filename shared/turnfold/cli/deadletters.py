"""`turnfold deadletters list|show|replay`: events that could not be stored."""

import asyncio
import base64
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any

import typer

from turnfold.cli.command_groups import group
from turnfold.cli.connection import System, changing, http_get, system_here
from turnfold.cli.output import print_rows, show_json
from turnfold.cli.parameters import AsJson
from turnfold.cli.tables import cell
from turnfold.errors import Conflict, EventFault

LISTED = ("dead_letter_id", "at", "subject", "stream_seq", "reason", "size_bytes", "replayed_at")
REPLAYED = ("dead_letter_id", "subject", "outcome", "seq", "reason", "became")
LETTERS_PER_PAGE = 1_000
IDS_PER_REQUEST = 50
PATIENCE_SECONDS = 30.0
SUCCESSFUL = ("stored", "replayed_before")
"""Outcomes that need no further action."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    dead_letters = group(app, "deadletters", "Inspect and replay events that could not be stored.")
    dead_letters.command("list")(list_)
    dead_letters.command("show")(show)
    dead_letters.command("replay")(replay)


def list_(as_json: AsJson = False) -> None:
    """List the events that could not be stored, with their reasons."""
    rows = asyncio.run(_listed())
    print_rows("dead letters", LISTED, rows, as_json=as_json, empty="No dead letters.")


async def _listed() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while True:
        after = rows[-1]["dead_letter_id"] if rows else 0
        page = await http_get(f"/v1/deadletters?after={after}&limit={LETTERS_PER_PAGE}")
        rows += page["dead_letters"]
        if len(page["dead_letters"]) < LETTERS_PER_PAGE:
            return rows


def show(
    dead_letter_id: Annotated[
        int, typer.Argument(min=1, metavar="ID", help="Number of the dead letter in the list.")
    ],
    as_json: AsJson = False,
) -> None:
    """Show one dead letter and the kept part of its content.

    Characters that could control the terminal are escaped.
    """
    dead_letter = asyncio.run(http_get(f"/v1/deadletters/{dead_letter_id}"))
    if as_json:
        show_json(dead_letter)
        return
    text = dead_letter.pop("payload", None)
    kept = (
        text
        if text is not None
        else base64.b64decode(dead_letter.pop("payload_base64")).decode("latin-1")
    )
    for name, value in dead_letter.items():
        if value is not None:
            typer.echo(f"{name}: {escaped(cell(value))}")
    typer.echo("")
    typer.echo(escaped(kept))


def replay(
    ids: Annotated[
        list[int] | None,
        typer.Argument(min=1, metavar="ID", help="Numbers of dead letters in the list."),
    ] = None,
    reason: Annotated[
        EventFault | None,
        typer.Option(
            metavar="REASON", help="Replay those with this reason that were not replayed yet."
        ),
    ] = None,
    is_all: Annotated[
        bool, typer.Option("--all", help="Replay all that were not replayed yet.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Publish dead letters again, each once. Fix their cause first."""
    if [bool(ids), reason is not None, is_all].count(True) != 1:
        raise typer.BadParameter("specify ID..., --reason or --all")
    rows = asyncio.run(_replayed(system_here(changes=True), ids or (), reason))
    print_rows(
        "replayed",
        REPLAYED,
        rows,
        as_json=as_json,
        empty="Nothing to replay.",
        texts=("reason",),
    )
    if failed := [row for row in rows if row["outcome"] not in SUCCESSFUL]:
        first, outcome = failed[0]["dead_letter_id"], failed[0]["outcome"]
        raise Conflict(
            f"{len(failed)} of {len(rows)} dead letters were not stored"
            f" (first: {first}, outcome {outcome});"
            + (
                " `turnfold deadletters list` lists those that exist"
                if outcome == "unknown"
                else f" inspect it with `turnfold deadletters show {first}`"
            )
        )


async def _replayed(system: System, ids: Sequence[int], reason: str | None) -> list[dict[str, Any]]:
    return [row async for page in _pages(system, ids, reason) for row in page]


async def _pages(
    system: System, ids: Sequence[int], reason: str | None
) -> AsyncGenerator[list[dict[str, Any]]]:
    async with changing(system) as client:
        for start in range(0, len(ids), IDS_PER_REQUEST):
            request: dict[str, Any] = {
                "dead_letter_ids": list(ids[start : start + IDS_PER_REQUEST])
            }
            yield (
                await client.ask("deadletters.replay", request, patience_seconds=PATIENCE_SECONDS)
            )["dead_letters"]
        is_done, request = bool(ids), {"reason": reason} if reason is not None else {"all": True}
        while not is_done:
            answer = await client.ask(
                "deadletters.replay", request, patience_seconds=PATIENCE_SECONDS
            )
            yield answer["dead_letters"]
            # The first `until` stays: letters that fail again get greater ids, and are not chosen.
            is_done, request = (
                answer["is_done"],
                request | {"after": answer["after"], "until": answer["until"]},
            )


def escaped(text: str) -> str:
    """Escape all characters that are not printable, except line breaks and tabs."""
    return "".join(
        character
        if character.isprintable() or character in "\n\t"
        else character.encode("unicode_escape", "backslashreplace").decode()
        for character in text
    )
