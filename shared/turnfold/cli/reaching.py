"""How a command reaches the running system: over the bus, and where the contract has no request, over HTTP."""

import asyncio
import http.client
import json
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from turnfold.client import Client, connect
from turnfold.client.answers import error_told
from turnfold.errors import Unavailable
from turnfold.settings import Settings, read_settings

DEFAULT_DATA_DIR = Path(".turnfold")
HTTP_SECONDS = 30


def settings_here(environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of a command: those of the environment, and where it names no bus, the system running beside us.

    Raises:
        StartError: a setting is misspelt or means nothing.
    """
    found = dict(os.environ if environ is None else environ)
    if not found.get("TURNFOLD_NATS_URL") and not found.get("TURNFOLD_DATA_DIR") and DEFAULT_DATA_DIR.is_dir():
        found["TURNFOLD_DATA_DIR"] = str(DEFAULT_DATA_DIR)
    return read_settings(found)


@asynccontextmanager
async def reached(settings: Settings | None = None) -> AsyncGenerator[Client, None]:
    """A client of the running system."""
    chosen = settings or settings_here()
    async with connect(chosen.nats_url, environ=chosen.identity.as_environ()) as client:
        yield client


async def http_get(path: str, settings: Settings | None = None) -> dict[str, Any]:
    """What the query service answers on HTTP.

    Raises:
        RequestError: it answers an error, or nothing answers there.
    """
    chosen = settings or settings_here()
    return await asyncio.to_thread(_http_get, chosen.http_url, path, chosen.http_token)


def _http_get(url: str, path: str, token: str | None) -> dict[str, Any]:
    target = urlsplit(url)
    kind = http.client.HTTPSConnection if target.scheme == "https" else http.client.HTTPConnection
    connection = kind(target.hostname or "127.0.0.1", target.port, timeout=HTTP_SECONDS)
    try:
        headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token is not None else {})
        connection.request("GET", target.path.rstrip("/") + path, headers=headers)
        told = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unavailable(f"no query service answers at {url}: start the system with `turnfold up`, or set TURNFOLD_DATA_DIR") from error
    finally:
        connection.close()
    if isinstance(told, dict) and isinstance(failure := told.get("error"), Mapping):
        raise error_told(failure)
    return dict(told)
