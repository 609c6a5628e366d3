"""`turnfold audit`: what happened to a session and why; `turnfold audit verify`: whether anybody changed that record."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from turnfold.cli.connection import connected_client
from turnfold.cli.output import print_rows
from turnfold.cli.sessions import newest_sessions
from turnfold.client import Client
from turnfold.core.history.audit_chain import row_hash
from turnfold.errors import UnknownSession

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

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AuditCheck:
    """What a look at one session's chain showed; `verdict` is `intact` or says where it breaks."""

    agent_id: str
    session_id: str
    rows: int
    verdict: str


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("audit")(audit)


def audit(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[verify] [AGENT SESSION]", help="One session; without it, the newest 1,000."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="The newest so many rows; 0 shows all.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Tell what happened to one session or to all, or verify that nobody changed the record.

    `verify` recomputes the hash chain of each session and ends with status 1 where a row was changed, left out or cut off.
    """
    given = words or []
    is_verify = given[:1] == ["verify"] and len(given) != 2
    session = given[1:] if is_verify else given
    if len(session) not in (0, 2):
        raise typer.BadParameter("give an agent and a session, or neither")
    if is_verify:
        verdicts = asyncio.run(_verdicts(session))
        print_rows(
            "audit",
            VERDICT_COLUMNS,
            (asdict(one) for one in verdicts),
            as_json=as_json,
            empty="No sessions to verify.",
        )
        broken = [one for one in verdicts if one.verdict != INTACT]
        if broken:
            names = ", ".join(f"{one.agent_id} {one.session_id}" for one in broken[:3])
            typer.echo(
                f"turnfold: the audit of {names} was changed: compare it with a backup and with the notices",
                err=True,
            )
            raise typer.Exit(1)
    else:
        rows = asyncio.run(_rows(session))
        rows.sort(
            key=lambda row: (row["at_ms"], row["agent_id"], row["session_id"], row["ordinal"])
        )
        columns = COLUMNS if session else ("agent_id", "session_id", *COLUMNS)
        print_rows(
            "audit",
            columns,
            rows[-limit:] if limit else rows,
            as_json=as_json,
            empty="Nothing happened yet.",
        )


async def _rows(session: Sequence[str]) -> list[Row]:
    keys = await _keys(session)
    async with connected_client() as client:
        return [row for key in keys for row in await _trail(client, key)]


async def _verdicts(session: Sequence[str]) -> list[AuditCheck]:
    keys = await _keys(session)
    async with connected_client() as client:
        return [await _verdict(client, key) for key in keys]


async def _verdict(client: Client, key: tuple[str, str]) -> AuditCheck:
    """The end of the chain is asked for first: what is written meanwhile must not look like a break.

    Nor may what somebody added pass for written meanwhile: rows beyond that end have to be known by the session afterwards.
    """
    end = await _end(client, key)
    rows = await _trail(client, key)
    fault = chain_fault(rows, rows_told=end.get("rows"), hash_told=end.get("hash"))
    if fault is None and len(rows) > end.get("rows", len(rows)):
        later = await _end(client, key)
        fault = chain_fault(rows, rows_at_most=later.get("rows"))
    return AuditCheck(*key, rows=len(rows), verdict=fault or INTACT)


async def _end(client: Client, key: tuple[str, str]) -> Row:
    """What the session says of the end of its chain; nothing where it was erased, which leaves its audit behind."""
    try:
        end: Row = (await client.session(*key).status()).get("audit") or {}
    except UnknownSession:
        return {}
    return end


def chain_fault(
    rows: Sequence[Row],
    *,
    rows_told: int | None = None,
    hash_told: str | None = None,
    rows_at_most: int | None = None,
) -> str | None:
    """Where the chain of a session breaks, or None; `rows_told` and `hash_told` are what its session row says of the end.

    `rows_at_most` is what it says after the rows were read: there cannot be more.
    """
    hashes = [""]
    for ordinal, row in enumerate(rows, start=1):
        if row["ordinal"] != ordinal or row["prev_hash"] != hashes[-1]:
            return f"row {ordinal} is missing"
        if row_hash(hashes[-1], _sealed(row)) != row["hash"]:
            return f"row {ordinal} was changed"
        hashes.append(row["hash"])
    if rows_told is not None and rows_told > len(rows):
        return f"the end is cut off: {rows_told} rows were written, {len(rows)} are there"
    if rows_at_most is not None and len(rows) > rows_at_most:
        return f"row {rows_at_most + 1} was added: {rows_at_most} rows were written, {len(rows)} are there"
    if rows_told is not None and hash_told is not None and hashes[rows_told] != hash_told:
        return f"row {rows_told} is another than the session remembers"
    return None


def _sealed(row: Row) -> Row:
    """The row as it was sealed, where a compaction id was a number."""
    compaction_id = row["compaction_id"]
    is_digits = isinstance(compaction_id, str) and compaction_id.isdigit()
    return row | {"compaction_id": int(compaction_id)} if is_digits else row


async def _keys(session: Sequence[str]) -> list[tuple[str, str]]:
    if session:
        return [(session[0], session[1])]
    return [(row["agent_id"], row["session_id"]) for row in await newest_sessions()]


async def _trail(client: Client, key: tuple[str, str]) -> list[Row]:
    return [row async for row in client.session(*key).audit_trail()]
