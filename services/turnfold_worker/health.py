"""How a worker is, told over HTTP: whether it lives, whether it can work, and its figures."""

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nats.aio.client import Client
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turnfold.bus.streams import Lag, lag
from turnfold.errors import Unavailable
from turnfold.store.database.statistics import QueueDepths, SqlStatistics
from turnfold_worker.loops.write_probe import WriteProbe
from turnfold_worker.metrics import WorkerMetrics
from turnfold_worker.receiver import Receiver

ASK_SECONDS = 3.0
SILENT_SECONDS = 15.0
"""So long without a word from the consumer, or without a write, is too long."""


@dataclass(frozen=True, slots=True)
class HealthSources:
    """The parts of a worker that is at work."""

    client: Client
    receiver: Receiver
    prober: WriteProbe
    figures: SqlStatistics


class WorkerHealth:
    """How a worker is; `waits_for` says what it waits for until its parts are at work."""

    def __init__(self) -> None:
        self.waits_for = "it is starting"
        self.parts: HealthSources | None = None

    async def readiness(self) -> tuple[list[str], Mapping[str, Any]]:
        """What is missing for it to work, and the figures from which that is told."""
        if self.parts is None:
            return [self.waits_for], {}
        client, receiver, prober = self.parts.client, self.parts.receiver, self.parts.prober
        missing = [] if client.is_connected else ["the bus is not connected"]
        behind = await lag_of(client)
        if client.is_connected and behind is None:
            missing.append("the stream does not answer, or its consumer is gone")
        if receiver.idle_seconds > SILENT_SECONDS:
            missing.append("the consumer is silent")
        if prober.age_seconds > SILENT_SECONDS:
            missing.append("the database cannot be written")
        seen = (
            {"lag_events": behind.events, "lag_seconds": round(behind.seconds, 3)} if behind else {}
        )
        ages = {
            "fetch_age_seconds": receiver.idle_seconds,
            "write_age_seconds": prober.age_seconds,
        }
        return missing, seen | {name: round(seconds, 3) for name, seconds in ages.items()}

    async def refresh_metrics(self, metrics: WorkerMetrics) -> None:
        """Bring the figures up to date that are asked of others; what cannot be asked now stays as it was."""
        if self.parts is None:
            return
        behind, waiting = await asyncio.gather(
            lag_of(self.parts.client), _waiting(self.parts.figures)
        )
        if behind is not None:
            metrics.lags(behind)
        if waiting is not None:
            metrics.waits(waiting)


async def lag_of(client: Client) -> Lag | None:
    """How far the workers are behind; None where the bus does not say so in time."""
    with contextlib.suppress(Unavailable, TimeoutError):
        async with asyncio.timeout(ASK_SECONDS):
            return await lag(client, now_ms=_now_ms())
    return None


async def _waiting(figures: SqlStatistics) -> QueueDepths | None:
    with contextlib.suppress(Unavailable, TimeoutError):
        async with asyncio.timeout(ASK_SECONDS):
            return await figures.waiting(now_ms=_now_ms())
    return None


def make_http(health: WorkerHealth, metrics: WorkerMetrics) -> Starlette:
    """The HTTP application; it runs in the loop that does the work, so that who gets an answer knows that this one moves."""

    async def get_health(_: Request) -> Response:
        return _json({"status": "ok"})

    async def get_readiness(_: Request) -> Response:
        missing, figures = await health.readiness()
        return _json(
            {"status": "not ready" if missing else "ready", "missing": missing, **figures},
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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
