"""The HTTP endpoints of a worker: liveness, readiness and metrics."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from nats.aio.client import Client
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turnfold.bus.health import read_bus_health
from turnfold.errors import Unavailable
from turnfold.process.clock import now_ms
from turnfold.store.database.statistics import SqlStatistics
from turnfold_worker.loops.write_probe import WriteProbe
from turnfold_worker.metrics import WorkerMetrics
from turnfold_worker.receiver.parent import Receiver

Reply = TypeVar("Reply")

REQUEST_SECONDS = 3.0
SILENT_SECONDS = 15.0
"""The worker is not ready if the consumer or the database was idle for longer."""


@dataclass(frozen=True, slots=True)
class HealthSources:
    """The parts of a running worker that report its health."""

    client: Client
    receiver: Receiver
    probe: WriteProbe
    statistics: SqlStatistics


class WorkerHealth:
    """The health of a worker. Until `parts` is set, `waits_for` states what the start waits for."""

    def __init__(self) -> None:
        self.waits_for = "it is starting"
        self.parts: HealthSources | None = None

    async def readiness(self) -> tuple[list[str], Mapping[str, Any]]:
        """Return the reasons why the worker is not ready, and the measured values."""
        if self.parts is None:
            return [self.waits_for], {}
        client, receiver, probe = self.parts.client, self.parts.receiver, self.parts.probe
        missing = [] if client.is_connected else ["the bus is not connected"]
        bus = await _in_time(read_bus_health(client))
        # Without a connection, one reason is enough.
        if client.is_connected and bus is None:
            missing.append("the stream does not answer, or its consumer is gone")
        if receiver.idle_seconds > SILENT_SECONDS:
            missing.append("the consumer is silent")
        if probe.age_seconds > SILENT_SECONDS:
            missing.append("the database cannot be written")
        values = {"lag_events": bus.lag_events, "lag_seconds": bus.lag_ms / 1000} if bus else {}
        ages = {
            "fetch_age_seconds": receiver.idle_seconds,
            "write_age_seconds": probe.age_seconds,
        }
        return missing, values | {name: round(seconds, 3) for name, seconds in ages.items()}

    async def refresh_metrics(self, metrics: WorkerMetrics) -> None:
        """Update the gauges from the bus and the database; one without a reply keeps its value."""
        if self.parts is None:
            return
        (missing, values), depths = await asyncio.gather(
            self.readiness(),
            _in_time(self.parts.statistics.waiting(now_ms=now_ms())),
        )
        metrics.is_ready.set(not missing)
        if "lag_events" in values:
            metrics.lags(events=values["lag_events"], seconds=values["lag_seconds"])
        if depths is not None:
            metrics.waits(depths)


async def _in_time(asking: Awaitable[Reply]) -> Reply | None:
    """Return the reply of the bus or the database, or None if there is none in time."""
    with contextlib.suppress(Unavailable, TimeoutError):
        async with asyncio.timeout(REQUEST_SECONDS):
            return await asking
    return None


def make_http(health: WorkerHealth, metrics: WorkerMetrics) -> Starlette:
    """Make the HTTP application.

    It runs in the event loop of the worker, so a reply proves that the loop is not blocked.
    """

    async def get_health(_: Request) -> Response:
        return _json({"status": "ok"})

    async def get_readiness(_: Request) -> Response:
        missing, values = await health.readiness()
        return _json(
            {"status": "not ready" if missing else "ready", "missing": missing, **values},
            503 if missing else 200,
        )

    async def get_metrics(_: Request) -> Response:
        await health.refresh_metrics(metrics)
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return Starlette(
        routes=[
            Route("/healthz", get_health),
            Route("/readyz", get_readiness),
            Route("/metrics", get_metrics),
        ]
    )


def _json(value: Mapping[str, Any], status: int = 200) -> Response:
    return Response(json.dumps(value), status, media_type="application/json")
