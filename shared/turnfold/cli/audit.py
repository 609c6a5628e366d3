"""`turnfold audit` shows the audit log, and `turnfold audit verify` verifies its hash chain."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from turnfold.cli.audit_tables import show_trails, with_fields
from turnfold.cli.connection import connected_client
from turnfold.cli.names import existing_session
from turnfold.cli.output import console, print_rows, show_json
from turnfold.cli.parameters import AsJson
from turnfold.cli.sessions import PAGE, every_session, listed
from turnfold.client import Client
from turnfold.core.history.audit_chain import ChainEnd, chain_fault, end_fault

COLUMNS = (
    "at",
    "phase",
    "actor",
    "compaction_id",
    "reason",
    "tokens_before",
    "tokens_after",
    "details",
)
VERDICT_COLUMNS = ("agent_id", "session_id", "rows", "verdict")
INTACT = "intact"


@dataclass(frozen=True, slots=True)
class AuditCheck:
    """The result of verifying one session; `verdict` is `intact` or describes the first fault."""

    agent_id: str
    session_id: str
    rows: int
    verdict: str


def audit(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="verify | AGENT SESSION",
            help="Show one session (default: all sessions).",
        ),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(min=0, metavar="COUNT", help="Show only the newest COUNT rows; 0 shows all."),
    ] = 50,
    details: Annotated[
        bool, typer.Option("--details", help="Show every field of each row, ids included.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the audit log, or verify its hash chain.

    `verify` recomputes the hash chain of each session.
    It exits with status 1 if a row was changed, removed or cut off.
    """
    arguments = words or []
    # Two words name a session, also one of an agent that is called verify.
    is_verify = arguments[:1] == ["verify"] and len(arguments) != 2
    session = arguments[1:] if is_verify else arguments
    if len(session) not in (0, 2):
        raise typer.BadParameter(
            "specify AGENT SESSION, or neither; `turnfold audit verify` verifies"
        )
    if is_verify:
        _verify(session, as_json=as_json)
        return
    rows = asyncio.run(_rows(session, most_sessions=max(PAGE, limit) if limit else None))
    # Times may go backwards within a chain, after a clock that was ahead.
    if not session:
        rows.sort(key=lambda row: (row["at_ms"], *_key(row), row["ordinal"]))
    rows = rows[-limit:] if limit else rows
    if as_json:
        show_json(*map(with_fields, rows))
    elif rows and sys.stdout.isatty():
        show_trails(console(), rows, details=details)
    else:
        columns = COLUMNS if session else ("agent_id", "session_id", *COLUMNS)
        print_rows("audit", columns, rows, as_json=False, empty="No audit rows yet.")


def _verify(session: Sequence[str], *, as_json: bool) -> None:
    checks = asyncio.run(_verdicts(session))
    print_rows(
        "audit",
        VERDICT_COLUMNS,
        (asdict(check) for check in checks),
        as_json=as_json,
        empty="No sessions to verify.",
        texts=("verdict",),
        headings=2,
    )
    broken = [check for check in checks if check.verdict != INTACT]
    if broken:
        names = ", ".join(f"{check.agent_id} {check.session_id}" for check in broken[:3])
        typer.echo(
            f"turnfold: the audit of {names} was changed; compare it with a backup and with the"
            " notices",
            err=True,
        )
        raise typer.Exit(1)


async def _rows(session: Sequence[str], *, most_sessions: int | None) -> list[dict[str, Any]]:
    keys = await _keys(session, limit=most_sessions)
    async with connected_client() as client:
        return [row for key in keys for row in await _trail(client, key)]


async def _verdicts(session: Sequence[str]) -> list[AuditCheck]:
    keys = await _keys(session)
    async with connected_client() as client:
        return [await _verdict(client, key) for key in keys]


async def _verdict(client: Client, key: tuple[str, str]) -> AuditCheck:
    """Verify the chain of one session.

    The end of the chain is read before the rows, because a row that is written meanwhile must not
    look like a fault. It is read again if there are more rows, because forged rows at the end must
    not pass for new ones.
    """
    end = await _end(client, key)
    rows, hashes = 0, [""]
    fault: str | None = None
    async with existing_session(client, *key) as session:
        # Only the hashes are kept, because a long chain may not fit into memory.
        async for row in session.audit_trail():
            rows += 1
            fault = fault or chain_fault([as_sealed(row)], hashes)
    if fault is None:
        later = await _end(client, key) if rows > end.rows else end
        fault = end_fault(hashes, end, later)
    return AuditCheck(*key, rows=rows, verdict=fault or INTACT)


async def _end(client: Client, key: tuple[str, str]) -> ChainEnd:
    """Return the end of the chain, as the session or its erasure names it."""
    async with existing_session(client, *key) as session:
        return ChainEnd(**(await session.ask("audit.list", {"limit": 1}))["end"])


def as_sealed(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row as it was hashed, with a numeric compaction id as a number."""
    compaction_id = row["compaction_id"]
    is_digits = isinstance(compaction_id, str) and compaction_id.isdigit()
    return row | {"compaction_id": int(compaction_id)} if is_digits else row


async def _keys(session: Sequence[str], *, limit: int | None = None) -> list[tuple[str, str]]:
    if session:
        return [(session[0], session[1])]
    keys = (
        await every_session()
        if limit is None
        else [_key(row) for row in await listed("sessions", limit=limit + 1)]
    )
    if limit is not None and len(keys) > limit:
        keys.pop()
        typer.echo(
            f"turnfold: these are rows only of the {limit:,} sessions with the newest events;"
            " name a session, or set --limit 0 to read all",
            err=True,
        )
    erased = [row for row in await listed("erasures", limit=limit) if row["session_id"] is not None]
    # A session that came back after its erasure continues the chain.
    return [*dict.fromkeys([*keys, *map(_key, erased)])]


def _key(row: dict[str, Any]) -> tuple[str, str]:
    return row["agent_id"], row["session_id"]


async def _trail(client: Client, key: tuple[str, str]) -> list[dict[str, Any]]:
    async with existing_session(client, *key) as session:
        return [row async for row in session.audit_trail()]
