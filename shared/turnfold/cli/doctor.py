"""`turnfold doctor`: check every part of a running system and give advice."""

import asyncio
import contextlib
import http.client
import shutil
import sqlite3
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from turnfold.cli.connection import system_here
from turnfold.cli.diagnoses import (
    MAX_ATTEMPTS,
    STUCK_MS,
    Finding,
    of_belonging,
    of_clock,
    of_disk,
    of_disk_writes,
    of_exposure,
    of_lag,
    of_room,
    of_work,
)
from turnfold.cli.model_checks import check_model
from turnfold.cli.output import print_rows
from turnfold.cli.parameters import AsJson
from turnfold.client.http import TRUST_ADVICE
from turnfold.errors import TurnfoldError, Unavailable
from turnfold.nats_client.connection import Denied
from turnfold.process.clock import now_ms
from turnfold.process.directory import running_system
from turnfold.settings import Settings, redacted

if TYPE_CHECKING:
    from nats.aio.client import Client

    from turnfold.store.database.engine import Database

BUS_SECONDS = 3.0
MONITORING_PORT = 8222
DATABASE_SECONDS = 10.0
OUTBOX_SECONDS = 3.0
WORKER_SECONDS = 3.0
QUERY_SECONDS = 5.0
HTTP_NAMES = ("http_host", "http_port", "http_url")
SAFE_SQLITE = (3, 51, 3)
"""The first SQLite release in which concurrent writers cannot corrupt a file.

Turnfold itself has only one writer.
"""


def doctor(
    asks_model: Annotated[
        bool,
        typer.Option("--model", help="Have the model summarize two sentences."),
    ] = False,
    monitoring: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Monitoring port of NATS (default: port 8222 of its host).",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check NATS, the database, the worker, the query service, the model and the machine."""
    from turnfold.observability.logs import configure_logs

    system = system_here()
    settings = system.settings
    # The findings report errors. Log lines would only repeat them.
    configure_logs(role="doctor", level="critical", format=settings.log_format)
    findings = asyncio.run(examine(settings, asks_model=asks_model, monitoring_url=monitoring))
    findings.insert(0, Finding("system", "ok", system.name))
    show_findings(findings, as_json=as_json)
    faults = [finding for finding in findings if finding.outcome == "failed"]
    if faults:
        raise TurnfoldError(
            f"{len(faults)} of {len(findings)} checks failed; first: {faults[0].advice}"
        )


def show_findings(findings: Sequence[Finding], *, as_json: bool = False) -> None:
    """Print a row for each finding."""
    print_rows(
        "turnfold doctor",
        ("check", "outcome", "found", "advice"),
        map(asdict, findings),
        as_json=as_json,
        empty="No checks.",
        texts=("found", "advice"),
        headings=2,
    )


async def examine(
    settings: Settings, *, asks_model: bool = False, monitoring_url: str | None = None
) -> list[Finding]:
    """Run every check once, independent ones concurrently.

    A named bus does not name the database and the HTTP server: their defaults may belong to another
    system, so without names of their own they are not checked.
    """
    # Before the checks begin, because loading can take longer than they may wait.
    import_module("turnfold_migrations")
    is_bus_named = "nats_url" in settings.explicit_names
    has_database = not is_bus_named or "database_url" in settings.explicit_names
    has_http = not is_bus_named or not settings.explicit_names.isdisjoint(HTTP_NAMES)
    *groups, model = await asyncio.gather(
        _bus(
            settings,
            monitoring_url or _default_monitoring_url(settings),
            has_database=has_database,
        ),
        _database(settings) if has_database else _not_named("database", "_DATABASE_URL"),
        _query(settings) if has_http else _not_named("query", "_HTTP_HOST and _PORT"),
        check_model(settings, asks_model=asks_model),
    )
    findings = [*chain.from_iterable(groups), model]
    if has_database:
        findings += _disk(settings)
    if has_http:
        checks_tokens = settings.http_tokens is not None
        findings.append(of_exposure(_http_host(settings), checks_tokens=checks_tokens))
    return findings


# A coroutine, because it takes the place of a check in `gather`.
async def _not_named(check: str, settings: str) -> list[Finding]:
    """Return the finding of a part that was not named."""
    found = "not named, and the default may belong to another system"
    return [Finding(check, "unknown", found, f"set TURNFOLD{settings} to check it")]


async def _bus(settings: Settings, monitoring_url: str, *, has_database: bool) -> list[Finding]:
    from turnfold.bus import (
        check_server,
        config_differences,
        server_version,
        server_warnings,
    )

    findings: list[Finding] = []
    try:
        async with _connected(settings) as client:
            check_server(client)
            warnings = server_warnings(client)
            version = f"NATS {server_version(client)} at {redacted(settings.nats_url)}"
            findings.append(
                Finding("bus", "warning" if warnings else "ok", version, "; ".join(warnings))
            )
            findings.append(await _disk_writes(settings, monitoring_url))
            try:
                differing = await config_differences(client)
            except Denied:
                advice = "set TURNFOLD_NATS_NKEY to the provisioner's key for this command"
                findings.append(
                    Finding("streams", "failed", "these credentials may not read them", advice)
                )
                return findings
            except Exception as error:  # noqa: BLE001 - any error is reported as a finding
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
                    "; ".join(differing) or "up to date",
                    advice,
                )
            )
            if not differing:
                findings += await _stream(settings, client, has_database=has_database)
    except TurnfoldError as error:
        findings.append(Finding("bus", "failed", "not usable", str(error)))
    return findings


@asynccontextmanager
async def _connected(settings: Settings) -> AsyncGenerator["Client", None]:
    from turnfold.bus import connect

    client = await connect(settings, name="doctor", seconds=BUS_SECONDS)
    try:
        yield client
    finally:
        await client.close()


def _default_monitoring_url(settings: Settings) -> str:
    """Return the usual monitoring URL of a NATS server."""
    first_server = settings.nats_url.split(",")[0]
    return f"http://{urlsplit(first_server).hostname or '127.0.0.1'}:{MONITORING_PORT}"


async def _disk_writes(settings: Settings, monitoring_url: str) -> Finding:
    from turnfold.bus.health import syncs_always

    # `turnfold up` configures its server with sync_interval: always.
    is_embedded = settings.data_dir is not None and "nats_url" not in settings.explicit_names
    return of_disk_writes(
        True if is_embedded else await syncs_always(monitoring_url), monitoring_url
    )


async def _stream(settings: Settings, client: "Client", *, has_database: bool) -> list[Finding]:
    """Check the stream of events. A running worker always has a pending fetch at the server."""
    from turnfold.bus.health import read_bus_health
    from turnfold.store.database.health import file_of, is_writer_there

    loop = asyncio.get_running_loop()
    deadline = loop.time() + WORKER_SECONDS
    # The server publishes no event when a worker starts to fetch, so its state is polled.
    while (  # noqa: ASYNC110
        not (health := await read_bus_health(client)).asking and loop.time() < deadline
    ):
        await asyncio.sleep(0.05)
    is_file = has_database and file_of(settings.database_url)
    has_writer = is_writer_there(settings.database_url) if is_file else None
    findings = await _belonging(settings, client) if has_database else []
    return [
        *findings,
        of_lag(health, has_writer=has_writer),
        of_room(health),
        of_clock("bus", health.clock_ms, own_ms=now_ms()),
    ]


async def _belonging(settings: Settings, client: "Client") -> list[Finding]:
    """Check that the database is that of this bus. Without an answer, other checks say why."""
    from turnfold.bus import stream_created
    from turnfold.store.database.instance_lock import bound_stream
    from turnfold.store.database.schema import REVISION
    from turnfold_migrations import revision_of

    try:
        async with _database_in_time(settings) as database:
            revision = await database.snapshot(revision_of)
            # Without the tables, the check of the database says so.
            owner = await bound_stream(database) if revision == REVISION else None
            created = await stream_created(client)
    except TurnfoldError:
        return []
    return [of_belonging(owner, created)] if owner is not None else []


@asynccontextmanager
async def _database_in_time(settings: Settings) -> AsyncGenerator["Database"]:
    """Open the database for reads that together have some seconds."""
    from turnfold.store.database.engine import Database

    database = Database(settings.database_url, writes=False)
    try:
        async with asyncio.timeout(DATABASE_SECONDS):
            yield database
    except TimeoutError as error:
        raise Unavailable(f"no answer within {DATABASE_SECONDS:g} s") from error
    finally:
        await database.close()


async def _database(settings: Settings) -> list[Finding]:
    from turnfold.store.database.schema import REVISION
    from turnfold_migrations import revision_of

    where = redacted(settings.database_url)
    findings: list[Finding] = []
    try:
        async with _database_in_time(settings) as database:
            revision = await database.snapshot(revision_of)
            if revision == REVISION:
                findings += await _jobs_and_notices(database)
    except TurnfoldError as error:
        is_named = "database_url" in settings.explicit_names
        advice = (
            "correct TURNFOLD_DATABASE_URL, or run `turnfold migrate`"
            if is_named
            else "set TURNFOLD_DATA_DIR to the data directory of `turnfold up`, or "
            "TURNFOLD_DATABASE_URL; or run `turnfold migrate`"
        )
        # The advice of the error itself would contradict this one.
        found = f"{where}: {str(error).removesuffix('; try again later')}"
        findings.append(Finding("database", "failed", found, advice))
    else:
        is_current = revision == REVISION
        text = f"{where}, schema {revision or 'none'}" + ("" if is_current else f", not {REVISION}")
        findings.insert(
            0,
            Finding(
                "database",
                "ok" if is_current else "failed",
                text,
                "" if is_current else "run `turnfold migrate`",
            ),
        )
    if settings.database_url.startswith("sqlite"):
        note = (
            ""
            if sqlite3.sqlite_version_info >= SAFE_SQLITE
            else "; do not write to the file with another program"
        )
        findings.append(Finding("sqlite", "ok", f"{sqlite3.sqlite_version}{note}"))
    return findings


async def _jobs_and_notices(database: "Database") -> list[Finding]:
    from turnfold.store.database.health import database_health

    read_health = partial(
        database_health, database, patience_ms=STUCK_MS, most_attempts=MAX_ATTEMPTS
    )
    first = health = await read_health(now_ms=now_ms())
    deadline = asyncio.get_running_loop().time() + OUTBOX_SECONDS
    # The relay publishes the oldest notice first, so another first one shows that it works.
    while (
        health.outbox
        and health.outbox_first == first.outbox_first
        and asyncio.get_running_loop().time() < deadline
    ):
        await asyncio.sleep(0.1)
        health = await read_health(now_ms=now_ms())
    is_moving = health.outbox_first != first.outbox_first
    findings = list(of_work(health, now_ms=now_ms(), is_outbox_moving=is_moving))
    if health.clock_ms is not None:
        findings.append(of_clock("database", health.clock_ms, own_ms=now_ms()))
    return findings


async def _query(settings: Settings) -> list[Finding]:
    advice = "start `turnfold query`, or read its log"
    try:
        status = await asyncio.to_thread(_readiness, settings.http_url)
    except (OSError, http.client.HTTPException) as error:
        found = f"nothing answers at {settings.http_url} ({type(error).__name__})"
        if isinstance(error, ssl.SSLCertVerificationError):
            found = f"its certificate is not trusted ({error.verify_message})"
            advice = TRUST_ADVICE
        return [Finding("query", "failed", found, advice)]
    if status != http.client.OK:
        return [Finding("query", "failed", f"{settings.http_url}/readyz answers {status}", advice)]
    return [Finding("query", "ok", f"ready at {settings.http_url}")]


def _http_host(settings: Settings) -> str:
    """Return the address on which HTTP listens: the one that was set, or else the system's own."""
    ready = None
    if settings.data_dir is not None and {"nats_url", *HTTP_NAMES}.isdisjoint(
        settings.explicit_names
    ):
        ready = running_system(settings.data_dir)
    return str((ready or {}).get("http_host", settings.http_host))


def _readiness(url: str) -> int:
    """Return the HTTP status of `/readyz`."""
    target = urlsplit(url)
    kind = http.client.HTTPSConnection if target.scheme == "https" else http.client.HTTPConnection
    connection = kind(target.hostname or "127.0.0.1", target.port, timeout=QUERY_SECONDS)
    with contextlib.closing(connection):
        connection.request("GET", f"{target.path.rstrip('/')}/readyz")
        return connection.getresponse().status


def _disk(settings: Settings) -> list[Finding]:
    """Check the disks of this machine that hold data, each once."""
    from turnfold.store.database.health import file_of

    file = file_of(settings.database_url)
    kept = [
        folder
        for folder in (file.parent if file else None, settings.data_dir)
        if folder is not None and folder.is_dir()
    ]
    # Reversed, so that of two folders on one disk the first is named.
    disks = {folder.stat().st_dev: folder for folder in reversed(kept)}
    usages = [(folder, shutil.disk_usage(folder)) for folder in disks.values()]
    return [of_disk(str(folder), free=usage.free, total=usage.total) for folder, usage in usages]
