"""The HTTP application: routes, error responses and middleware put together."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route
from starlette.types import ASGIApp

from turnfold import contracts
from turnfold.access.bearers import TokenRegistry
from turnfold.access.own_site import OwnSiteMiddleware
from turnfold.access.refusals import refusal
from turnfold.contracts.events import EventLimits
from turnfold.contracts.reading import first_fault
from turnfold.contracts.requests import (
    MAX_WAIT_MS,
)
from turnfold.contracts.subjects import EVENTS_STREAM
from turnfold.errors import BadRequest, NotAllowed, RequestError
from turnfold.nats_client.acknowledgements import Publisher
from turnfold.nats_client.connection import NatsClient
from turnfold.observability.tracing import is_enabled
from turnfold.ports.admin import DeadLetterStore
from turnfold.process.request_limits import ConcurrencyLimiter
from turnfold.store.query.history import SqlHistoryStore
from turnfold_query.auth import AuthMiddleware, ReadSecret
from turnfold_query.console.app import ConsoleRouter, make_console
from turnfold_query.handlers import QueryDispatcher
from turnfold_query.http.changes import ChangeStreams, add_changes
from turnfold_query.http.commands import add_commands, forward_to_worker
from turnfold_query.http.description import DescribedApp, refused
from turnfold_query.http.inspections import Inspector, add_inspections
from turnfold_query.http.lists import add_lists
from turnfold_query.http.middleware import EncodedPaths, HeadRequests, TracingMiddleware
from turnfold_query.http.publish import add_publish, reader_of
from turnfold_query.http.reads import add_reads
from turnfold_query.http.request_reading import (
    BODY_SHARE,
    BodyMemory,
    ConcurrencyMiddleware,
)
from turnfold_query.http.service import add_probes, add_references
from turnfold_query.http.windows import WindowRoute
from turnfold_query.metrics import QueryMetrics

ENVELOPE_BYTES = 64 * 1024
"""The bytes that the body of an event may have beyond the limit of its messages."""
REQUEST_BYTES = 256 * 1024


def make_http(  # noqa: PLR0913  # all collaborators of the routes
    *,
    dispatcher: QueryDispatcher,
    histories: SqlHistoryStore,
    dead_letters: DeadLetterStore,
    inspector: Inspector,
    streams: ChangeStreams,
    client: NatsClient,
    metrics: QueryMetrics,
    limits: EventLimits,
    is_ready: Callable[[], Awaitable[list[str]]],
    asyncapi: Callable[[], Mapping[str, Any]],
    limiter: ConcurrencyLimiter,
    memory_bytes: int,
    request_seconds: float,
    read_secret: ReadSecret,
    bearers: TokenRegistry | None,
    is_local: bool,
) -> ASGIApp:
    """Build the HTTP application and the console.

    With `bearers`, callers must present a token. `is_local`: nobody but this machine reaches it.
    """
    app = _described_app()
    _add_error_handlers(app)
    add_reads(app, dispatcher)
    publisher = Publisher(client, EVENTS_STREAM, on_foreign=metrics.foreign.inc)
    add_publish(app, publisher, limits, reader_of(dispatcher.lane, request_seconds), read_secret)
    add_commands(app, partial(forward_to_worker, client, read_secret))
    add_lists(app, histories, dead_letters)
    add_inspections(app, inspector)
    add_changes(app, streams)
    add_probes(app, histories, metrics, is_ready)
    add_references(app, asyncapi)
    event_bytes = limits.bytes + ENVELOPE_BYTES
    limited = ConcurrencyMiddleware(
        WindowRoute(app, dispatcher),
        limiter,
        BodyMemory(memory_bytes, max(int(memory_bytes * BODY_SHARE), event_bytes)),
        most_bytes=lambda scope: (
            event_bytes if scope["path"].endswith("/events") else REQUEST_BYTES
        ),
        seconds=request_seconds + MAX_WAIT_MS / 1000,
        on_refusal=lambda code: metrics.refused("http", code),
    )
    on_refusal = partial(metrics.refused, "http", NotAllowed.code)
    api: ASGIApp = (
        OwnSiteMiddleware(limited, is_local=is_local, on_refusal=on_refusal)
        if bearers is None
        else AuthMiddleware(limited, bearers, on_refusal=on_refusal)
    )
    # The console checks forms and names by itself, and calls the API without a browser.
    guarded = limited if bearers is None else api
    console = make_console(guarded, read_secret, is_open=bearers is None and is_local)
    served: ASGIApp = ConsoleRouter(api, console)
    # Outermost, so that the token check, the limits and the routes read the same path.
    encoded = EncodedPaths(TracingMiddleware(served) if is_enabled() else served)
    return HeadRequests(encoded)


def _described_app() -> DescribedApp:
    return DescribedApp(
        title="Turnfold",
        version=version("turnfold"),
        summary="What should my model see next?",
        description=contracts.__doc__ or "",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        # Behind a proxy that ends TLS, a redirect would lead to plain HTTP, with the token.
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
        responses={"default": refused("The error and its remedy.")},
    )


def _add_error_handlers(app: FastAPI) -> None:
    """Return every error in the form of the contract."""

    @app.exception_handler(RequestError)
    async def on_request_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestError)
        return refusal(error)

    @app.exception_handler(RequestValidationError)
    async def on_invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return refusal(BadRequest(first_fault(error.errors())))

    @app.exception_handler(HTTPException)
    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == HTTPStatus.NOT_FOUND:
            # Not `unknown_session`: a program would take a mistyped path for a new session.
            reason = BadRequest("there is no such path; /docs lists all")
            return refusal(reason, error.status_code)
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            methods = ", ".join(sorted(_methods_at(app, request)))
            reason = BadRequest(f"{request.method} is not possible here, only {methods}")
            return refusal(reason, error.status_code, {"Allow": methods})
        return refusal(BadRequest(str(error.detail)), error.status_code)


def _methods_at(app: FastAPI, request: Request) -> set[str]:
    """Return the methods that the path of a request has: each is a route of its own."""
    return {
        method
        for route in app.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }
