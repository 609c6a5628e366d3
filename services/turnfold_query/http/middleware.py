"""ASGI middleware that runs before the routes: undecoded paths, and traces."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from turnfold.observability.tracing import HEADER, span


class EncodedPaths:
    """Route on the path as it was sent, so that a `%2F` inside an id stays inside it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application with the undecoded path."""
        if scope["type"] == "http":
            scope = dict(scope)
            # ASGI servers decode `path`, and after that a `%2F` cannot be told from a separator.
            scope["path"] = scope["raw_path"].decode("ascii", "replace")
        await self._app(scope, receive, send)


class TracingMiddleware:
    """Record each request in the trace that its header names."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application in a span that is named after the route, which contains no id."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        parent = Headers(scope=scope).get(HEADER)
        with span(scope["method"], kind="server", parent=parent) as request_span:
            await self._app(scope, receive, send)
            # The router writes the route into this scope, so it is known only afterwards.
            if path := getattr(scope.get("route"), "path", None):
                request_span.rename(f"{scope['method']} {path}")
