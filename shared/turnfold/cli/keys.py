"""`turnfold keys`: who may do what, on the bus by keys and over HTTP by tokens."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from turnfold.cli.command_groups import group
from turnfold.cli.output import print_rows, show_json
from turnfold.errors import TurnfoldError

KEYS_DIR = Path("keys")
TOKENS_FILE = "tokens.json"
COLUMNS = ("kind", "name", "role", "agents", "actor", "created_at")
LEAST_OF_A_NAME = 6

Directory = Annotated[
    Path, typer.Option("--dir", help="Where keys, tokens and what is known of them are kept.")
]
NatsFile = Annotated[
    Path | None,
    typer.Option(
        "--nats",
        metavar="FILE",
        help="Write the accounts of all keys into this file, which the NATS server includes.",
    ),
]
RELOAD = (
    "Have the NATS server read {} again, for a new agent twice: docs/security.md#set-up-the-bus."
)


class RoleName(StrEnum):
    """Who signs in."""

    AGENT = "agent"
    WORKER = "worker"
    QUERY = "query"
    AUDITOR = "auditor"
    OPERATOR = "operator"
    PROVISIONER = "provisioner"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    keys = group(app, "keys", "Who may do what: keys of the bus, tokens of HTTP.")
    keys.command("new")(new)
    keys.command("token")(token)
    keys.command("list")(list_all)
    keys.command("revoke")(revoke)
    keys.command("nats")(nats)


def new(
    role: Annotated[RoleName, typer.Argument(help="What it may do.")],
    agent: Annotated[str | None, typer.Argument(help="The agent's id, for the role agent.")] = None,
    directory: Directory = KEYS_DIR,
    nats_file: NatsFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Make a key of the bus: its seed goes into a file that only you may read, its public half into keys.json."""
    from turnfold.access.keys import new_key, write_accounts
    from turnfold.contracts.subjects import id_fault

    if (role is RoleName.AGENT) == (agent is None):
        raise typer.BadParameter(
            "an agent is named, and nobody else: turnfold keys new agent AGENT, turnfold keys new worker"
        )
    if agent is not None and (fault := id_fault(agent)):
        raise typer.BadParameter(f"the agent's id {fault}")
    key, path = new_key(directory, role.value, agent)
    if nats_file is not None:
        write_accounts(directory, nats_file)
    if as_json:
        show_json({**key._asdict(), "file": str(path)})
        return
    typer.echo(
        f"{path} holds the key: name it in TURNFOLD_NATS_NKEY where {agent if agent is not None else f'the {role.value}'} runs."
    )
    typer.echo(
        RELOAD.format(nats_file)
        if nats_file
        else "It holds from the next `turnfold keys nats` that the server reads."
    )


def token(
    agents: Annotated[
        list[str] | None, typer.Argument(help="The ids of the agents it reaches.")
    ] = None,
    is_operators: Annotated[
        bool, typer.Option("--operator", help="It reaches every agent, the figures and the manual.")
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(help="What the audit calls it; else the first 12 characters of its hash."),
    ] = None,
    directory: Directory = KEYS_DIR,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Make a bearer token of HTTP and show it, this once. The file of TURNFOLD_HTTP_TOKENS (else tokens.json) gets its hash."""
    from turnfold.access.bearers import EVERY_AGENT, name_fault, new_token
    from turnfold.contracts.subjects import id_fault

    if is_operators == bool(agents):
        raise typer.BadParameter("name the agents that it reaches, or say --operator")
    for agent in agents or ():
        if fault := id_fault(agent):
            raise typer.BadParameter(f"the agent's id {fault}")
        if agent == EVERY_AGENT:
            raise typer.BadParameter("an agent called * can have no token of its own")
    if name is not None and (fault := name_fault(name)):
        raise typer.BadParameter(f"the name {fault}")
    path = _tokens_file(directory)
    made = new_token(path, agents or [EVERY_AGENT], name=name)
    if as_json:
        show_json({"token": made, "agents": agents or [EVERY_AGENT], "file": str(path)})
    else:
        typer.echo(made)
        typer.echo(f"It is shown this once; {path} holds its hash.", err=True)


def list_all(
    directory: Directory = KEYS_DIR,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """List the keys and the tokens that hold."""
    print_rows(
        "keys",
        COLUMNS,
        _known(directory),
        as_json=as_json,
        empty="No keys yet: turnfold keys new ROLE, turnfold keys token AGENT.",
    )


def revoke(
    name: Annotated[
        str,
        typer.Argument(
            help="A key or the hash of a token as `keys list` names it, or how it begins."
        ),
    ],
    directory: Directory = KEYS_DIR,
    nats_file: NatsFile = None,
) -> None:
    """Have a key or a token hold no longer: a token at once, a key when the NATS server reads its accounts again."""
    from turnfold.access.bearers import revoke_token
    from turnfold.access.keys import read_keys, revoke_key, write_accounts

    found = [row for row in _known(directory) if row["name"].startswith(name)]
    if len(found) != 1 or len(name) < LEAST_OF_A_NAME:
        raise TurnfoldError(
            f"{len(found)} keys and tokens begin so; name one by its first {LEAST_OF_A_NAME} characters or more"
        )
    (row,) = found
    if row["kind"] == "token":
        revoke_token(_tokens_file(directory), row["name"])
    else:
        revoke_key(directory, next(key for key in read_keys(directory) if key.key == row["name"]))
    typer.echo(f"Revoked the {row['kind']} {row['name']}.")
    if row["kind"] == "key" and nats_file is not None:
        write_accounts(directory, nats_file)
        typer.echo(RELOAD.format(nats_file))


def nats(directory: Directory = KEYS_DIR) -> None:
    """Print the accounts and permissions of all keys, for the configuration of a NATS server to include."""
    from turnfold.access.keys import read_keys
    from turnfold.access.roles import configuration

    typer.echo(configuration(read_keys(directory)), nl=False)


def _known(directory: Path) -> list[dict[str, Any]]:
    from turnfold.access.bearers import read_tokens
    from turnfold.access.keys import read_keys

    rows = [
        {
            "kind": "key",
            "name": key.key,
            "role": key.role,
            "agents": key.agent_id,
            "actor": f"key:{key.key}",
            "created_at": key.created_at,
        }
        for key in read_keys(directory)
    ]
    path = _tokens_file(directory)
    if path.exists():
        rows += [
            {
                "kind": "token",
                "name": digest,
                "role": None,
                "agents": ", ".join(token.agents),
                "actor": f"token:{token.actor_name(digest)}",
                "created_at": None,
            }
            for digest, token in read_tokens(path).items()
        ]
    return rows


def _tokens_file(directory: Path) -> Path:
    from turnfold.settings import read_settings

    return read_settings(os.environ).http_tokens or directory / TOKENS_FILE
