"""Answers of inspections: limited in time, in a place for long work, with cached totals."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import closing
from typing import Annotated, Any

from fastapi import Query, Request, Response

from turnfold.contracts.subjects import id_fault
from turnfold.errors import BadRequest, Unavailable
from turnfold.operations.query import inspection, installation
from turnfold.ports.inspection import InspectionStore
from turnfold.ports.query import HistoryStore
from turnfold.process.request_limits import RETRY_AFTER_MS
from turnfold_query.auth import request_grant
from turnfold_query.http.request_reading import place_of
from turnfold_query.http.responses import json_response

Json = dict[str, Any]
AgentQuery = Annotated[str | None, Query(description="Only this agent.")]
Limit = Annotated[int, Query(ge=1, le=1_000)]
KEPT = 256
KEPT_SHARE = 20.0
"""Totals are kept so many times longer than they took to read."""


class Inspector:
    """Answers inspections, each for a limited time and in a place for work that takes long."""

    def __init__(
        self,
        inspections: InspectionStore,
        histories: HistoryStore,
        *,
        request_seconds: float,
        windows: Callable[[], int],
        system: str,
    ) -> None:
        self.inspections = inspections
        self.histories = histories
        self.windows = windows
        self.system = system
        self._seconds = request_seconds
        self._kept: dict[tuple[object, ...], tuple[float, Json]] = {}

    async def stats(self, agent_ids: frozenset[str] | None) -> Json:
        """Return the totals, which are kept for twenty times as long as they took to read."""

        async def count() -> Json:
            # Not beside the totals of some agents: it counts the windows of all.
            windows = self.windows() if agent_ids is None else None
            return await inspection.stats(agent_ids, windows=windows, store=self.inspections)

        # The agents are in the key, so that no caller reads the totals of another token's agents.
        return await self._keep(("stats", agent_ids), count)

    async def costs(self, agent_ids: frozenset[str] | None, *, days: int, now_ms: int) -> Json:
        """Return what summaries took, kept likewise."""

        async def count() -> Json:
            return await installation.costs(
                agent_ids, days=days, now_ms=now_ms, store=self.inspections
            )

        return await self._keep(("costs", agent_ids, days), count)

    async def _keep(self, key: tuple[object, ...], count: Callable[[], Awaitable[Json]]) -> Json:
        began = time.monotonic()
        until, answer = self._kept.get(key, (0.0, {}))
        if began < until:
            return answer
        answer = await count()
        if len(self._kept) >= KEPT:
            self._kept.clear()
        ended = time.monotonic()
        self._kept[key] = ended + KEPT_SHARE * (ended - began), answer
        return answer

    async def reply(self, http: Request, answering: Coroutine[Any, Any, Any]) -> Response:
        """Return the answer to a request as JSON.

        Raises:
            Unavailable: it took too long.
        """
        try:
            # A search that is refused has not begun; its coroutine is closed.
            with closing(answering):
                place_of(http.scope).search()
                async with asyncio.timeout(self._seconds):
                    return json_response(await answering)
        except TimeoutError:
            raise Unavailable(
                f"the request took longer than {self._seconds:g} s and was ended",
                retry_after_ms=RETRY_AFTER_MS,
            ) from None


def agents_among(http: Request, agent_id: str | None) -> frozenset[str] | None:
    """Return the agents that a list covers: the requested one, or all that the caller may read.

    Raises:
        BadRequest: the id is invalid.
        NotAllowed: the caller may not read this agent.
    """
    if agent_id is not None and (fault := id_fault(agent_id)):
        raise BadRequest(f"agent_id {fault}")
    return request_grant(http.scope).agents_among(agent_id)
