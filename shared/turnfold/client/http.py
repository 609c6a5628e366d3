"""Requests to the query service over HTTP, for programs that do not use the bus."""

import asyncio
import http.client
import json
import ssl
from collections.abc import Mapping
from concurrent.futures import Future
from threading import Thread
from typing import Any
from urllib.parse import urlencode, urlsplit

from turnfold.client.credentials import without_password
from turnfold.client.replies import Window, error_from_json, read
from turnfold.contracts.subjects import token_of
from turnfold.errors import StartError, Unavailable
from turnfold.messages import Json, SessionKey, ToolFormat
from turnfold.settings.urls import is_http_url

HTTP_SECONDS = 30
TRUST_ADVICE = "set SSL_CERT_FILE to its authority's, and TURNFOLD_HTTP_HOST to a name in it"


class HttpSession:
    """The reads of one session over HTTP, with a bearer token if the service asks for one.

    Methods raise the subclasses of `turnfold.RequestError`, as those of `Session` do.

    Raises:
        StartError: the URL names no HTTP server.
    """

    def __init__(self, url: str, key: SessionKey, *, token: str | None) -> None:
        _check_url(url)
        self._url = url
        self._token = token
        agent, session = token_of(key.agent_id), token_of(key.session_id)
        self._path = f"/v1/agents/{agent}/sessions/{session}"

    async def context(self, **fields: Any) -> Window:
        """Return the model's next input; `fields` are parameters, and None leaves one out."""
        query = {name: value for name, value in fields.items() if value is not None}
        return read(Window.of, await self._ask("/context?" + urlencode(query, errors="replace")))

    async def tools(self, *, format: ToolFormat = "openai") -> list[dict[str, Any]]:
        """Return definitions of tools with which a model looks things up in this session."""
        answer = await self._ask(f"/tools?format={format}")
        return read(lambda fields: list(fields["tools"]), answer)

    async def run_tool(self, name: str, arguments: Json) -> str:
        """Run one of these tools, and return its result for the model."""
        path = f"/tools/{token_of(name)}"
        answer = await self._ask(path, {"arguments": dict(arguments)})
        return read(lambda fields: str(fields["content"]), answer)

    async def _ask(self, path: str, body: Json | None = None) -> dict[str, Any]:
        return await fetch(self._url, self._path + path, token=self._token, body=body)


def _check_url(url: str) -> None:
    # Without a host, the token would go to what listens on port 80 of this machine.
    if not is_http_url(url):
        raise StartError(
            f"{without_password(url)} is not an address of a query service;"
            " give its scheme, host and port, such as http://127.0.0.1:8080"
        )


async def fetch(
    url: str, path: str, *, token: str | None, body: Json | None = None
) -> dict[str, Any]:
    """Return what `ask_http` returns; a program that ends meanwhile does not wait for it."""
    answer = Future[dict[str, Any]]()

    def ask() -> None:
        try:
            answer.set_result(ask_http(url, path, token=token, body=body))
        except Exception as error:  # noqa: BLE001  # raised where the answer is awaited
            answer.set_exception(error)

    # Begun, so that a caller who is canceled does not cancel it.
    answer.set_running_or_notify_cancel()
    # The threads of the event loop are joined at its end, however long a server is silent.
    Thread(target=ask, daemon=True).start()
    return await asyncio.wrap_future(answer)


def ask_http(url: str, path: str, *, token: str | None, body: Json | None = None) -> dict[str, Any]:
    """Return the query service's answer to a GET, or with a body to a POST.

    Raises:
        RequestError: the answer is an error, or no server answers.
        StartError: the URL names no HTTP server.
    """
    _check_url(url)
    target = urlsplit(url)
    kind = http.client.HTTPSConnection if target.scheme == "https" else http.client.HTTPConnection
    connection = kind(target.hostname or "", target.port, timeout=HTTP_SECONDS)
    headers = {"Accept": b"application/json"}
    if token is not None:
        # As bytes, so that the server refuses a wrong one whatever its characters.
        headers["Authorization"] = f"Bearer {token}".encode("utf-8", "surrogateescape")
    try:
        connection.request(
            "GET" if body is None else "POST",
            target.path.rstrip("/") + path,
            body=None if body is None else json.dumps(body).encode(),
            headers=headers,
        )
        answer = json.loads(connection.getresponse().read())
    except ssl.SSLCertVerificationError as error:
        raise Unavailable(
            f"the certificate at {url} is not trusted ({error.verify_message}); {TRUST_ADVICE}"
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unavailable(
            f"no query service answers at {url};"
            " start the system with `turnfold up`, or set TURNFOLD_DATA_DIR"
        ) from error
    finally:
        connection.close()
    if isinstance(answer, dict) and isinstance(failure := answer.get("error"), Mapping):
        raise error_from_json(failure)
    return read(dict[str, Any], answer)
