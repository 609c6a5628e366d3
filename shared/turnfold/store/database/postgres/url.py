"""The URL of a PostgreSQL database, as SQLAlchemy and the driver take it."""

from typing import Any
from urllib.parse import urlencode

from sqlalchemy import URL
from sqlalchemy.exc import ArgumentError

from turnfold.errors import StartError
from turnfold.settings.urls import MAX_PORT

TEXT_PARAMETERS = frozenset(
    (
        "host", "port", "user", "password", "database", "passfile", "service", "servicefile",
        "ssl", "direct_tls", "target_session_attrs", "krbsrvname", "gsslib",
        "prepared_statement_cache_size",
    )
)  # fmt: skip
"""The parameters of a URL that asyncpg and its dialect accept as texts."""


def split_ssl_options(url: URL) -> tuple[URL, dict[str, Any]]:
    """Move libpq's TLS options (`sslmode`, `sslrootcert`) from the URL to a DSN.

    asyncpg reads them in a DSN only.

    Raises:
        StartError: the URL of a PostgreSQL database has a parameter or a value that cannot be used.
    """
    words = {
        name: value for name, value in url.query.items() if name.startswith("ssl") and name != "ssl"
    }
    unknown = sorted(url.query.keys() - words.keys() - TEXT_PARAMETERS)
    is_postgres = url.get_backend_name() == "postgresql"
    if unknown and is_postgres:
        raise StartError(
            f"TURNFOLD_DATABASE_URL has the parameter {unknown[0]}, which cannot be used; remove it"
        )
    url = url.difference_update_query(words)
    if is_postgres:
        _check_values(url)
    return url, {"dsn": f"postgresql://?{urlencode(words)}"} if words else {}


def _check_values(url: URL) -> None:
    try:
        _, options = url.get_dialect()().create_connect_args(url)
    except (ArgumentError, TypeError, ValueError) as error:
        raise StartError(f"TURNFOLD_DATABASE_URL cannot be used: {error}") from error
    port = options.get("port", MAX_PORT)
    if not all(0 < number <= MAX_PORT for number in (port if isinstance(port, list) else [port])):
        raise StartError(f"TURNFOLD_DATABASE_URL cannot be used: a port is from 1 to {MAX_PORT}")
