"""Credentials and addresses of the NATS servers that a client connects to."""

import re
from collections.abc import Mapping
from typing import Any, Final

from turnfold.access.identity import INBOX, NATS_SCHEMES, Identity
from turnfold.errors import NotAllowed, StartError
from turnfold.settings.urls import HOST_RULE, has_host

_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def identity_options(environ: Mapping[str, str], inbox_prefix: str | None) -> dict[str, Any]:
    """Return the options of nats-py for credentials, encryption and the subjects of replies.

    Raises:
        NotAllowed: the credentials cannot be read.
    """
    try:
        options: dict[str, Any] = {"inbox_prefix": INBOX} | Identity.of(environ).options()
    except ValueError as error:
        raise NotAllowed(f"cannot use the credentials for NATS: {error}") from error
    return options if inbox_prefix is None else options | {"inbox_prefix": inbox_prefix}


def servers_of(url: str) -> list[str]:
    """Return the servers that an address names, separated by commas.

    Raises:
        StartError: a server has the scheme of another protocol, no host or no valid port.
    """
    servers = [server.strip() for server in url.split(",")]
    for server in servers:
        scheme = _SCHEME.match(server)
        is_nats = not scheme or scheme[0].removesuffix("://").lower() in NATS_SCHEMES
        # nats-py accepts a server without a scheme.
        if not is_nats or not has_host(server if scheme else f"nats://{server}"):
            raise StartError(
                f"{without_password(server)!r} is not a NATS address; it must begin with"
                f" {' or '.join(f'{name}://' for name in NATS_SCHEMES)}, and {HOST_RULE}"
            )
    return servers


def without_password(url: str) -> str:
    """Return the URL of a server, with or without a scheme, without user and password."""
    # Not parsed: the URL may be wrong, or hold a password that is not escaped.
    scheme = _SCHEME.match(url)
    prefix = scheme[0] if scheme else ""
    return prefix + url[len(prefix) :].rpartition("@")[2]
