"""The route of windows: agents wait for it before each call of their model.

FastAPI's own work on a request takes three times as long as a cached window, so `WindowRoute`
answers valid requests before it. FastAPI has the same route, for its description and for errors.
"""

import re
from typing import Final
from urllib.parse import parse_qsl

from fastapi import FastAPI, Response
from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from turnfold.access.refusals import refusal
from turnfold.contracts.reading import with_ignored
from turnfold.contracts.requests import ContextQuery
from turnfold.errors import RequestError
from turnfold.messages import SessionKey
from turnfold_query.handlers import QueryDispatcher
from turnfold_query.http.request_reading import place_of
from turnfold_query.http.responses import SESSION, bytes_response, session_key

PATH: Final = SESSION + "/context"
_PATH: Final = re.compile(re.sub(r"\{\w+\}", "([^/]+)", PATH))


async def answer_window(
    dispatcher: QueryDispatcher, scope: Scope, key: SessionKey, query: ContextQuery
) -> Response:
    """Answer a request for a window.

    Raises:
        RequestError: as `turnfold.operations.query.context.context` does.
    """
    request = query.request()
    tags = [] if request.etag is not None else _tags(Headers(scope=scope))
    if tags:
        request = request.model_copy(update={"etag": tags[0]})
    window = await dispatcher.context(key, request, place_of(scope))
    if not window.is_modified or window.etag in tags:
        return Response(status_code=304, headers={"ETag": f'"{window.etag}"'})
    return bytes_response(with_ignored(window.body, key, query), ETag=f'"{window.etag}"')


def _tags(headers: Headers) -> list[str]:
    """Return the etags of the answers that the caller has, without the marks of weak ones."""
    tags = ",".join(headers.getlist("if-none-match")).split(",")
    return [tag.strip().removeprefix("W/").strip('"') for tag in tags if tag]


class WindowRoute:
    """Answers valid requests for windows, and passes everything else on to the application."""

    def __init__(self, app: FastAPI, dispatcher: QueryDispatcher) -> None:
        self._app: ASGIApp = app
        self._dispatcher = dispatcher
        (self._route,) = [route for route in app.routes if getattr(route, "path", None) == PATH]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or pass it on."""
        ids = _PATH.fullmatch(scope["path"]) if scope["method"] == "GET" else None
        query = None if ids is None else query_of(scope["query_string"])
        if ids is None or query is None:
            await self._app(scope, receive, send)
            return
        # Tracing names the request after it.
        scope["route"] = self._route
        try:
            key = await session_key(ids[1], ids[2])
            response = await answer_window(self._dispatcher, scope, key, query)
        except RequestError as error:
            response = refusal(error)
        await response(scope, receive, send)


def query_of(query_string: bytes) -> ContextQuery | None:
    """Read the fields of a URL; None if they are invalid, and FastAPI tells why."""
    # As Starlette reads it, so that a URL means the same on both routes.
    fields = parse_qsl(query_string.decode("latin-1"), keep_blank_values=True)
    try:
        return ContextQuery.model_validate(dict(fields))
    except ValidationError:
        return None
