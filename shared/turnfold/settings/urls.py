"""URLs of servers: the address to connect to, and the form without credentials."""


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


def redacted(url: str) -> str:
    """Return one or several URLs, separated by commas, without credentials and query, for logs."""
    shown = []
    for server in url.split(","):
        scheme, mark, rest = server.strip().rpartition("://")
        authority, slash, path = rest.partition("/")
        shown.append(f"{scheme}{mark}{authority.rpartition('@')[2]}{slash}{path.partition('?')[0]}")
    return ",".join(shown)
