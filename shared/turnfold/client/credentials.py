"""Credentials and addresses of the NATS servers that a client connects to."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from turnfold.access.identity import INBOX, Identity
from turnfold.errors import NotAllowed


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


def without_password(url: str) -> str:
    """Return the URL of a server without user and password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
