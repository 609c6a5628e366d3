"""The services one by one, from the environment: what `turnfold worker`, `query` and `migrate` do."""

import os
import sys
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from turnfold.errors import StartError
from turnfold.settings import Settings, read_settings


def worker() -> int:
    """Ingest events and compact sessions until told to stop; the exit status."""
    settings = _settings("worker")
    from turnfold_worker.receiver import ReceiverProcess

    # The process loads while this one imports the worker.
    process = ReceiverProcess()
    from turnfold_worker.app import main

    return main(settings, process)


def receiver() -> int:
    """Receive events for the worker at the other end of standard input, which starts this by itself; the exit status."""
    settings = _settings("receiver")
    from turnfold_worker.receiver.child import main

    return main(settings)


def query() -> int:
    """Answer requests on the bus and over HTTP until told to stop; the exit status."""
    settings = _settings("query")
    from turnfold_query.lane import Lane

    # Its process loads while we load.
    lane = Lane()
    lane.begin()
    from turnfold_query.app import main

    return main(settings, lane, http_host=settings.http_host, http_port=settings.http_port)


def lane() -> int:
    """Do what computes for long for the query server at the other end of standard input, which starts this by itself; the exit status."""
    from turnfold.process.scheduling import step_aside

    step_aside()
    settings = _settings("lane")
    from turnfold_query.lane.child import main

    return main(settings)


def migrate() -> int:
    """Make the tables and the streams, or bring them up to date."""
    settings = _settings("migrate")
    from turnfold_migrations import migrate as bring_up_to_date

    bring_up_to_date(settings)
    return 0


def _travel_light(settings: Settings) -> None:
    """Keep out what libraries load only because it is there: 13 MB and a third of a second for each service.

    nats-py takes aiohttp for websocket URLs alone, and structlog takes rich for tracebacks, which are not shown here.
    """
    for name in ["rich"] if "ws" in urlsplit(settings.nats_url).scheme else ["rich", "aiohttp"]:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # how Python says that a module is not to be had


SERVICES: Mapping[str, Callable[[], int]] = {
    "worker": worker,
    "receiver": receiver,
    "query": query,
    "lane": lane,
    "migrate": migrate,
}


def _settings(role: str) -> Settings:
    """The settings of a service, with its logs set up and its life bound to its supervisor's."""
    settings = read_settings(os.environ)
    _check_named(settings, role)
    _travel_light(settings)
    from turnfold.observability.logs import configure_logs
    from turnfold.process.ready import follow_parent

    follow_parent()
    configure_logs(role=role, level=settings.log_level, format=settings.log_format)
    if settings.traces and role in ("worker", "query"):
        from turnfold.observability.tracing import begin

        begin(f"turnfold-{role}")
    return settings


def _check_named(settings: Settings, role: str) -> None:
    """Refuse to act on a system that was not named.

    Raises:
        StartError: no system runs in the named data directory, or tables and streams would be made where nobody said.
    """
    from turnfold.process.directory import running_system

    if "nats_url" in settings.explicit_names:
        return
    if settings.data_dir is not None:
        if running_system(settings.data_dir) is None:
            raise StartError(
                f"no system runs in {settings.data_dir}; set TURNFOLD_NATS_URL, or start all of it with `turnfold up`"
            )
    elif role == "migrate" and "database_url" not in settings.explicit_names:
        raise StartError(
            "no system is named; set TURNFOLD_NATS_URL and TURNFOLD_DATABASE_URL to what `turnfold migrate` is to set up"
        )
