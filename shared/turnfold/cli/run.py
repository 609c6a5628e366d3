"""Commands that run the system: all of it under one roof, or its parts one by one."""

import asyncio
import functools
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from turnfold.cli import services as serving
from turnfold.settings import Settings, read_settings

DATA_DIR = Path(".turnfold")
NATS_PORT = 4222


def register(app: typer.Typer) -> None:
    """Add `up`, `worker`, `query` and `migrate`."""
    app.command()(up)
    app.command()(worker)
    app.command()(query)
    app.command()(migrate)


def up(
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Where everything is kept (TURNFOLD_DATA_DIR, else .turnfold)."),
    ] = None,
    nats_port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port of the bus; 0 picks a free one.")
    ] = NATS_PORT,
    http_port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Port of HTTP; 0 picks a free one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the ready line as JSON.")] = False,
) -> None:
    """Run the whole system: bus, database, worker and query. Stop it with Ctrl-C."""
    from turnfold.access.bearers import check_bind_address
    from turnfold.process.supervisor import SystemConfig, run

    # The bus is the one that starts here, whatever ran on this directory before.
    given = {
        "data_dir": data_dir,
        "http_port": http_port,
        "nats_url": f"nats://127.0.0.1:{nats_port}",
    }
    settings = read_settings(os.environ, given)
    check_bind_address(
        settings.http_host,
        has_tokens=settings.http_tokens is not None,
        is_checked_elsewhere=settings.http_checked_elsewhere,
    )
    plan = SystemConfig(
        data_dir=settings.data_dir or DATA_DIR,
        nats_port=nats_port,
        http_host=settings.http_host,
        http_port=settings.http_port,
        worker_http_port=settings.worker_http_port or 0,
        is_http_encrypted=settings.http_certificate is not None,
        database_url=settings.database_url if "database_url" in settings.explicit_names else None,
        nats_server=settings.nats_server,
        environ=os.environ,
    )
    asyncio.run(run(plan, on_ready=_print_json if as_json else _print_panel, log=_logger(settings)))


def worker() -> None:
    """Ingest events and compact sessions, with the bus and the database of the environment."""
    raise typer.Exit(serving.worker())


def query() -> None:
    """Answer requests on the bus and over HTTP, with the bus and the database of the environment."""
    raise typer.Exit(serving.query())


def migrate() -> None:
    """Make the tables and the streams, or bring them up to date."""
    raise typer.Exit(serving.migrate())


def _logger(settings: Settings) -> Callable[..., None]:
    """Logs of the supervisor, set up when there is something to say: the start is quicker so."""

    @functools.cache
    def ready() -> Any:
        import structlog

        from turnfold.observability.logs import configure_logs

        configure_logs(role="up", level=settings.log_level, format=settings.log_format)
        return structlog.get_logger()

    def log(event: str, **fields: Any) -> None:
        ready().warning(event, **fields)

    return log


def _print_json(ready: Mapping[str, Any]) -> None:
    try:
        sys.stdout.write(json.dumps(ready) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # Nobody reads the ready line any more; the system serves on.
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - it lives as long as the process


def _print_panel(ready: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table

    from turnfold.settings import redacted

    rows = Table.grid(padding=(0, 2))
    rows.add_row("bus", redacted(ready["nats_url"]))
    rows.add_row("http", f"{ready['http_url']}  (docs at {ready['http_url']}/docs)")
    rows.add_row("figures", f"{ready['http_url']}/metrics, {ready['worker_url']}/metrics")
    rows.add_row("database", redacted(ready["database_url"]))
    rows.add_row("processes", ", ".join(f"{name} {pid}" for name, pid in ready["pids"].items()))
    rows.add_row(
        "try",
        "turnfold replay FILE, then turnfold sessions (with TURNFOLD_DATA_DIR set to this data directory)",
    )
    rows.add_row("stop", "Ctrl-C")
    Console().print(Panel(rows, title="turnfold is ready", expand=False))
