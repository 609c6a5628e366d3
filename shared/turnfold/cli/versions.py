"""`turnfold summaries diff|promote|regenerate` and `turnfold restore`: versions that change places."""

import asyncio
import contextlib
import shlex
import sys
from collections.abc import AsyncIterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from turnfold.cli.command_groups import group
from turnfold.cli.connection import System, changing, connected_client, system_to_change
from turnfold.cli.context import summary_panel
from turnfold.cli.diff import Line, Mark, differences
from turnfold.cli.output import clipped, console, print_rows, show_json
from turnfold.cli.replay import progress
from turnfold.cli.sessions import Agent, AsJson, SessionName
from turnfold.client import Session, Summary
from turnfold.contracts.subjects import token_of
from turnfold.errors import BadRequest, Conflict, Unavailable

Version = Annotated[int, typer.Argument(min=1, help="The number of a version.")]
COLOURS = {Mark.GONE: "red", Mark.NEW: "green", Mark.SAME: "dim"}
LINE = 400
CAMPAIGN_COLUMNS = (
    "campaign_id",
    "agent_id",
    "sessions",
    "opened",
    "written",
    "failed",
    "open",
    "requested_at",
    "finished_at",
)
POLL_SECONDS = 0.2
ENDED_BADLY = {
    "rejected": "the gate refused what was written",
    "rollback": "the model failed",
    "stale": "another version took its place",
}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    summaries = group(app, "summaries", "The versions of a session's summary.")
    summaries.command("diff")(diff)
    summaries.command("promote")(promote)
    summaries.command("regenerate")(regenerate)
    app.command("restore")(restore)


# --- compare


def diff(
    agent: Agent,
    session: SessionName,
    before: Version,
    after: Annotated[
        int | None, typer.Argument(min=1, help="The other version; without it, the one in force.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show what both have, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare two versions: what is gone, and what is new."""
    old, new = asyncio.run(_both(agent, session, before, after))
    lines = differences(old, new)
    if as_json:
        for line in lines:
            show_json(
                {
                    "part": line.part,
                    "change": {Mark.GONE: "gone", Mark.NEW: "new", Mark.SAME: "same"}[line.mark],
                    "text": line.text,
                }
            )
        return
    _show(console(), old, new, lines, everything=everything)


async def _both(
    agent: str, session: str, before: int, after: int | None
) -> tuple[Summary, Summary]:
    async with connected_client() as client:
        asked = client.session(agent, session)
        if after is None:
            after = (await asked.status()).get("summary_version")
        if after is None:
            raise Conflict("there is no summary in force; name two versions")
        return await asked.summary(before), await asked.summary(after)


def _show(
    out: Console, old: Summary, new: Summary, lines: Sequence[Line], *, everything: bool
) -> None:
    for summary, mark in ((old, Mark.GONE), (new, Mark.NEW)):
        out.print(Text(f"{mark * 3} {_about(summary)}", style=f"bold {COLOURS[mark]}"))
    shown = 0
    for part, some in groupby(lines, key=lambda line: line.part):
        found = list(some)
        changed = [line for line in found if everything or line.mark is not Mark.SAME]
        same = sum(line.mark is Mark.SAME for line in found)
        if changed:
            shown += 1
            out.print(
                Text(f"\n{part}", style="bold")
                + Text("" if everything or not same else f"  ({same} in both)", style="dim")
            )
        for line in changed:
            out.print(
                Text(f"{line.mark} {clipped(_one_line(line.text), LINE)}", style=COLOURS[line.mark])
            )
    if not shown:
        out.print("\nThey say the same.")


def _about(summary: Summary) -> str:
    who = summary.model if summary.kind == "llm" and summary.model else summary.kind
    return f"version {summary.version} · {who} · {summary.tokens:,} tokens · {summary.covers.get('messages', 0):,} messages"


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


# --- put in force, write again


def promote(
    agent: Agent,
    session: SessionName,
    version: Version,
    over: Annotated[
        int | None, typer.Option(min=1, help="Only if this version is in force.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put a version in force; the others stay, and any of them can be promoted again."""
    told = asyncio.run(
        _asked(
            system_to_change(),
            agent,
            session,
            "summary.promote",
            {"version": version, "over": over},
        )
    )
    if as_json:
        show_json(told)
    else:
        console().print(summary_panel(Summary.of(told)))


def regenerate(  # noqa: PLR0917  # a parameter for each option
    agent: Annotated[
        str | None, typer.Argument(help="The agent's id; without it, say --all.")
    ] = None,
    session: Annotated[
        str | None, typer.Argument(help="The session's id; without it, all of the agent.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every session of every agent.")
    ] = False,
    model: Annotated[str | None, typer.Option(help="Another model than the policy's.")] = None,
    style: Annotated[str | None, typer.Option(help="narrative or structured.")] = None,
    prompt: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="A file that tells the task in other words."
        ),
    ] = None,
    from_version: Annotated[
        int | None, typer.Option(min=1, help="Write on this version, and read what came after it.")
    ] = None,
    at_once: Annotated[
        int,
        typer.Option(
            min=1, max=100, help="Sessions in work at the same time, where there are many."
        ),
    ] = 2,
    wait: Annotated[
        bool, typer.Option(help="Wait until it is written; it goes on without you as well.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Have summaries written again from the originals, in the background; the versions in force stay until you promote others."""
    if everything == bool(agent):
        raise typer.BadParameter("give an agent, an agent and a session, or --all")
    wanted: dict[str, Any] = {
        "model": model,
        "style": style,
        "prompt": prompt.read_text() if prompt else None,
    }
    if (agent is None or session is None) and from_version is not None:
        raise typer.BadParameter("--from-version names a version of one session: give the session")
    system = system_to_change()
    if agent is None or session is None:
        told = asyncio.run(
            _campaign(system, agent, wanted | {"at_once": at_once}, wait=wait, is_quiet=as_json)
        )
        print_rows("campaign", CAMPAIGN_COLUMNS, [told], as_json=as_json, empty="")
        return
    told = asyncio.run(
        _regenerated(
            system,
            agent,
            session,
            wanted | {"from_version": from_version},
            wait=wait,
            is_quiet=as_json,
        )
    )
    if as_json:
        show_json(told)
    elif "version" in told:
        console().print(summary_panel(Summary.of(told)))
        names = f"{shlex.quote(agent)} {shlex.quote(session)} {told['version']}"
        typer.echo(f"compare:       turnfold summaries diff {names}")
        typer.echo(f"put in force:  turnfold summaries promote {names}")
    else:
        typer.echo(
            f"It is being written (compaction {told['compaction_id']}); see `turnfold summaries list`."
        )


async def _campaign(
    system: System, agent: str | None, wanted: dict[str, Any], *, wait: bool, is_quiet: bool
) -> dict[str, Any]:
    """Many sessions, and how far that is: whoever asks for the same again looks on."""
    subject = (
        f"agent.regenerate.{token_of(agent)}" if agent is not None else "installation.regenerate"
    )
    async with changing(system) as client:
        told = await client.ask(
            subject, {name: value for name, value in wanted.items() if value is not None}
        )
        err = Console(stderr=True)
        with progress(err, disabled=is_quiet or not err.is_terminal) as bar:
            task = bar.add_task("sessions written again", total=told["sessions"])
            while wait and told["finished_at"] is None:
                await asyncio.sleep(POLL_SECONDS)
                # The work is stored: a worker that is away for a moment stops nothing.
                with contextlib.suppress(Unavailable):
                    told = await client.ask("campaign.get", {"campaign_id": told["campaign_id"]})
                bar.update(task, completed=told["written"] + told["failed"])
    return told


async def _regenerated(
    system: System, agent: str, session: str, wanted: dict[str, Any], *, wait: bool, is_quiet: bool
) -> dict[str, Any]:
    async with changing(system) as client:
        asked = client.session(agent, session)
        told = await asked.ask("summary.regenerate", wanted)
        if not wait:
            return told
        err = Console(stderr=True)
        with (
            err.status("the summary is being written again", spinner="dots")
            if err.is_terminal and not is_quiet
            else contextlib.nullcontext()
        ):
            version = await _written(asked, str(told["compaction_id"]))
        return await asked.ask("summary.get", {"version": version})


async def _written(session: Session, compaction_id: str) -> int:
    """The version that a compaction came to.

    Raises:
        Conflict: it came to none.
    """
    async for row in _followed(session):
        if row["compaction_id"] != compaction_id:
            continue
        if row["phase"] == "summary_done":
            rows = (await session.ask("summary.list"))["summaries"]
            return next(
                int(one["version"])
                for one in reversed(rows)
                if one["compaction_id"] == compaction_id
            )
        if row["phase"] in ENDED_BADLY:
            why = f" ({row['reason']})" if row["reason"] else ""
            raise Conflict(
                f"nothing was written: {ENDED_BADLY[row['phase']]}{why}; the version in force stays"
            )
    raise AssertionError("an audit has no end")


async def _followed(session: Session) -> AsyncIterator[dict[str, Any]]:
    """Every audit row, and those that are still to come."""
    after: int | None = None
    while True:
        rows = await session.audit(after=after, limit=1_000)
        for row in rows:
            yield row
        if not rows:
            await asyncio.sleep(POLL_SECONDS)
        else:
            after = rows[-1]["audit_id"]


# --- undo


def restore(
    agent: Agent,
    session: SessionName,
    compaction_id: Annotated[
        str | None,
        typer.Argument(help="The compaction; without it, the newest that can be undone."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Undo a compaction: its messages are live again, and the version before it is in force."""
    system = system_to_change()
    chosen = compaction_id or asyncio.run(_newest(system, agent, session))
    question = (
        f"Bring back what compaction {chosen} took out of the window, in the system {system.name}?"
    )
    if not yes and sys.stdin.isatty() and not typer.confirm(question):
        raise typer.Exit(1)
    told = asyncio.run(
        _asked(system, agent, session, "compaction.restore", {"compaction_id": chosen})
    )
    if as_json:
        show_json(told)
        return
    now = (
        f"version {told['version']} is in force"
        if told["version"] is not None
        else "no summary is in force"
    )
    console().print(
        Panel(
            f"Its messages are live again; {now}.",
            title=f"compaction {chosen}",
            border_style="blue",
            expand=False,
        )
    )


async def _newest(system: System, agent: str, session: str) -> str:
    """The newest compaction that evicted messages and was not undone."""
    async with connected_client(system.settings) as client:
        rows = [row async for row in client.session(agent, session).audit_trail()]
    undone = {row["compaction_id"] for row in rows if row["phase"] == "restored"}
    for row in reversed(rows):
        if row["phase"] == "evicted" and row["compaction_id"] not in undone:
            return str(row["compaction_id"])
    raise BadRequest("nothing was evicted from this session, so there is nothing to restore")


async def _asked(
    system: System, agent: str, session: str, name: str, fields: dict[str, Any]
) -> dict[str, Any]:
    async with changing(system) as client:
        return await client.session(agent, session).ask(name, fields)
