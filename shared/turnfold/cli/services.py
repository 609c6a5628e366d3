"""Entry points of the services, configured from the environment."""

import gc
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from turnfold.errors import StartError
from turnfold.settings import Settings, read_settings, redacted


def worker() -> int:
    """Run the worker until it is stopped; return the exit status."""
    settings = _settings("worker")
    from turnfold_worker.receiver.parent import ReceiverProcess

    # The child process loads while this one imports the worker.
    process = ReceiverProcess()
    with _collector_paused():
        from turnfold_worker.app import main

    return main(settings, process)


def receiver() -> int:
    """Run the receiver, which the worker starts and controls over stdin; return the exit status."""
    settings = _settings("receiver")
    with _collector_paused():
        from turnfold_worker.receiver.child import main

    return main(settings)


def query() -> int:
    """Run the query service on NATS and HTTP until it is stopped; return the exit status."""
    settings = _settings("query")
    from turnfold_query.lane.parent import start_process

    # The child process loads while this one does.
    lane_process = start_process()
    with _collector_paused():
        from turnfold_query.app import main

    return main(settings, lane_process)


def lane() -> int:
    """Run the lane, the query service's process for long computations; return the exit status.

    The query service starts it and controls it over stdin.
    """
    from turnfold.process.scheduling import NICENESS, lower_priority

    # Before any thread starts: threads inherit the priority.
    lower_priority(2 * NICENESS)
    settings = _settings("lane")
    with _collector_paused():
        from turnfold_query.lane.child import main

    return main(settings)


def proxy(options: Mapping[str, Any] | None = None) -> int:
    """Run the proxy until it is stopped; return the exit status."""
    settings = _settings("proxy", options)
    with _collector_paused():
        from turnfold_proxy.app import main

    return main(settings)


def migrate() -> int:
    """Create or update the tables and the streams."""
    settings = _settings("migrate")
    with _collector_paused():
        from turnfold_migrations import migrate as bring_up_to_date

    bring_up_to_date(settings)
    import structlog

    structlog.get_logger().info(
        "system.migrated",
        nats_url=redacted(settings.nats_url),
        database_url=redacted(settings.database_url),
    )
    return 0


@contextmanager
def _collector_paused() -> Generator[None]:
    """Import without garbage collections, which find nothing and take a tenth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def unused_imports_skipped() -> Generator[None]:
    """Block optional imports of libraries in the body, for a service of `turnfold up`."""
    blocked = _skip_unused_imports("nats://127.0.0.1")
    try:
        yield
    finally:
        for name in blocked:
            # This process may need it, for example to print a table.
            del sys.modules[name]


def _skip_unused_imports(nats_url: str) -> Sequence[str]:
    """Block optional imports of libraries, which cost each service 13 MB and a third of a second.

    Return the names of the modules that cannot be imported from now on.

    nats-py uses aiohttp only for websocket URLs. structlog uses rich only for tracebacks, which the
    services do not print. FastAPI uses pydantic.v1 only to refuse its models.
    """
    unused = ["rich", "pydantic.v1"]
    if "ws" not in urlsplit(nats_url).scheme:
        unused.append("aiohttp")
    blocked = [name for name in unused if name not in sys.modules]
    for name in blocked:
        # None in sys.modules makes an import fail.
        sys.modules[name] = None  # type: ignore[assignment]  # the stubs allow modules only
    _skip_orm()
    return blocked


def _skip_orm() -> None:
    """Replace the sessions of SQLAlchemy, whose import of its ORM costs 6 MB and 0.1 s."""
    package = "sqlalchemy.ext.asyncio"
    if package not in sys.modules:
        for name in ("session", "scoping"):
            module = _Unused(f"{package}.{name}")
            sys.modules[module.__name__] = module


class _Unused(ModuleType):
    """A module of which only the names are imported."""

    def __getattr__(self, name: str) -> object:
        # The import system asks for names such as `__path__`, which a plain module lacks.
        if name.startswith("__"):
            raise AttributeError(name)
        return None


OPTIONS = {"proxy_upstream": "--upstream", "proxy_port": "--port"}
"""The options of `turnfold proxy` by their settings."""
SERVICES: Mapping[str, Callable[[], int]] = {
    "worker": worker,
    "receiver": receiver,
    "query": query,
    "lane": lane,
    "migrate": migrate,
    "proxy": proxy,
}


def _settings(role: str, options: Mapping[str, Any] | None = None) -> Settings:
    """Read the settings of a service, configure its logs, and bind its life to its parent's."""
    settings = read_settings(os.environ, options, options=OPTIONS)
    _check_system_is_named(settings, role)
    # Before the next import: it loads structlog, which imports rich if it can.
    _skip_unused_imports(settings.nats_url)
    from turnfold.observability.logs import configure_logs
    from turnfold.process.ready import follow_parent

    follow_parent()
    configure_logs(role=role, level=settings.log_level, format=settings.log_format)
    # Their children pass traces on as texts, and record none.
    if settings.traces and role in ("worker", "query", "proxy"):
        from turnfold.observability.tracing import begin

        begin(f"turnfold-{role}")
    return settings


def _check_system_is_named(settings: Settings, role: str) -> None:
    """Refuse to use a system that is not named.

    Raises:
        StartError: no system runs in the named data directory, or `migrate` was started without
            a named system.
    """
    from turnfold.process.directory import running_system

    if "nats_url" in settings.explicit_names:
        return
    if settings.data_dir is not None:
        if running_system(settings.data_dir) is None:
            raise StartError(
                f"no system runs in {settings.data_dir};"
                " set TURNFOLD_NATS_URL, or start the whole system with `turnfold up`"
            )
    elif role == "migrate" and "database_url" not in settings.explicit_names:
        raise StartError(
            "no system is named; set TURNFOLD_NATS_URL and TURNFOLD_DATABASE_URL"
            " to the system that `turnfold migrate` sets up"
        )
