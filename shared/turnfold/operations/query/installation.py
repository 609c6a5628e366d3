"""Answer requests about all agents: their totals, the cost of summaries, and campaigns."""

import math
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

from turnfold.core.policy.retention import DAY_MS
from turnfold.operations.query.replies import with_times
from turnfold.ports.admin import CampaignProgress
from turnfold.ports.inspection import InspectionStore

COST_AGENTS = 50
"""The most agents in an answer about costs, those with the highest cost."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def agents(
    agent_ids: Collection[str] | None, *, after: str | None, limit: int, store: InspectionStore
) -> dict[str, Any]:
    """Return a page of agents with sums over their sessions, in the order of their ids."""
    rows = await store.agents(agent_ids, after=after, limit=limit)
    return {
        "agents": [with_times(row._asdict()) for row in rows],
        "next_after": rows[-1].agent_id if len(rows) == limit else None,
    }


async def costs(
    agent_ids: Collection[str] | None, *, days: int, now_ms: int, store: InspectionStore
) -> dict[str, Any]:
    """Return the cost of the summaries of these agents or of all: in total, and on recent days."""
    today = now_ms // DAY_MS
    first = today - days + 1
    taken = await store.costs(agent_ids, since_day=first, agents=COST_AGENTS)
    by_day = {used.day: used.tokens for used in taken.days}
    return {
        "versions": sum(used.versions for used in taken.models),
        "prompt_tokens": sum(used.prompt_tokens for used in taken.models),
        "completion_tokens": sum(used.completion_tokens for used in taken.models),
        "cost": math.fsum(used.cost for used in taken.models),
        "models": [used._asdict() for used in taken.models],
        "days": [
            {"day": f"{_EPOCH + timedelta(days=day):%Y-%m-%d}", "tokens": by_day.get(day, 0)}
            for day in range(first, today + 1)
        ],
        "agents": [used._asdict() for used in taken.agents],
    }


async def campaigns(
    agent_ids: Collection[str] | None, *, limit: int, store: InspectionStore
) -> dict[str, Any]:
    """Return the newest campaigns with their progress."""
    rows = await store.campaigns(agent_ids, limit=limit)
    return {
        "campaigns": [campaign_json(row.progress) | {"actor": row.actor or None} for row in rows]
    }


def campaign_json(campaign: CampaignProgress) -> dict[str, Any]:
    """Return the progress of a campaign in the form of the contract."""
    return with_times(campaign._asdict())
