"""Read sums by agent, and what summaries took; no statement reads a text of a message."""

from collections.abc import Collection

from sqlalchemy import Column, ColumnElement, Connection, case, func, select, true

from turnfold.ports.inspection import (
    AgentTotals,
    AgentUsage,
    DayUsage,
    ModelCosts,
    SummaryCosts,
)
from turnfold.store.database.schema import sessions, summaries, summary_token_usage


def agent_totals(
    connection: Connection, agent_ids: Collection[str] | None, *, after: str | None, limit: int
) -> list[AgentTotals]:
    """Return the agents after one, in the order of their ids."""
    sums = (
        func.coalesce(func.sum(sessions.c[name]), 0)
        for name in ("messages_total", "tokens_total", "live_messages", "live_tokens", "versions")
    )
    # In the order of the index of sessions, so that no more agents are read than a page has.
    chosen = (
        select(
            sessions.c.agent_id,
            func.count(),
            *sums,
            func.sum(case((sessions.c.failures > 0, 1), else_=0)),
            func.max(sessions.c.last_event_at_ms),
        )
        .where(_among(sessions.c.agent_id, agent_ids))
        .group_by(sessions.c.agent_id)
        .order_by(sessions.c.agent_id)
        .limit(limit)
    )
    if after is not None:
        chosen = chosen.where(sessions.c.agent_id > after)
    return [
        AgentTotals._make([row[0], *map(int, row[1:-1]), row[-1]])
        for row in connection.execute(chosen)
    ]


def summary_costs(
    connection: Connection, agent_ids: Collection[str] | None, *, since_day: int, agents: int
) -> SummaryCosts:
    """Return what summaries took: by model since the beginning, by day and agent since a day."""
    by_model = select(
        summaries.c.model,
        func.count(),
        func.coalesce(func.sum(summaries.c.prompt_tokens), 0),
        func.coalesce(func.sum(summaries.c.completion_tokens), 0),
        func.coalesce(func.sum(summaries.c.cost), 0.0),
        func.count() - func.count(summaries.c.cost),
    ).group_by(summaries.c.model)
    if agent_ids is not None:
        by_model = by_model.join(sessions, sessions.c.sid == summaries.c.sid).where(
            sessions.c.agent_id.in_(agent_ids)
        )
    usage, taken = summary_token_usage, func.sum(summary_token_usage.c.tokens)
    recent = (usage.c.day >= since_day) & _among(usage.c.agent_id, agent_ids)
    by_day = select(usage.c.day, taken).where(recent).group_by(usage.c.day)
    by_agent = select(usage.c.agent_id, taken).where(recent).group_by(usage.c.agent_id)
    most = by_agent.order_by(taken.desc(), usage.c.agent_id).limit(agents)
    models = [
        ModelCosts(model, int(versions), int(asked), int(written), float(cost), int(unpriced))
        for model, versions, asked, written, cost, unpriced in connection.execute(by_model)
    ]
    return SummaryCosts(
        models=sorted(models, key=lambda used: (-used.cost, -used.versions, used.model or "")),
        days=[
            DayUsage(day, int(tokens))
            for day, tokens in connection.execute(by_day.order_by(usage.c.day))
        ],
        agents=[AgentUsage(agent_id, int(tokens)) for agent_id, tokens in connection.execute(most)],
    )


def _among(agent_id: Column[str], agent_ids: Collection[str] | None) -> ColumnElement[bool]:
    return true() if agent_ids is None else agent_id.in_(agent_ids)
