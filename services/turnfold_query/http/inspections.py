"""Routes that look at an installation or a session: totals, costs, jobs, erasures, timelines.

Their answers are limited in time, in a place for long work, and totals are cached.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import closing
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response

from turnfold.contracts.answers.inspection import (
    AccessAnswer,
    AuditCheckAnswer,
    CompactionListAnswer,
    ErasureListAnswer,
    StatsAnswer,
    TimelineAnswer,
)
from turnfold.contracts.answers.installation import (
    AgentListAnswer,
    CampaignListAnswer,
    CostAnswer,
)
from turnfold.contracts.event_models import Id
from turnfold.contracts.subjects import id_fault
from turnfold.errors import BadRequest, Unavailable, UnknownSession
from turnfold.messages import MOST_INT32
from turnfold.operations.query import inspection, installation
from turnfold.ports.inspection import CompactionFilter, InspectionStore
from turnfold.ports.query import HistoryStore
from turnfold.process.clock import now_ms
from turnfold.process.request_limits import RETRY_AFTER_MS
from turnfold_query.auth import request_grant
from turnfold_query.http.description import EVERYWHERE, described
from turnfold_query.http.request_reading import place_of
from turnfold_query.http.responses import SESSION, SessionPath, read_response

AgentQuery = Annotated[str | None, Query(description="Only this agent.")]
Limit = Annotated[int, Query(ge=1, le=1_000)]
_OF_SESSION = (*EVERYWHERE, UnknownSession)
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
        self._kept: dict[tuple[object, ...], tuple[float, dict[str, Any]]] = {}

    async def stats(self, agent_ids: frozenset[str] | None) -> dict[str, Any]:
        """Return the totals, which are kept for twenty times as long as they took to read."""
        # Not beside the totals of some agents: it counts the windows of all.
        windows = self.windows() if agent_ids is None else None
        # The agents are in the key, so that no caller reads the totals of another token's agents.
        return await self._keep(
            ("stats", agent_ids),
            lambda: inspection.stats(agent_ids, windows=windows, store=self.inspections),
        )

    async def costs(self, agent_ids: frozenset[str] | None, *, days: int) -> dict[str, Any]:
        """Return what summaries took, kept likewise."""
        return await self._keep(
            ("costs", agent_ids, days),
            lambda: installation.costs(
                agent_ids, days=days, now_ms=now_ms(), store=self.inspections
            ),
        )

    async def _keep(
        self, key: tuple[object, ...], count: Callable[[], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
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
                    return read_response(http, await answering)
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


def add_inspections(app: FastAPI, inspector: Inspector) -> None:
    """Add the routes."""
    _add_totals(app, inspector)
    _add_installation(app, inspector)
    _add_lists(app, inspector)
    _add_session(app, inspector)


def _add_totals(app: FastAPI, inspector: Inspector) -> None:
    @app.get(
        "/v1/access",
        **described("service", "What the caller may reach", AccessAnswer, errors=EVERYWHERE),
    )
    async def get_access(http: Request) -> Response:
        grant = request_grant(http.scope)
        return read_response(
            http,
            {
                "caller": grant.name,
                "is_operator": grant.is_operators,
                "agents": None if grant.is_operators else sorted(grant.agents),
                "system": inspector.system if grant.is_operators else None,
            },
        )

    @app.get(
        "/v1/stats",
        **described("service", "Totals over sessions", StatsAnswer, errors=EVERYWHERE),
    )
    async def get_stats(http: Request, agent_id: AgentQuery = None) -> Response:
        return await inspector.reply(http, inspector.stats(agents_among(http, agent_id)))


def _add_installation(app: FastAPI, inspector: Inspector) -> None:
    """Add the lists of agents and campaigns, and what summaries took."""

    @app.get(
        "/v1/agents",
        **described("sessions", "Agents with their totals", AgentListAnswer, errors=EVERYWHERE),
    )
    async def get_agents(
        http: Request,
        after: Annotated[Id | None, Query(description="`next_after` of the page before.")] = None,
        limit: Limit = 100,
    ) -> Response:
        listing = installation.agents(
            agents_among(http, None), after=after, limit=limit, store=inspector.inspections
        )
        return await inspector.reply(http, listing)

    @app.get(
        "/v1/costs",
        **described("summaries", "Get the cost of summaries", CostAnswer, errors=EVERYWHERE),
    )
    async def get_costs(
        http: Request,
        agent_id: AgentQuery = None,
        days: Annotated[
            int, Query(ge=1, le=366, description="How many days, the newest is today.")
        ] = 30,
    ) -> Response:
        counting = inspector.costs(agents_among(http, agent_id), days=days)
        return await inspector.reply(http, counting)

    @app.get(
        "/v1/campaigns",
        **described(
            "summaries",
            "Regeneration campaigns, newest first",
            CampaignListAnswer,
            errors=EVERYWHERE,
        ),
    )
    async def get_campaigns(
        http: Request, agent_id: AgentQuery = None, limit: Limit = 100
    ) -> Response:
        listing = installation.campaigns(
            agents_among(http, agent_id), limit=limit, store=inspector.inspections
        )
        return await inspector.reply(http, listing)


def _add_lists(app: FastAPI, inspector: Inspector) -> None:
    @app.get(
        "/v1/compactions",
        **described(
            "compactions",
            "Open or failed compactions of all sessions, newest first",
            CompactionListAnswer,
            errors=EVERYWHERE,
        ),
    )
    async def get_compactions(
        http: Request,
        status: Annotated[
            CompactionFilter,
            Query(
                description="`open`: waiting for a summary. `failed`: without one, or after a"
                " failed attempt."
            ),
        ] = "open",
        agent_id: AgentQuery = None,
        limit: Limit = 100,
    ) -> Response:
        agent_ids = agents_among(http, agent_id)
        return await inspector.reply(
            http,
            inspection.compactions(
                status, agent_ids=agent_ids, limit=limit, store=inspector.inspections
            ),
        )

    @app.get(
        "/v1/erasures",
        **described("sessions", "Erasures, newest first", ErasureListAnswer, errors=EVERYWHERE),
    )
    async def get_erasures(
        http: Request,
        agent_id: AgentQuery = None,
        after: Annotated[str | None, Query(description="`next_after` of the page before.")] = None,
        limit: Limit = 100,
    ) -> Response:
        agent_ids = agents_among(http, agent_id)
        return await inspector.reply(
            http,
            inspection.erasures(
                agent_ids=agent_ids, after=after, limit=limit, store=inspector.inspections
            ),
        )


def _add_session(app: FastAPI, inspector: Inspector) -> None:
    @app.get(
        SESSION + "/timeline",
        **described(
            "history",
            "All messages of a session by state, without texts",
            TimelineAnswer,
            errors=_OF_SESSION,
        ),
    )
    async def get_timeline(
        key: SessionPath,
        http: Request,
        parts: Annotated[
            int, Query(ge=1, le=1_000, description="About how many groups of messages to return.")
        ] = 240,
    ) -> Response:
        return await inspector.reply(
            http, inspection.timeline(key, parts=parts, store=inspector.inspections)
        )

    @app.get(
        SESSION + "/compactions",
        **described(
            "compactions",
            "The compactions of a session, newest first",
            CompactionListAnswer,
            errors=_OF_SESSION,
        ),
    )
    async def get_session_compactions(
        key: SessionPath,
        http: Request,
        before: Annotated[
            int | None, Query(ge=1, le=MOST_INT32, description="`next_before` of the page before.")
        ] = None,
        limit: Limit = 100,
    ) -> Response:
        return await inspector.reply(
            http,
            inspection.compactions_of(key, before=before, limit=limit, store=inspector.inspections),
        )

    @app.get(
        SESSION + "/audit/verification",
        **described(
            "history",
            "Whether the audit chain of a session is intact",
            AuditCheckAnswer,
            errors=_OF_SESSION,
        ),
    )
    async def get_audit_verification(key: SessionPath, http: Request) -> Response:
        return await inspector.reply(http, inspection.audit_check(key, store=inspector.histories))
