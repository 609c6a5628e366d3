"""Routes that cover the whole installation: lists, dead letters, health, metrics and references."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated

from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse

from turnfold.contracts.subjects import id_fault
from turnfold.errors import BadRequest, Unavailable
from turnfold.operations.query import dead_letters, history
from turnfold.ports.admin import DeadLetterStore
from turnfold.ports.query import HistoryStore
from turnfold_query.auth import request_grant
from turnfold_query.http.responses import bytes_response, json_response
from turnfold_query.metrics import QueryMetrics
from turnfold_query.reference_page import reference_page


def add_lists(app: FastAPI, histories: HistoryStore, letter_store: DeadLetterStore) -> None:
    """Add the routes that list sessions and dead letters."""

    @app.get("/v1/sessions", summary="Sessions, newest event first", response_model=None)
    async def get_sessions(
        http: Request,
        agent_id: str | None = None,
        after: Annotated[
            str | None, Query(max_length=100, description="`next_after` of the page before.")
        ] = None,
        limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    ) -> Response:
        if agent_id is not None and (fault := id_fault(agent_id)):
            raise BadRequest(f"agent_id {fault}")
        agent_ids = request_grant(http.scope).agents_among(agent_id)
        return json_response(
            await history.sessions(agent_ids=agent_ids, after=after, limit=limit, store=histories)
        )

    @app.get("/v1/deadletters", summary="Events that could not be stored", response_model=None)
    async def get_dead_letters(
        after: Annotated[int, Query(ge=0, le=2**63 - 1)] = 0,
        limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    ) -> Response:
        return json_response(await history.dead_letters(after=after, limit=limit, store=histories))

    @app.get(
        "/v1/deadletters/{dead_letter_id}",
        summary="A dead letter with its bytes",
        response_model=None,
    )
    async def get_dead_letter(dead_letter_id: Annotated[int, Path(ge=1, le=2**63 - 1)]) -> Response:
        return json_response(await dead_letters.show(dead_letter_id, store=letter_store))


def add_pages(
    app: FastAPI,
    histories: HistoryStore,
    metrics: QueryMetrics,
    is_ready: Callable[[], Awaitable[list[str]]],
    asyncapi: Callable[[], str],
) -> None:
    """Add health checks, metrics and the references of both interfaces."""

    @app.get("/healthz", summary="Whether this process is alive", response_model=None)
    async def get_health() -> Response:
        return json_response({"status": "ok"})

    @app.get("/readyz", summary="Whether this process can answer", response_model=None)
    async def get_readiness() -> Response:
        missing = await is_ready()
        return json_response(
            {"status": "ready" if not missing else "not ready", "missing": missing},
            503 if missing else 200,
        )

    @app.get(
        "/metrics",
        summary="Metrics in the Prometheus format",
        response_model=None,
        response_class=PlainTextResponse,
    )
    async def get_metrics() -> Response:
        # The other metrics matter most when the database is unavailable.
        with suppress(Unavailable):
            metrics.buried(await histories.dead_letter_counts())
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get(
        "/docs",
        summary="This interface as a page",
        response_model=None,
        response_class=HTMLResponse,
    )
    async def get_docs() -> Response:
        return HTMLResponse(reference_page(app.openapi()))

    @app.get("/asyncapi.json", summary="The NATS channels as AsyncAPI", response_model=None)
    async def get_asyncapi() -> Response:
        return bytes_response(asyncapi().encode())
