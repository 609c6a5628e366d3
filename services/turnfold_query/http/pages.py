"""Routes that cover the whole installation: lists, dead letters, health, metrics and references."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.responses import HTMLResponse

from turnfold.contracts.answers.history import SessionListAnswer
from turnfold.contracts.answers.installation import (
    AsyncApiAnswer,
    DeadLetterAnswer,
    DeadLetterListAnswer,
    HealthAnswer,
    ReadinessAnswer,
)
from turnfold.errors import Unavailable
from turnfold.messages import MOST_INT64
from turnfold.operations.query import dead_letters, history
from turnfold.ports.admin import DeadLetterStore
from turnfold.ports.query import (
    HistoryStore,
)
from turnfold_query.http.description import EVERYWHERE, described, described_text
from turnfold_query.http.inspector import Limit, agents_among
from turnfold_query.http.responses import json_response
from turnfold_query.metrics import QueryMetrics
from turnfold_query.reference_page import reference_page

PROBE_SECONDS = 3.0
"""How long health checks and metrics wait for the database, less than those who ask wait."""


def add_lists(app: FastAPI, histories: HistoryStore, letter_store: DeadLetterStore) -> None:
    """Add the routes that list sessions and dead letters."""

    @app.get(
        "/v1/sessions",
        **described(
            "sessions", "Sessions, newest event first", SessionListAnswer, errors=EVERYWHERE
        ),
    )
    async def get_sessions(
        http: Request,
        agent_id: str | None = None,
        after: Annotated[
            str | None, Query(max_length=100, description="`next_after` of the page before.")
        ] = None,
        limit: Limit = 100,
    ) -> Response:
        agent_ids = agents_among(http, agent_id)
        return json_response(
            await history.sessions(agent_ids=agent_ids, after=after, limit=limit, store=histories)
        )

    @app.get(
        "/v1/deadletters",
        **described(
            "dead letters",
            "Events that could not be stored",
            DeadLetterListAnswer,
            errors=EVERYWHERE,
        ),
    )
    async def get_dead_letters(
        after: Annotated[int, Query(ge=0, le=MOST_INT64)] = 0,
        limit: Limit = 100,
    ) -> Response:
        return json_response(await history.dead_letters(after=after, limit=limit, store=histories))

    @app.get(
        "/v1/deadletters/{dead_letter_id}",
        **described(
            "dead letters", "A dead letter with its bytes", DeadLetterAnswer, errors=EVERYWHERE
        ),
    )
    async def get_dead_letter(
        dead_letter_id: Annotated[int, Path(ge=1, le=MOST_INT64)],
    ) -> Response:
        return json_response(await dead_letters.show(dead_letter_id, store=letter_store))


def add_probes(
    app: FastAPI,
    histories: HistoryStore,
    metrics: QueryMetrics,
    is_ready: Callable[[], Awaitable[list[str]]],
) -> None:
    """Add health checks and metrics."""

    @app.get(
        "/healthz",
        **described("service", "Whether this process is alive", HealthAnswer, is_open=True),
    )
    async def get_health() -> Response:
        return json_response({"status": "ok"})

    @app.get(
        "/readyz",
        **described(
            "service",
            "Whether this process can answer",
            ReadinessAnswer,
            is_open=True,
            responses={503: {"model": ReadinessAnswer, "description": "Something is missing."}},
        ),
    )
    async def get_readiness() -> Response:
        missing = await is_ready()
        return json_response(
            {"status": "ready" if not missing else "not ready", "missing": missing},
            503 if missing else 200,
        )

    @app.get(
        "/metrics",
        **described_text(
            "service",
            "Metrics in the Prometheus format",
            "text/plain",
            'turnfold_dead_letters{reason="not_json"} 2.0',
        ),
    )
    async def get_metrics() -> Response:
        metrics.ready(is_ready=not await is_ready())
        # The other metrics matter most when the database is unavailable.
        with suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(PROBE_SECONDS):
                metrics.count_dead_letters(await histories.dead_letter_counts())
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def add_references(app: FastAPI, asyncapi: Callable[[], Mapping[str, Any]]) -> None:
    """Add the descriptions of both interfaces, and the page that shows one of them."""

    @app.get(
        "/docs",
        **described_text(
            "service", "This interface as a page", "text/html", "<!doctype html>…</html>"
        ),
    )
    async def get_docs() -> Response:
        # In a thread, because making a document takes longer than a window may wait.
        return HTMLResponse(reference_page(await asyncio.to_thread(app.openapi)))

    @app.get("/openapi.json", include_in_schema=False)
    async def get_openapi() -> Response:
        return json_response(await asyncio.to_thread(app.openapi))

    @app.get(
        "/asyncapi.json",
        **described("service", "The NATS interface as AsyncAPI", AsyncApiAnswer),
    )
    async def get_asyncapi() -> Response:
        return json_response(await asyncio.to_thread(asyncapi))
