"""`turnfold summaries promote|regenerate`, `turnfold compact` and `turnfold restore`."""

import asyncio
import contextlib
import json
import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from turnfold.cli.command_groups import group
from turnfold.cli.connection import System, changing, connected_client, system_here
from turnfold.cli.context import show_summary
from turnfold.cli.diff import Version, diff
from turnfold.cli.names import existing_session, has_sessions, unknown_agent
from turnfold.cli.output import console, print_rows, show_json
from turnfold.cli.parameters import Agent, AsJson, AsOneJson, SessionName
from turnfold.cli.replay import present_trail, progress
from turnfold.client import Session, Summary
from turnfold.contracts.subjects import agent_subject
from turnfold.core.policy.presets import Style
from turnfold.errors import BadRequest, Conflict, Unavailable

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
FAILED_PHASES = {
    "rejected": "the gate rejected the text",
    "rollback": "the model failed",
    "stale": "another version took effect meanwhile",
}


Model = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL", help="Model that writes the summaries (default: that of the policy)."
    ),
]
StyleOption = Annotated[
    Style | None,
    typer.Option(metavar="STYLE", help="Style (default: that of the policy)."),
]
Prompt = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        metavar="FILE",
        help="File with instructions for the model, instead of the default ones.",
    ),
]
FromVersion = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="VERSION",
        help="Extend this version by the later messages instead of starting anew.",
    ),
]
AtOnce = Annotated[
    int,
    typer.Option(min=1, max=100, metavar="COUNT", help="Sessions to regenerate at the same time."),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    summaries = group(app, "summaries", "Inspect and change the versions of a summary.")
    summaries.command("diff")(diff)
    summaries.command("promote")(promote)
    summaries.command("regenerate")(regenerate)
    app.command("compact")(compact)
    app.command("restore")(restore)


# --- put in force, write again


def promote(
    agent: Agent,
    session: SessionName,
    version: Version,
    over: Annotated[
        int | None,
        typer.Option(min=1, metavar="VERSION", help="Promote only if this version is in force."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put a version in force. The others stay."""
    asyncio.run(
        _promote(system_here(changes=True), agent, session, version, over=over, as_json=as_json)
    )


async def _promote(
    system: System, agent: str, session: str, version: int, *, over: int | None, as_json: bool
) -> None:
    async with changing(system) as client, existing_session(client, agent, session) as chosen:
        before = (await chosen.status())["summary_version"]
        promoted = await chosen.ask("summary.promote", {"version": version, "over": over})
    if as_json:
        show_json(promoted)
    else:
        show_summary(console(), Summary.of(promoted))
    if version == before:
        typer.echo(f"Version {version} was in force before; nothing has changed.", err=True)


def regenerate(  # noqa: PLR0917  # a parameter for each option
    agent: Annotated[
        str | None,
        typer.Argument(metavar="AGENT", help="The agent's id; required unless --all is set."),
    ] = None,
    session: Annotated[
        str | None,
        typer.Argument(
            metavar="SESSION", help="The session's id (default: all sessions of the agent)."
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Regenerate every session of every agent.")
    ] = False,
    model: Model = None,
    style: StyleOption = None,
    prompt: Prompt = None,
    from_version: FromVersion = None,
    at_once: AtOnce = 2,
    wait: Annotated[
        bool, typer.Option(help="Wait for the result, or let the work continue in the background.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Regenerate summaries from the original messages, in the background.

    The versions in force stay until you promote others.
    """
    if everything == bool(agent):
        raise typer.BadParameter("specify AGENT, AGENT SESSION or --all")
    if (agent is None or session is None) and from_version is not None:
        raise typer.BadParameter("--from-version requires SESSION")
    options: dict[str, Any] = {
        "model": model,
        "style": style,
        "prompt": _prompt(prompt) if prompt else None,
    }
    system = system_here(changes=True)
    if agent is None or session is None:
        options["at_once"] = at_once
        campaign = asyncio.run(_run_campaign(system, agent, options, wait=wait, is_quiet=as_json))
        print_rows("campaign", CAMPAIGN_COLUMNS, [campaign], as_json=as_json, empty="", headings=2)
        if wait and campaign["failed"]:
            raise Conflict(
                f"{campaign['failed']} of {campaign['sessions']} sessions got no version, and the"
                " versions in force are unchanged; `turnfold audit` shows the reasons"
            )
        return
    options["from_version"] = from_version
    summary = asyncio.run(
        _regenerate_session(system, agent, session, options, wait=wait, is_quiet=as_json)
    )
    if as_json:
        show_json(summary)
    else:
        _print_regenerated(agent, session, summary)


def _prompt(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{path} is not text in UTF-8") from error


def _print_regenerated(agent: str, session: str, summary: dict[str, Any]) -> None:
    if "version" in summary:
        show_summary(console(), Summary.of(summary))
        names = f"{shlex.quote(agent)} {shlex.quote(session)} {summary['version']}"
        typer.echo(f"compare:       turnfold summaries diff {names}")
        typer.echo(f"put in force:  turnfold summaries promote {names}")
    else:
        typer.echo(
            f"The summary is being regenerated (compaction {summary['compaction_id']});"
            " see `turnfold summaries list`."
        )


async def _run_campaign(
    system: System, agent: str | None, options: dict[str, Any], *, wait: bool, is_quiet: bool
) -> dict[str, Any]:
    """Regenerate many sessions and follow the progress.

    The same request again does not start a second campaign. It follows the first one.
    """
    subject = (
        agent_subject("agent.regenerate", agent) if agent is not None else "installation.regenerate"
    )
    async with changing(system) as client:
        if agent is not None and not await has_sessions(client, agent):
            raise await unknown_agent(agent)
        campaign = await client.ask(
            subject, {name: value for name, value in options.items() if value is not None}
        )
        err = Console(stderr=True)
        with progress(err, disabled=is_quiet or not err.is_terminal) as bar:
            task = bar.add_task("sessions regenerated", total=campaign["sessions"])
            while wait and campaign["finished_at"] is None:
                await asyncio.sleep(POLL_SECONDS)
                # The campaign is stored, and continues after a worker restarts.
                with contextlib.suppress(Unavailable):
                    campaign = await client.ask(
                        "campaign.get", {"campaign_id": campaign["campaign_id"]}
                    )
                bar.update(task, completed=campaign["written"] + campaign["failed"])
    return campaign


async def _regenerate_session(
    system: System, agent: str, session: str, options: dict[str, Any], *, wait: bool, is_quiet: bool
) -> dict[str, Any]:
    async with changing(system) as client, existing_session(client, agent, session) as chosen:
        request = await chosen.ask("summary.regenerate", options)
        if not wait:
            return request
        err = Console(stderr=True)
        with (
            err.status("regenerating the summary", spinner="dots")
            if err.is_terminal and not is_quiet
            else contextlib.nullcontext()
        ):
            version = await _wait_for_version(chosen, str(request["compaction_id"]))
        return await chosen.ask("summary.get", {"version": version})


async def _wait_for_version(session: Session, compaction_id: str) -> int:
    """Wait for the version that a compaction writes, and return its number.

    Raises:
        Conflict: the compaction ended without a version.
    """
    is_open = False
    async for row in _follow(session):
        # An earlier row tells of an earlier session of this name.
        if is_open and row["phase"] == "erased":
            raise Conflict("no version was written: the session was erased meanwhile")
        if row["compaction_id"] != compaction_id:
            continue
        is_open = True
        details = json.loads(row["details"])
        # After a part, or a result that came too late, the compaction goes on.
        if "is_part" in details or (row["phase"] == "stale" and "fence" in details):
            continue
        if row["phase"] == "summary_done":
            rows = (await session.ask("summary.list"))["summaries"]
            return next(
                int(summary["version"])
                for summary in reversed(rows)
                if summary["compaction_id"] == compaction_id
            )
        if row["phase"] in FAILED_PHASES:
            reason = f" ({row['reason']})" if row["reason"] else ""
            raise Conflict(
                f"no version was written: {FAILED_PHASES[row['phase']]}{reason};"
                " the version in force is unchanged"
            )
    raise AssertionError("_follow never ends")


async def _follow(session: Session) -> AsyncIterator[dict[str, Any]]:
    """Iterate over the audit rows of the session, including future ones."""
    after: int | None = None
    while True:
        rows = await session.audit(after=after, limit=1_000)
        for row in rows:
            yield row
        if not rows:
            await asyncio.sleep(POLL_SECONDS)
        else:
            after = rows[-1]["audit_id"]


# --- compact, undo


def compact(agent: Agent, session: SessionName, as_json: AsOneJson = False) -> None:
    """Evict a session's older messages now. A summary of them is written in the background."""
    compaction_id = asyncio.run(_compact(system_here(changes=True), agent, session))
    if as_json:
        show_json({"compaction_id": compaction_id})
    elif compaction_id is None:
        typer.echo("There is nothing to evict: the policy keeps all live messages.", err=True)
    else:
        undo = shlex.join(["turnfold", "restore", agent, session, str(compaction_id)])
        typer.echo(f"Began compaction {compaction_id}; a summary follows. `{undo}` undoes it.")


async def _compact(system: System, agent: str, session: str) -> str | int | None:
    async with changing(system) as client, existing_session(client, agent, session) as chosen:
        # The request itself answers null for a session that is unknown.
        await chosen.status()
        return await chosen.compact()


def restore(
    agent: Agent,
    session: SessionName,
    compaction_id: Annotated[
        str | None,
        typer.Argument(
            metavar="COMPACTION", help="The compaction (default: the newest that can be undone)."
        ),
    ] = None,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes", "-y", help="Skip the confirmation, which is asked for only on a terminal."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Undo a compaction: its messages are live again, and the previous version is in force."""
    system = system_here(changes=True)
    # Chosen before the question, so that a compaction that comes meanwhile is not undone.
    chosen = compaction_id
    if chosen is None:
        chosen = asyncio.run(_newest_compaction(system, agent, session))
    question = (
        f"Undo compaction {chosen} and make its messages live again, in the system {system.name}?"
    )
    if not yes and sys.stdin.isatty():
        typer.confirm(question, abort=True, err=True)
    restored = asyncio.run(
        _ask(system, agent, session, "compaction.restore", {"compaction_id": chosen})
    )
    if as_json:
        show_json(restored)
        return
    version_text = (
        f"version {restored['version']} is in force"
        if restored["version"] is not None
        else "no summary is in force"
    )
    typer.echo(f"Undid compaction {chosen}: its messages are live again; {version_text}.")


async def _newest_compaction(system: System, agent: str, session: str) -> str:
    """Return the newest compaction that evicted messages and was not undone."""
    async with (
        connected_client(system.settings) as client,
        existing_session(client, agent, session) as chosen,
    ):
        rows = await present_trail(chosen)
    undone = {row["compaction_id"] for row in rows if row["phase"] == "restored"}
    for row in reversed(rows):
        if row["phase"] == "evicted" and row["compaction_id"] not in undone:
            return str(row["compaction_id"])
    raise BadRequest("the session has no evicted messages; nothing to restore")


async def _ask(
    system: System, agent: str, session: str, name: str, fields: dict[str, Any]
) -> dict[str, Any]:
    async with changing(system) as client, existing_session(client, agent, session) as chosen:
        return await chosen.ask(name, fields)
