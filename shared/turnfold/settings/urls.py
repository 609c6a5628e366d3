"""URLs of servers and databases: the address to connect to, and the form without credentials."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

HTTP_SCHEMES = ("http", "https")
MAX_PORT = 65_535
HOST_RULE = (
    "name a host, and a port, if any, from 1 to 65535; in a user name or password, write special"
    " characters as in %40 for @"
)
# As SQLAlchemy reads it: the first "@" ends a password.
_DATABASE_ADDRESS = re.compile(
    r"(?:[^:/]*(?::[^@]*)?@)?(?:\[[^/?]+\]|[^/:?@]+)?(?::(?P<port>\d{1,5}))?(?:[/?]|$)", re.ASCII
)
# A password may contain a comma, but hardly one before a scheme of NATS.
_SEPARATOR = re.compile(r",(?=\s*(?:nats|tls|wss?)://)")
_HOSTS = re.compile(r"(?:(?:\[[\w:.%-]*\]|[^\[\]:,\s]*)(?::\d*)?(?:,\s*|$))+")


def http_url(host: str, port: int, *, is_encrypted: bool = False) -> str:
    """Return the URL at which this machine reaches a server that listens on `host`."""
    scheme = "https" if is_encrypted else "http"
    loopback = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - not bound here
    connect_host = loopback.get(host, host)
    return (
        f"{scheme}://[{connect_host}]:{port}"
        if ":" in connect_host
        else f"{scheme}://{connect_host}:{port}"
    )


def is_http_url(url: str) -> bool:
    """Return whether a URL has a scheme of HTTP, a host and, if any, a valid port."""
    # `urlsplit` takes line ends out, so that parts of two names would be one.
    if not url.isprintable() or " " in url:
        return False
    return has_host(url) and urlsplit(url).scheme in HTTP_SCHEMES


def has_host(url: str) -> bool:
    """Return whether a URL has a host and, if any, a valid port."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def is_database_address(url: str) -> bool:
    """Return whether the host and the port of a database's URL, if any, are valid."""
    address = _DATABASE_ADDRESS.match(url.partition("://")[2])
    return address is not None and 0 < int(address["port"] or 1) <= MAX_PORT


def absolute_database_url(url: str) -> str:
    """Return the URL with an absolute path if it names a SQLite file."""
    scheme, mark, path = url.partition(":///")
    if (
        not scheme.startswith("sqlite")
        or not mark
        or path.startswith("/")
        or path in ("", ":memory:")
    ):
        return url
    name, query, rest = path.partition("?")
    return f"{scheme}:///{escaped_path(Path(unquote(name)).absolute().resolve())}{query}{rest}"


def escaped_path(path: Path) -> str:
    """Return the path as a URL has it: "?" would end it, and "%2F" would become a slash."""
    return str(path).replace("%", "%25").replace("?", "%3F")


def redacted(url: str) -> str:
    """Return one or several URLs, separated by commas, without credentials and query, for logs."""
    return ",".join(_without_credentials(server.strip()) for server in _SEPARATOR.split(url))


def _without_credentials(url: str) -> str:
    # Not parsed: the URL may be wrong, or hold a password that is not escaped.
    scheme, mark, rest = url.partition("://")
    if not mark:
        scheme, rest = "", url
    start = f"{scheme}{mark}"
    if scheme.startswith("sqlite"):
        return start + rest.partition("?")[0]
    before, at, after = rest.rpartition("@")
    # Either is possible: the query has an "@", or the password a "?".
    if "?" in before:
        return f"{start}…"
    # The same for a path.
    if "/" in before:
        start += "…@"
    shown = after.partition("?")[0]
    is_host = at or _HOSTS.fullmatch(rest.partition("/")[0])
    return start + shown if is_host else f"{start}…"
