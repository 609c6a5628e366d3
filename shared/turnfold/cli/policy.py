"""`turnfold policy show|set`: when and how much a session or an agent is compacted."""

import asyncio
import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from turnfold.cli.command_groups import group
from turnfold.cli.connection import System, changing, connected_client, system_here
from turnfold.cli.names import existing_session, has_sessions, unknown_agent
from turnfold.cli.output import counted, print_rows, show_json
from turnfold.cli.parameters import Agent, AsJson
from turnfold.contracts.subjects import agent_subject
from turnfold.core.policy.presets import Mode

COLUMNS = ("setting", "value", "from")

MaybeSession = Annotated[
    str | None,
    typer.Argument(metavar="SESSION", help="The session's id (default: the agent's policy)."),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    policy = group(app, "policy", "Show and set the compaction policy.")
    policy.command("show")(show)
    policy.command("set")(set_)


def show(agent: Agent, session: MaybeSession = None, as_json: AsJson = False) -> None:
    """Show the policy in force: mode, preset and numbers, each with the place that sets it."""
    answer = asyncio.run(_read(agent, session))
    if as_json:
        show_json(answer)
        return
    named = {
        name: {"value": answer[name], "from": answer[f"{name}_from"]} for name in ("mode", "preset")
    }
    rows = [
        {
            "setting": name,
            "value": "unset" if setting["value"] is None else setting["value"],
            "from": setting["from"],
        }
        for name, setting in {**named, **answer["numbers"]}.items()
    ]
    title = f"policy of {_name(agent, session)}"
    print_rows(title, COLUMNS, rows, as_json=False, empty="No settings.")


def set_(  # a parameter for each option
    agent: Agent,
    session: MaybeSession = None,
    numbers: Annotated[
        list[str] | None,
        typer.Option(
            "--number",
            metavar="NAME=VALUE",
            help="Set a number of the policy; null removes it. May be repeated.",
        ),
    ] = None,
    mode: Annotated[
        Mode | None, typer.Option(help="Compact never, only on request, or by triggers.")
    ] = None,
    preset: Annotated[str | None, typer.Option(metavar="PRESET", help="Name of a preset.")] = None,
    as_json: AsJson = False,
) -> None:
    """Set the policy of an agent or of one session; other values stay unchanged."""
    fields = {
        "mode": None if mode is None else str(mode),
        "preset": preset,
        "overrides": _overrides(numbers or ()) or None,
    }
    if all(value is None for value in fields.values()):
        raise typer.BadParameter("specify --number, --mode or --preset")
    answer = asyncio.run(_set(system_here(changes=True), agent, session, fields))
    if as_json:
        show_json(answer)
        return
    numbers_set = counted(len(answer["overrides"]), "number")
    typer.echo(
        f"Policy of {_name(agent, session)}: mode {answer['mode'] or 'unset'},"
        f" preset {answer['preset'] or 'unset'}, {numbers_set} set."
    )


def _name(agent: str, session: str | None) -> str:
    return agent if session is None else f"{agent} {session}"


def _overrides(pairs: Sequence[str]) -> dict[str, Any]:
    overrides: dict[str, Any] = {}
    for pair in pairs:
        name, is_pair, value = pair.partition("=")
        if not is_pair or not name:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE")
        try:
            overrides[name] = json.loads(value)
        except ValueError:
            overrides[name] = value
    return overrides


async def _read(agent: str, session: str | None) -> dict[str, Any]:
    async with connected_client() as client:
        if session is None:
            answer = await client.ask(agent_subject("agent.policy", agent), {})
            origins = {number["from"] for number in answer["numbers"].values()}
            is_set = "agent" in origins | {answer["mode_from"], answer["preset_from"]}
            if not is_set and not await has_sessions(client, agent):
                raise await unknown_agent(agent)
            return answer
        async with existing_session(client, agent, session) as chosen:
            # The policy of a session that does not exist yet is not an error, but a wrong name is.
            counts = await chosen.ask("session.get", {"policy": True})
            # Not with the request that also sets it, which auditors may not use.
            in_force: dict[str, Any] = counts.get("policy") or await chosen.ask("session.policy")
            return in_force


async def _set(
    system: System, agent: str, session: str | None, fields: dict[str, Any]
) -> dict[str, Any]:
    async with changing(system) as client:
        if session is not None:
            return await client.session(agent, session).policy(**fields)
        return await client.agent_policy(agent, **fields)
