"""Routes that list agents, campaigns and what summaries took."""

from typing import Annotated

from fastapi import FastAPI, Query, Request, Response

from turnfold.contracts.answers.installation import (
    AgentListAnswer,
    CampaignListAnswer,
    CostAnswer,
)
from turnfold.contracts.event_models import Id
from turnfold.operations.query import installation
from turnfold.process.clock import now_ms
from turnfold_query.http.description import EVERYWHERE, described
from turnfold_query.http.inspector import AgentQuery, Inspector, Limit, agents_among


def add_installation(app: FastAPI, inspector: Inspector) -> None:
    """Add the routes."""

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
        counting = inspector.costs(agents_among(http, agent_id), days=days, now_ms=now_ms())
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
