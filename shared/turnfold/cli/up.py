"""`turnfold up` without its command line: the system that it runs, and what it prints."""

import asyncio
import contextlib
import functools
import itertools
import json
import os
import shlex
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from turnfold.cli.services import unused_imports_skipped
from turnfold.settings import Settings, read_settings

if TYPE_CHECKING:
    from turnfold.process.supervisor import SystemConfig

DATA_DIR: Final = Path(".turnfold")
NATS_PORT: Final = 4222
MAX_PORT: Final = 65_535
_OPTIONS: Final = {
    "--data-dir": "data_dir",
    "--nats-port": "nats_port",
    "--http-port": "http_port",
    "--proxy": "proxy_url",
    "--json": "as_json",
}


def simple_options(words: Sequence[str]) -> dict[str, Any] | None:
    """Return the options of `turnfold up`, or None if the command line has to look at them.

    The command line takes 8 MB and 0.2 s to load, so it is loaded only for help, for mistakes, and
    for ways to write an option that are rare.
    """
    options: dict[str, Any] = {}
    remaining = iter(words)
    for word in remaining:
        name = _OPTIONS.get(word)
        value = True if name == "as_json" else _value(name, next(remaining, ""))
        if name is None or name in options or value is None:
            return None
        options[name] = value
    return options


def _value(name: str | None, text: str) -> str | int | Path | None:
    """Return the value of an option, or None if it is not a simple one."""
    if name in ("nats_port", "http_port"):
        is_port = text.isascii() and text.isdigit() and int(text) <= MAX_PORT
        return int(text) if is_port else None
    if not text or text.startswith("-"):
        return None
    return Path(text) if name == "data_dir" else text


def run_system(
    *,
    data_dir: Path | None = None,
    nats_port: int = NATS_PORT,
    http_port: int | None = None,
    proxy_url: str | None = None,
    as_json: bool = False,
) -> None:
    """Run the whole system until a signal stops it."""
    from turnfold.process.supervisor import run

    # NATS starts here. The URL of an earlier run in this directory must not be used.
    overrides = {
        "data_dir": data_dir,
        "http_port": http_port,
        "nats_url": "nats://127.0.0.1",
        "proxy_upstream": proxy_url,
    }
    settings = read_settings(os.environ, overrides, options={"proxy_upstream": "--proxy"})
    plan, logger = _plan(settings, nats_port), _logger(settings)

    def on_start() -> None:
        # With --json, a program waits for the ready line and reads nothing else.
        if not as_json:
            announce(plan, settings, logger)

    asyncio.run(
        run(
            plan,
            on_start=on_start,
            on_ready=_print_json if as_json else panel_printer(plan.data_dir),
            log=lambda event, **fields: logger().warning(event, **fields),
        )
    )


def _plan(settings: Settings, nats_port: int) -> "SystemConfig":
    """Return what `turnfold up` runs.

    Raises:
        StartError: HTTP or the proxy would be open to strangers.
    """
    from turnfold.access.bearers import check_bind_address
    from turnfold.cli import main
    from turnfold.cli.copies import load
    from turnfold.process.forking import Copies
    from turnfold.process.supervisor import SystemConfig

    check_bind_address(
        settings.http_host,
        has_tokens=settings.http_tokens is not None,
        is_checked_elsewhere=settings.http_checked_elsewhere,
    )
    # The proxy checks no tokens of its own, so those of HTTP do not protect it.
    if settings.proxy_upstream is not None:
        check_bind_address(
            settings.proxy_host,
            has_tokens=False,
            is_checked_elsewhere=settings.http_checked_elsewhere,
        )
    return SystemConfig(
        data_dir=settings.data_dir or DATA_DIR,
        nats_port=nats_port,
        http_host=settings.http_host,
        http_port=settings.http_port,
        worker_http_port=settings.worker_http_port or 0,
        is_http_encrypted=settings.http_certificate is not None,
        proxy_upstream=settings.proxy_upstream,
        proxy_host=settings.proxy_host,
        proxy_port=settings.proxy_port,
        # Its default is a file in the working directory, and not in the data directory.
        database_url=settings.database_url if "database_url" in settings.explicit_names else None,
        nats_server=settings.nats_server,
        environ=os.environ,
        copies=Copies(load, main),
    )


def _logger(settings: Settings) -> Callable[[], Any]:
    """Return a function that returns the supervisor's logger, and configures it when first called.

    Most starts log nothing, and are faster without the import.
    """

    @functools.cache
    def logger() -> Any:
        with unused_imports_skipped():
            import structlog

            from turnfold.observability.logs import configure_logs

        configure_logs(role="up", level=settings.log_level, format=settings.log_format)
        return structlog.get_logger()

    return logger


def announce(plan: "SystemConfig", settings: Settings, logger: Callable[[], Any]) -> None:
    """Report on standard error what starts now: as text for people, else as a line of the log.

    Standard output has nothing before the ready line.
    """
    is_for_people = settings.log_format == "console" or (
        settings.log_format == "auto" and sys.stderr.isatty()
    )
    if not is_for_people:
        logger().info("system.starting", data_dir=str(plan.data_dir))
        return
    proxy = "" if plan.proxy_upstream is None else " and a proxy"
    services = f"a worker{',' if proxy else ' and'} a query service{proxy}"
    sys.stderr.write(
        f"Starting NATS, {services}. This takes a few seconds.\nData directory: {plan.data_dir}\n"
    )
    sys.stderr.flush()


def _print_json(ready: Mapping[str, Any]) -> None:
    with _readers_may_go():
        sys.stdout.write(json.dumps(ready) + "\n")


@contextlib.contextmanager
def _readers_may_go() -> Generator[None]:
    """Drop the output if it cannot be written, because the system continues to run."""
    try:
        yield
        sys.stdout.flush()
    except OSError:
        # The reader has closed the pipe, the terminal is gone, or the disk is full.
        # The file stays open as long as the process.
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115


def panel_printer(data_dir: Path) -> Callable[[Mapping[str, Any]], None]:
    """Return a function that prints the panel; later calls print only the running processes."""
    first: Callable[[Mapping[str, Any]], None] = functools.partial(print_panel, data_dir=data_dir)
    printers = itertools.chain([first], itertools.repeat(_print_processes))

    def report(ready: Mapping[str, Any]) -> None:
        next(printers)(ready)

    return report


def _print_processes(ready: Mapping[str, Any]) -> None:
    with _readers_may_go():
        sys.stdout.write(f"processes: {_processes(ready)}\n")


def _processes(ready: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {pid}" for name, pid in ready["pids"].items())


def print_panel(ready: Mapping[str, Any], data_dir: Path = DATA_DIR) -> None:
    """Print what runs and where, whole at any width."""
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table

    from turnfold.settings import redacted

    rows = Table.grid(padding=(0, 2))
    rows.add_column()
    # The path of a database is one long word, which would be cut off.
    rows.add_column(overflow="fold")
    rows.add_row("nats", redacted(ready["nats_url"]))
    rows.add_row("console", f"{ready['http_url']}/console")
    rows.add_row("http", f"{ready['http_url']}  (docs at {ready['http_url']}/docs)")
    if "proxy_url" in ready:
        # Clients of OpenAI append only the rest of the path, those of Anthropic the whole path.
        rows.add_row("proxy", f"{ready['proxy_url']}/v1  (OPENAI_BASE_URL)")
        rows.add_row("", f"{ready['proxy_url']}  (ANTHROPIC_BASE_URL)")
    rows.add_row("metrics", f"{ready['http_url']}/metrics, {ready['worker_url']}/metrics")
    rows.add_row("database", redacted(ready["database_url"]))
    rows.add_row("processes", _processes(ready))
    where = "in this folder"
    if data_dir != DATA_DIR:
        where = f"with TURNFOLD_DATA_DIR={shlex.quote(str(data_dir.absolute()))}"
    rows.add_row("try", f"turnfold replay FILE, then turnfold sessions ({where})")
    rows.add_row("stop", "Ctrl-C")
    # Paths may hold what rich reads as markup.
    console = Console(markup=False, emoji=False)
    with _readers_may_go():
        # Captured, because rich itself ends the process when the reader has gone.
        with console.capture() as panel:
            console.print(Panel(rows, title="turnfold is ready", expand=False))
        # Paths may hold what the encoding of the output lacks.
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(panel.get().encode(encoding, "backslashreplace").decode(encoding))
