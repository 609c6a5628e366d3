"""Routes about the service itself: health, metrics, and the descriptions of its interfaces."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse

from turnfold.contracts.answers.installation import (
    AsyncApiAnswer,
    HealthAnswer,
    ReadinessAnswer,
)
from turnfold.errors import Unavailable
from turnfold.store.query.history import SqlHistoryStore
from turnfold_query.http.description import described, described_text
from turnfold_query.http.responses import json_response
from turnfold_query.metrics import QueryMetrics
from turnfold_query.reference_page import reference_page

PROBE_SECONDS = 3.0
"""How long health checks and metrics wait for the database: less than their callers wait."""


def add_probes(
    app: FastAPI,
    histories: SqlHistoryStore,
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
        metrics.is_ready.set(not await is_ready())
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
