"""ASGI middleware that runs before the routes: HEAD requests, undecoded paths, and traces."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnfold.observability.tracing import HEADER, span


class HeadRequests:
    """Answers HEAD as GET, without the body. Monitors and link checkers ask so."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application with GET in place of HEAD."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        is_over = False

        async def send_head(message: Message) -> None:
            nonlocal is_over
            # The first part ends the answer, or a stream would go on for nobody.
            if message["type"] == "http.response.body" and not is_over:
                is_over = True
                await send({**message, "body": b"", "more_body": False})
            elif not is_over:
                await send(message)

        await self._app({**scope, "method": "GET"}, receive, send_head)


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
