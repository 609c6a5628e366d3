"""Commands that run the whole system or one of its services."""

from pathlib import Path
from typing import Annotated

import typer

from turnfold.cli import services
from turnfold.cli.parameters import named_directory
from turnfold.cli.up import MAX_PORT, NATS_PORT, run_system


def register(app: typer.Typer) -> None:
    """Add `up`, `worker`, `query`, `proxy` and `migrate`."""
    app.command()(up)
    app.command()(worker)
    app.command()(query)
    app.command()(proxy)
    app.command()(migrate)


def up(
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            parser=named_directory,
            help="Directory for all data (default: TURNFOLD_DATA_DIR, else .turnfold).",
        ),
    ] = None,
    nats_port: Annotated[
        int,
        typer.Option(min=0, max=MAX_PORT, metavar="PORT", help="Port of NATS; 0 picks a free one."),
    ] = NATS_PORT,
    http_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MAX_PORT,
            metavar="PORT",
            help="Port of HTTP; 0 picks a free one (default: 8080).",
        ),
    ] = None,
    proxy_url: Annotated[
        str | None,
        typer.Option("--proxy", metavar="URL", help="Also run a proxy in front of this provider."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the ready line as JSON.")] = False,
) -> None:
    """Run the whole system: NATS, database, worker and query service. Stop it with Ctrl-C."""
    run_system(
        data_dir=data_dir,
        nats_port=nats_port,
        http_port=http_port,
        proxy_url=proxy_url,
        as_json=as_json,
    )


def worker() -> None:
    """Run a worker: ingest events and compact sessions. Configure it with TURNFOLD_* variables."""
    raise typer.Exit(services.worker())


def query() -> None:
    """Run a query service on NATS and HTTP. Configure it with TURNFOLD_* variables."""
    raise typer.Exit(services.query())


def proxy(
    upstream: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="The provider, such as https://api.openai.com/v1 (required)."
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MAX_PORT,
            metavar="PORT",
            help="Port to listen on; 0 picks a free one (default: 8090).",
        ),
    ] = None,
) -> None:
    """Run a proxy for agents that change only their base URL, and print its address."""
    raise typer.Exit(services.proxy({"proxy_upstream": upstream, "proxy_port": port}))


def migrate() -> None:
    """Create or update the tables and the streams."""
    raise typer.Exit(services.migrate())
