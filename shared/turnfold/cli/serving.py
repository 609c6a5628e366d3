"""The services one by one, from the environment: what `turnfold worker`, `query` and `migrate` do."""

import os
from collections.abc import Callable, Mapping

from turnfold.settings import Settings, read_settings


def worker() -> int:
    """Ingest events and compact sessions until told to stop; the exit status."""
    settings = _settings("worker")
    from turnfold_worker.app import main

    return main(settings)


def query() -> int:
    """Answer requests on the bus and over HTTP until told to stop; the exit status."""
    settings = _settings("query")
    from turnfold_query.app import main

    return main(settings, http_host=settings.http_host, http_port=settings.http_port)


def migrate() -> int:
    """Make the tables and the streams, or bring them up to date."""
    settings = _settings("migrate")
    from turnfold_migrations import migrate as bring_up_to_date

    bring_up_to_date(settings)
    return 0


SERVICES: Mapping[str, Callable[[], int]] = {"worker": worker, "query": query, "migrate": migrate}


def _settings(role: str) -> Settings:
    """The settings of a service, with its logs set up and its life bound to its supervisor's."""
    from turnfold.embedded.ready import follow_parent
    from turnfold.logs import configure_logs

    settings = read_settings(os.environ)
    follow_parent()
    configure_logs(role=role, level=settings.log_level, format=settings.log_format)
    return settings
