"""`turnfold doctor`: looks at every part of a running system, and says of what is wrong how to set it right."""

import asyncio
import contextlib
import http.client
import json
import shutil
import sqlite3
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from turnfold.cli.connection import system_here
from turnfold.cli.diagnoses import (
    MOST_ATTEMPTS,
    STUCK_MS,
    Finding,
    of_clock,
    of_disk,
    of_disk_writes,
    of_exposure,
    of_lag,
    of_room,
    of_work,
)
from turnfold.cli.output import print_rows
from turnfold.errors import TurnfoldError
from turnfold.process.directory import is_alive
from turnfold.settings import READY_FILE, Settings, redacted

if TYPE_CHECKING:
    from nats.aio.client import Client

    from turnfold.store.database.engine import Database
    from turnfold.store.database.health import DatabaseHealth

BUS_SECONDS = 3.0
MODEL_SECONDS = 5.0
MONITORING_PORT = 8222
OUTBOX_SECONDS = 3.0
WORKER_SECONDS = 3.0
QUERY_SECONDS = 5.0
SAFE_SQLITE = (3, 51, 3)
"""Before it, two processes that write or checkpoint at the same moment can corrupt a file; here one does."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(
    asks_model: Annotated[
        bool,
        typer.Option(
            "--model", help="Have the model write a summary of two sentences, as a worker would."
        ),
    ] = False,
    monitoring: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The monitoring port of the bus; port 8222 of its host unless said otherwise.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One object a line.")] = False,
) -> None:
    """Check the bus, the database, the worker, the query service, the model and the machine."""
    from turnfold.observability.logs import configure_logs

    system = system_here()
    settings = system.settings
    # What it sees is in its findings.
    configure_logs(role="doctor", level="critical", format=settings.log_format)
    findings = asyncio.run(examine(settings, asks_model=asks_model, monitoring_url=monitoring))
    findings.insert(0, Finding("system", "ok", system.name))
    print_rows(
        "turnfold doctor",
        ("check", "outcome", "found", "advice"),
        [asdict(one) for one in findings],
        as_json=as_json,
        empty="Nothing.",
    )
    faults = [one for one in findings if one.outcome == "failed"]
    if faults:
        raise TurnfoldError(
            f"{len(faults)} of {len(findings)} checks failed; first: {faults[0].advice}"
        )


async def examine(
    settings: Settings, *, asks_model: bool = False, monitoring_url: str | None = None
) -> list[Finding]:
    """Every check once, the independent ones at the same time."""
    groups = await asyncio.gather(
        _bus(settings, monitoring_url or _monitoring_of(settings)),
        _database(settings),
        _query(settings),
        _model_asked(settings) if asks_model and settings.summary_model else _model(settings),
    )
    found = [finding for group in groups for finding in group]
    return [
        *found,
        *_disk(settings),
        of_exposure(settings.http_host, checks_tokens=settings.http_tokens is not None),
    ]


async def _bus(settings: Settings, monitoring_url: str) -> list[Finding]:
    from turnfold.bus import check_server, config_differences, server_warnings

    findings: list[Finding] = []
    try:
        async with _connected(settings) as client:
            check_server(client)
            warnings = server_warnings(client)
            version = f"NATS {client.connected_server_version} at {redacted(settings.nats_url)}"
            findings.append(
                Finding("bus", "warning" if warnings else "ok", version, "; ".join(warnings))
            )
            findings.append(await _disk_writes(settings, monitoring_url))
            try:
                differing = await config_differences(client)
            except Exception as error:  # noqa: BLE001 - whatever is wrong there is the finding
                findings.append(
                    Finding(
                        "streams",
                        "failed",
                        f"no answer ({type(error).__name__})",
                        "start the server with JetStream",
                    )
                )
                return findings
            advice = "run `turnfold migrate`" if differing else ""
            findings.append(
                Finding(
                    "streams",
                    "failed" if differing else "ok",
                    "; ".join(differing) or "as they should be",
                    advice,
                )
            )
            if not differing:
                findings += await _stream(settings, client)
    except TurnfoldError as error:
        findings.append(Finding("bus", "failed", "cannot be used", str(error)))
    return findings


@asynccontextmanager
async def _connected(settings: Settings) -> AsyncGenerator["Client", None]:
    from turnfold.bus import connect

    client = await connect(settings, name="doctor", seconds=BUS_SECONDS)
    try:
        yield client
    finally:
        await client.close()


def _monitoring_of(settings: Settings) -> str:
    """Where a server usually tells how it is set up."""
    return f"http://{urlsplit(settings.nats_url.split(',')[0]).hostname or '127.0.0.1'}:{MONITORING_PORT}"


async def _disk_writes(settings: Settings, monitoring_url: str) -> Finding:
    from turnfold.bus.health import syncs_always

    # The server that `turnfold up` starts is set up so.
    is_embedded = settings.data_dir is not None and "nats_url" not in settings.explicit_names
    return of_disk_writes(
        True if is_embedded else await syncs_always(monitoring_url), monitoring_url
    )


async def _stream(settings: Settings, client: "Client") -> list[Finding]:
    """A worker that lives asks for events all the time; the server counts who waits."""
    from turnfold.bus.health import read_bus_health
    from turnfold.store.database.health import file_of, is_writer_there

    loop = asyncio.get_running_loop()
    deadline = loop.time() + WORKER_SECONDS
    while not (health := await read_bus_health(client)).asking and loop.time() < deadline:  # noqa: ASYNC110  # the server tells nobody
        await asyncio.sleep(0.05)
    has_writer = is_writer_there(settings.database_url) if file_of(settings.database_url) else None
    return [
        of_lag(health, has_writer=has_writer),
        of_room(health),
        of_clock("bus", health.clock_ms, own_ms=_now_ms()),
    ]


async def _database(settings: Settings) -> list[Finding]:
    from turnfold.store.database.engine import Database
    from turnfold_migrations import head, revision_of

    where = redacted(settings.database_url)
    findings: list[Finding] = []
    try:
        database = Database(settings.database_url, writes=False)
        try:
            async with database.read() as connection:
                revision = await connection.run_sync(revision_of)
            if revision == head():
                findings += await _work(database)
        finally:
            await database.close()
    except TurnfoldError as error:
        findings.append(
            Finding(
                "database",
                "failed",
                f"{where}: {error}",
                "correct TURNFOLD_DATABASE_URL, or run `turnfold migrate`",
            )
        )
    else:
        newest = head()
        is_current = revision == newest
        found = f"{where}, schema {revision or 'none'}" + ("" if is_current else f", not {newest}")
        findings.insert(
            0,
            Finding(
                "database",
                "ok" if is_current else "failed",
                found,
                "" if is_current else "run `turnfold migrate`",
            ),
        )
    if settings.database_url.startswith("sqlite"):
        note = (
            ""
            if sqlite3.sqlite_version_info >= SAFE_SQLITE
            else "; let no other program write to the file"
        )
        findings.append(Finding("sqlite", "ok", f"{sqlite3.sqlite_version}{note}"))
    return findings


async def _work(database: "Database") -> list[Finding]:
    from turnfold.store.database.health import SqlHealth

    async def look() -> "DatabaseHealth":
        return await SqlHealth(database).look(
            now_ms=_now_ms(), patience_ms=STUCK_MS, most_attempts=MOST_ATTEMPTS
        )

    first = health = await look()
    deadline = asyncio.get_running_loop().time() + OUTBOX_SECONDS
    while (
        health.outbox
        and health.outbox_first == first.outbox_first
        and asyncio.get_running_loop().time() < deadline
    ):
        await asyncio.sleep(0.1)
        health = await look()
    is_moving = health.outbox_first != first.outbox_first
    findings = list(of_work(health, now_ms=_now_ms(), is_outbox_moving=is_moving))
    if health.clock_ms is not None:
        findings.append(of_clock("database", health.clock_ms, own_ms=_now_ms()))
    return findings


async def _query(settings: Settings) -> list[Finding]:
    advice = "start `turnfold query`, or see its log"
    try:
        status = await asyncio.to_thread(_readiness, settings.http_url)
    except (OSError, http.client.HTTPException) as error:
        return [
            Finding(
                "query",
                "failed",
                f"nothing answers at {settings.http_url} ({type(error).__name__})",
                advice,
            )
        ]
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


async def _model(settings: Settings) -> list[Finding]:
    if settings.summary_model is None:
        return [Finding("model", "ok", "none configured: summaries are extractive")]
    if settings.lacks_session_models:
        advice = (
            "set TURNFOLD_SUMMARY_MODELS to the models that sessions may name, such as openai/*"
        )
        return [
            Finding(
                "model",
                "warning",
                "session, and no model is allowed: summaries are extractive",
                advice,
            )
        ]
    pid = _model_pid(settings)
    if pid is not None and not is_alive(pid):
        return [
            Finding("model", "failed", f"its process {pid} is gone", "see the log of the worker")
        ]
    if settings.summary_api_base is None:
        return [Finding("model", "ok", f"{settings.summary_model}; --model asks it")]
    where = redacted(settings.summary_api_base)
    target = urlsplit(settings.summary_api_base)
    try:
        async with asyncio.timeout(MODEL_SECONDS):
            _, writer = await asyncio.open_connection(
                target.hostname, target.port or (443 if target.scheme == "https" else 80)
            )
        writer.close()
    except (OSError, TimeoutError) as error:
        advice = "correct TURNFOLD_SUMMARY_API_BASE, or start what should listen there; summaries are extractive meanwhile"
        return [
            Finding(
                "model",
                "failed",
                f"{settings.summary_model}: nothing listens at {where} ({type(error).__name__})",
                advice,
            )
        ]
    return [
        Finding(
            "model",
            "ok",
            f"{settings.summary_model}: something listens at {where}; --model asks it",
        )
    ]


async def _model_asked(settings: Settings) -> list[Finding]:
    """Have the model write, the way a worker does: in a process that loads litellm."""
    from turnfold.core.summary.gate import Reason
    from turnfold.core.summary.sources import Source, SummaryJob
    from turnfold.errors import SummarizerError
    from turnfold.models import ChildSummarizer

    asked = SummaryJob(
        sources=(
            Source("doctor#0", "user", "Is the summariser there?"),
            Source("doctor#1", "assistant", "It is being asked just now."),
        ),
        model=settings.summary_model,
        api_base=settings.summary_api_base,
        api_key=settings.summary_api_key,
        timeout_seconds=settings.summary_timeout_seconds,
        job_timeout_seconds=settings.summary_job_timeout_seconds,
    )
    summarizer = ChildSummarizer()
    try:
        draft = await summarizer.summarize(asked)
    except SummarizerError as error:
        if error.reason in (Reason.TIMEOUT, Reason.PROVIDER_ERROR, Reason.RATE_LIMITED):
            advice = "correct TURNFOLD_SUMMARY_MODEL, _API_BASE or _API_KEY, or wait until the provider is back; summaries are extractive meanwhile"
            return [
                Finding(
                    "model", "failed", f"{settings.summary_model} gives nothing: {error}", advice
                )
            ]
        return [
            Finding(
                "model",
                "ok",
                f"{settings.summary_model} answers; of two sentences it makes no summary ({error.reason})",
            )
        ]
    finally:
        await summarizer.close()
    return [Finding("model", "ok", f"{draft.model or settings.summary_model} writes")]


def _disk(settings: Settings) -> list[Finding]:
    """The disks of this machine that something is kept on, each once."""
    from turnfold.store.database.health import file_of

    file = file_of(settings.database_url)
    kept = [
        folder
        for folder in (file.parent if file else None, settings.data_dir)
        if folder is not None and folder.is_dir()
    ]
    disks = {folder.stat().st_dev: folder for folder in reversed(kept)}
    usages = [(folder, shutil.disk_usage(folder)) for folder in disks.values()]
    return [of_disk(str(folder), free=usage.free, total=usage.total) for folder, usage in usages]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _model_pid(settings: Settings) -> int | None:
    """The process that calls the model, where the system of the data directory names one."""
    if settings.data_dir is None:
        return None
    try:
        pid = json.loads((settings.data_dir / READY_FILE).read_text(encoding="utf-8"))["pids"][
            "model"
        ]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return pid if isinstance(pid, int) else None
