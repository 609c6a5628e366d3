"""Routes that look at an installation or a whole session: totals, jobs, erasures, timelines."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response

from turnfold.bus.admission import RETRY_AFTER_MS
from turnfold.contracts.answers.inspection import (
    AccessAnswer,
    AuditCheckAnswer,
    CompactionListAnswer,
    ErasureListAnswer,
    StatsAnswer,
    TimelineAnswer,
)
from turnfold.contracts.subjects import id_fault
from turnfold.errors import BadRequest, Unavailable, UnknownSession
from turnfold.operations.query import inspection
from turnfold.ports.inspection import CompactionFilter, InspectionStore
from turnfold.ports.query import HistoryStore
from turnfold_query.admission import place_of
from turnfold_query.auth import request_grant
from turnfold_query.http.description import EVERYWHERE, described
from turnfold_query.http.responses import (
    SESSION,
    AgentPath,
    SessionPath,
    json_response,
    session_key,
)

AgentQuery = Annotated[str | None, Query(description="Only this agent.")]
Limit = Annotated[int, Query(ge=1, le=1_000)]
STATS_KEPT = 256
STATS_SHARE = 20.0
"""How many times longer totals are kept than they took to read."""
_OF_SESSION = (*EVERYWHERE, UnknownSession)


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
        self._stats: dict[frozenset[str] | None, tuple[float, dict[str, Any]]] = {}

    async def stats(self, agent_ids: frozenset[str] | None) -> dict[str, Any]:
        """Return the totals, which are kept for twenty times as long as they took to read."""
        began = time.monotonic()
        until, answer = self._stats.get(agent_ids, (0.0, {}))
        if began < until:
            return answer
        answer = await inspection.stats(agent_ids, windows=self.windows(), store=self.inspections)
        if len(self._stats) >= STATS_KEPT:
            self._stats.clear()
        ended = time.monotonic()
        self._stats[agent_ids] = ended + STATS_SHARE * (ended - began), answer
        return answer

    async def reply(self, http: Request, answering: Awaitable[Any]) -> Response:
        """Return the answer to a request as JSON.

        Raises:
            Unavailable: it took too long.
        """
        place_of(http.scope).search()
        try:
            async with asyncio.timeout(self._seconds):
                return json_response(await answering)
        except TimeoutError:
            raise Unavailable(
                f"the request took longer than {self._seconds:g} s and was ended",
                retry_after_ms=RETRY_AFTER_MS,
            ) from None


def add_inspections(app: FastAPI, inspector: Inspector) -> None:
    """Add the routes."""
    _add_installation(app, inspector)
    _add_lists(app, inspector)
    _add_session(app, inspector)
    _add_audit(app, inspector)


def _agents_among(http: Request, agent_id: str | None) -> frozenset[str] | None:
    if agent_id is not None and (fault := id_fault(agent_id)):
        raise BadRequest(f"agent_id {fault}")
    return request_grant(http.scope).agents_among(agent_id)


def _add_installation(app: FastAPI, inspector: Inspector) -> None:
    @app.get(
        "/v1/access",
        **described("service", "What the caller may reach", AccessAnswer, errors=EVERYWHERE),
    )
    async def get_access(http: Request) -> Response:
        grant = request_grant(http.scope)
        return json_response(
            {
                "caller": grant.name,
                "is_operator": grant.is_operators,
                "agents": None if grant.is_operators else sorted(grant.agents),
                "system": inspector.system if grant.is_operators else None,
            }
        )

    @app.get(
        "/v1/stats",
        **described("service", "Totals over sessions", StatsAnswer, errors=EVERYWHERE),
    )
    async def get_stats(http: Request, agent_id: AgentQuery = None) -> Response:
        return await inspector.reply(http, inspector.stats(_agents_among(http, agent_id)))


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
        agent_ids = _agents_among(http, agent_id)
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
        http: Request, agent_id: AgentQuery = None, limit: Limit = 100
    ) -> Response:
        agent_ids = _agents_among(http, agent_id)
        return await inspector.reply(
            http,
            inspection.erasures(agent_ids=agent_ids, limit=limit, store=inspector.inspections),
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
        agent_id: AgentPath,
        session_id: SessionPath,
        http: Request,
        parts: Annotated[
            int, Query(ge=1, le=1_000, description="About how many groups of messages to return.")
        ] = 240,
    ) -> Response:
        key = session_key(agent_id, session_id)
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
        agent_id: AgentPath,
        session_id: SessionPath,
        http: Request,
        before: Annotated[
            int | None, Query(ge=1, le=2**31 - 1, description="`next_before` of the page before.")
        ] = None,
        limit: Limit = 100,
    ) -> Response:
        key = session_key(agent_id, session_id)
        return await inspector.reply(
            http,
            inspection.compactions_of(key, before=before, limit=limit, store=inspector.inspections),
        )


def _add_audit(app: FastAPI, inspector: Inspector) -> None:
    @app.get(
        SESSION + "/audit/verification",
        **described(
            "history",
            "Whether the audit chain of a session is intact",
            AuditCheckAnswer,
            errors=_OF_SESSION,
        ),
    )
    async def get_audit_verification(
        agent_id: AgentPath, session_id: SessionPath, http: Request
    ) -> Response:
        key = session_key(agent_id, session_id)
        return await inspector.reply(http, inspection.audit_check(key, store=inspector.histories))
