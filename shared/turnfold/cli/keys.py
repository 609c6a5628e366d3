"""`turnfold keys`: permissions on NATS by keys, and over HTTP by tokens."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from turnfold.access.roles import Role
from turnfold.cli.command_groups import group
from turnfold.cli.output import print_rows, show_json
from turnfold.cli.parameters import AsJson, AsOneJson
from turnfold.errors import TurnfoldError

KEYS_DIR = Path("keys")
TOKENS_FILE = "tokens.json"
COLUMNS = ("kind", "name", "role", "agents", "actor", "created_at")
MIN_PREFIX_LENGTH = 6

Directory = Annotated[
    Path, typer.Option("--dir", metavar="DIR", help="Directory of keys and tokens.")
]
NatsFile = Annotated[
    Path | None,
    typer.Option(
        "--nats",
        metavar="FILE",
        help="Write the accounts of all keys to this file, which the NATS server includes.",
    ),
]
RELOAD = (
    "Reload the NATS server so that it reads {}; twice for a new agent:"
    " docs/security.md#set-up-the-bus."
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    keys = group(app, "keys", "Manage keys for NATS and tokens for HTTP.")
    keys.command("new")(new)
    keys.command("token")(token)
    keys.command("list")(list_all)
    keys.command("revoke")(revoke)
    keys.command("nats")(nats)


def new(
    role: Annotated[
        Role,
        typer.Argument(metavar="ROLE", help="The role of the key."),
    ],
    agent: Annotated[
        str | None, typer.Argument(metavar="AGENT", help="The agent's id, for the role agent.")
    ] = None,
    directory: Directory = KEYS_DIR,
    nats_file: NatsFile = None,
    as_json: AsOneJson = False,
) -> None:
    """Create a key for NATS: a seed file that only you can read, and an entry in keys.json."""
    from turnfold.access.keys import new_key, write_accounts
    from turnfold.contracts.subjects import id_fault

    if (role == "agent") == (agent is None):
        raise typer.BadParameter(
            "a key of the role agent needs the agent's id: turnfold keys new agent AGENT"
            if agent is None
            else f"only a key of the role agent takes an id: turnfold keys new {role}"
        )
    if agent is not None and (fault := id_fault(agent)):
        raise typer.BadParameter(f"the agent's id {fault}")
    if nats_file is not None:
        # Before the key too: a command that fails must leave no key.
        write_accounts(directory, nats_file)
    key, path = new_key(directory, role, agent)
    if nats_file is not None:
        write_accounts(directory, nats_file)
    if as_json:
        show_json({**key._asdict(), "file": str(path)})
        return
    typer.echo(
        f"Wrote the key to {path}."
        f" Set TURNFOLD_NATS_NKEY to this path where {agent or f'the {role}'} runs."
    )
    typer.echo(
        RELOAD.format(nats_file)
        if nats_file
        else "It is valid once the server has read the output of `turnfold keys nats`."
    )


def token(
    agents: Annotated[
        list[str] | None,
        typer.Argument(metavar="AGENT", help="Ids of the agents that the token may access."),
    ] = None,
    is_operators: Annotated[
        bool,
        typer.Option(
            "--operator", help="Allow access to all agents, metrics and the API reference."
        ),
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name in the audit log (default: the first 12 characters of its hash).",
        ),
    ] = None,
    directory: Directory = KEYS_DIR,
    as_json: AsOneJson = False,
) -> None:
    """Create a bearer token for HTTP and print it once.

    Its hash is added to the file of TURNFOLD_HTTP_TOKENS (default: tokens.json).
    """
    from turnfold.access.bearers import EVERY_AGENT, name_fault, new_token
    from turnfold.contracts.subjects import id_fault

    if is_operators == bool(agents):
        raise typer.BadParameter("specify AGENT... or --operator")
    for agent in agents or ():
        if fault := id_fault(agent):
            raise typer.BadParameter(f"the agent's id {fault}")
        if agent == EVERY_AGENT:
            raise typer.BadParameter("an agent with the id * cannot have its own token")
    if name is not None and (fault := name_fault(name)):
        raise typer.BadParameter(f"the name {fault}")
    path = _tokens_file(directory)
    bearer_token = new_token(path, agents or [EVERY_AGENT], name=name)
    if as_json:
        show_json({"token": bearer_token, "agents": agents or [EVERY_AGENT], "file": str(path)})
    else:
        typer.echo(bearer_token)
        typer.echo(f"The token is shown only once; {path} contains its hash.", err=True)


def list_all(
    directory: Directory = KEYS_DIR,
    as_json: AsJson = False,
) -> None:
    """List the valid keys and tokens."""
    print_rows(
        "keys",
        COLUMNS,
        _known(directory),
        as_json=as_json,
        empty="No keys yet. Run `turnfold keys new ROLE` or `turnfold keys token AGENT`.",
        headings=2,
    )


def revoke(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A key or token hash from `keys list`, or its first characters."
        ),
    ],
    directory: Directory = KEYS_DIR,
    nats_file: NatsFile = None,
) -> None:
    """Revoke a key or a token.

    A token is revoked at once, a key when NATS reads its accounts again.
    """
    from turnfold.access.bearers import revoke_token
    from turnfold.access.keys import read_keys, revoke_key, write_accounts

    matches = [row for row in _known(directory) if row["name"].startswith(name)]
    is_too_short = len(name) < MIN_PREFIX_LENGTH
    if is_too_short or len(matches) != 1:
        number = len(matches) or "no"
        fault = "is too short" if is_too_short else f"is the beginning of {number} keys and tokens"
        raise TurnfoldError(
            f"{name!r} {fault};"
            f" copy at least {MIN_PREFIX_LENGTH} characters of one from `turnfold keys list`"
        )
    (row,) = matches
    is_key = row["kind"] == "key"
    if is_key and nats_file is not None:
        write_accounts(directory, nats_file)
    if not is_key:
        revoke_token(_tokens_file(directory), row["name"])
    else:
        revoke_key(directory, next(key for key in read_keys(directory) if key.key == row["name"]))
    typer.echo(f"Revoked the {row['kind']} {row['name']}.")
    if not is_key:
        return
    if nats_file is None:
        typer.echo("It stays valid until the server has read the output of `turnfold keys nats`.")
        return
    write_accounts(directory, nats_file)
    typer.echo(RELOAD.format(nats_file))


def nats(directory: Directory = KEYS_DIR) -> None:
    """Print the accounts and permissions of all keys, to include in a NATS configuration."""
    from turnfold.access.keys import read_keys
    from turnfold.access.roles import configuration

    keys = read_keys(directory)
    typer.echo(configuration(keys), nl=False)
    if not keys:
        # Not an error: an installation may begin with it.
        typer.echo(f"{directory} has no keys; a server that reads this admits nobody", err=True)


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
