"""`turnfold doctor`: looks at every part of a running system, and says of what is wrong how to set it right."""

import asyncio
import contextlib
import http.client
import json
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Literal
from urllib.parse import urlsplit

import typer
from nats.aio.client import Client

from turnfold.cli.reaching import settings_here
from turnfold.cli.showing import show_rows
from turnfold.embedded.directory import is_alive
from turnfold.errors import TurnfoldError
from turnfold.settings import READY_FILE, Settings, redacted

BUS_SECONDS = 3.0
WORKER_SECONDS = 3.0
QUERY_SECONDS = 5.0
SAFE_SQLITE = (3, 51, 3)
"""Before it, two processes that write or checkpoint at the same moment can corrupt a file; here one does."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check saw, and what to do about it when it is not `ok`."""

    check: str
    outcome: Literal["ok", "warning", "failed"]
    found: str
    advice: str = ""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(as_json: Annotated[bool, typer.Option("--json", help="One object a line.")] = False) -> None:
    """Check the bus, the database, the worker, the query service and the model."""
    findings = asyncio.run(examine(settings_here()))
    show_rows(
        "turnfold doctor", ("check", "outcome", "found", "advice"), [asdict(one) for one in findings], as_json=as_json, empty="Nothing."
    )
    faults = [one for one in findings if one.outcome == "failed"]
    if faults:
        raise TurnfoldError(f"{len(faults)} of {len(findings)} checks failed; first: {faults[0].advice}")


async def examine(settings: Settings) -> list[Finding]:
    """Every check once, the independent ones at the same time."""
    groups = await asyncio.gather(_bus(settings), _database(settings), _query(settings))
    return [*(finding for group in groups for finding in group), _model(settings)]


async def _bus(settings: Settings) -> list[Finding]:
    from turnfold.bus import check_server, differences, server_warnings

    findings: list[Finding] = []
    try:
        async with _connected(settings) as client:
            check_server(client)
            warnings = server_warnings(client)
            version = f"NATS {client.connected_server_version} at {redacted(settings.nats_url)}"
            findings.append(Finding("bus", "warning" if warnings else "ok", version, "; ".join(warnings)))
            try:
                differing = await differences(client)
            except Exception as error:  # noqa: BLE001 - whatever is wrong there is the finding
                findings.append(Finding("streams", "failed", f"no answer ({type(error).__name__})", "start the server with JetStream"))
                return findings
            advice = "run `turnfold migrate`" if differing else ""
            findings.append(Finding("streams", "failed" if differing else "ok", "; ".join(differing) or "as they should be", advice))
            if not differing:
                findings.append(await _worker(client))
    except TurnfoldError as error:
        findings.append(Finding("bus", "failed", "cannot be used", str(error)))
    return findings


@asynccontextmanager
async def _connected(settings: Settings) -> AsyncGenerator[Client, None]:
    from turnfold.bus import connect

    client = await connect(settings, name="doctor", role="command", seconds=BUS_SECONDS)
    try:
        yield client
    finally:
        await client.close()


async def _worker(client: Client) -> Finding:
    """A worker that lives asks for events all the time; the server counts who waits."""
    from turnfold.contracts.subjects import EVENTS_CONSUMER, EVENTS_STREAM

    loop = asyncio.get_running_loop()
    deadline = loop.time() + WORKER_SECONDS
    while True:
        info = await client.jetstream().consumer_info(EVENTS_STREAM, EVENTS_CONSUMER)
        lag = f"{info.num_pending or 0} events wait, {info.num_ack_pending or 0} are in hand"
        if info.num_waiting:
            return Finding("worker", "ok", f"asks for events; {lag}")
        if loop.time() > deadline:
            return Finding("worker", "failed", f"nobody asks for events; {lag}", "start `turnfold worker`, or see its log")
        await asyncio.sleep(0.05)


async def _database(settings: Settings) -> list[Finding]:
    from turnfold.store.engine import Database
    from turnfold_migrations import head, revision_of

    where = redacted(settings.database_url)
    findings: list[Finding] = []
    try:
        database = Database(settings.database_url, writes=False)
        try:
            async with database.read() as connection:
                revision = await connection.run_sync(revision_of)
        finally:
            await database.close()
    except TurnfoldError as error:
        findings.append(Finding("database", "failed", f"{where}: {error}", "correct TURNFOLD_DATABASE_URL, or run `turnfold migrate`"))
    else:
        newest = head()
        is_current = revision == newest
        found = f"{where}, schema {revision or 'none'}" + ("" if is_current else f", not {newest}")
        findings.append(Finding("database", "ok" if is_current else "failed", found, "" if is_current else "run `turnfold migrate`"))
    if settings.database_url.startswith("sqlite"):
        note = "" if sqlite3.sqlite_version_info >= SAFE_SQLITE else "; let no other program write to the file"
        findings.append(Finding("sqlite", "ok", f"{sqlite3.sqlite_version}{note}"))
    return findings


async def _query(settings: Settings) -> list[Finding]:
    advice = "start `turnfold query`, or see its log"
    try:
        status = await asyncio.to_thread(_readiness, settings.http_url)
    except (OSError, http.client.HTTPException) as error:
        return [Finding("query", "failed", f"nothing answers at {settings.http_url} ({type(error).__name__})", advice)]
    if status != http.client.OK:
        return [Finding("query", "failed", f"{settings.http_url}/readyz answers {status}", advice)]
    return [Finding("query", "ok", f"ready at {settings.http_url}")]


def _readiness(url: str) -> int:
    """The HTTP status of `/readyz`."""
    target = urlsplit(url)
    kind = http.client.HTTPSConnection if target.scheme == "https" else http.client.HTTPConnection
    connection = kind(target.hostname or "127.0.0.1", target.port, timeout=QUERY_SECONDS)
    with contextlib.closing(connection):
        connection.request("GET", f"{target.path.rstrip('/')}/readyz")
        return connection.getresponse().status


def _model(settings: Settings) -> Finding:
    if settings.summary_model is None:
        return Finding("model", "ok", "none configured: summaries are extractive")
    pid = _model_pid(settings)
    if pid is not None and not is_alive(pid):
        return Finding("model", "failed", f"its process {pid} is gone", "see the log of the worker")
    return Finding("model", "ok", settings.summary_model)


def _model_pid(settings: Settings) -> int | None:
    """The process that calls the model, where the system of the data directory names one."""
    if settings.data_dir is None:
        return None
    try:
        pid = json.loads((settings.data_dir / READY_FILE).read_text(encoding="utf-8"))["pids"]["model"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return pid if isinstance(pid, int) else None
