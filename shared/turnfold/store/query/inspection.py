"""Read totals, compactions, erasures and timelines; no statement reads a text of a message."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    case,
    exists,
    func,
    not_,
    or_,
    select,
    tuple_,
)

from turnfold.core.eviction.triggers import Trigger
from turnfold.errors import UnknownSession
from turnfold.messages import SessionKey
from turnfold.ports.compact import JobStatus
from turnfold.ports.inspection import (
    AgentTotals,
    AgentUsage,
    CampaignRow,
    CompactionFilter,
    CompactionRow,
    DayUsage,
    ErasureRow,
    InstallationTotals,
    ModelCosts,
    SessionMark,
    SessionStrip,
    SummaryCosts,
    VersionMark,
)
from turnfold.ports.query import ListPlace
from turnfold.store.compact.campaigns import newest_campaigns
from turnfold.store.database.engine import SqlStore
from turnfold.store.database.predicates import (
    ERASED_AGENT,
    is_live,
    is_of_kept,
    is_open,
    of_messages,
)
from turnfold.store.database.schema import (
    compactions,
    dead_letters,
    erasures,
    messages,
    retracted_messages,
    sessions,
    summaries,
    summary_token_usage,
)
from turnfold.store.database.statements import Prepared
from turnfold.store.query.session_head import session_row

_COMPACTIONS = select(
    compactions.c.compaction_id,
    sessions.c.agent_id,
    sessions.c.session_id,
    compactions.c.ordinal,
    # As the audit and `compactions_view` name it; see `trigger_columns`.
    case((compactions.c.is_by_budget, Trigger.BUDGET), else_=compactions.c.trigger),
    compactions.c.status,
    compactions.c.is_covered,
    compactions.c.wanted.is_not(None),
    *(
        compactions.c[name]
        for name in (
            "first_position", "last_position", "messages_evicted", "tokens_evicted",
            "tokens_before", "tokens_after", "attempts", "reason", "version", "actor",
            "requested_at_ms", "evicted_at_ms", "finished_at_ms", "next_attempt_at_ms",
            "restored_at_ms",
        )
    ),
).join(sessions, sessions.c.sid == compactions.c.sid)  # fmt: skip
_MARK = Prepared(
    select(
        *(
            sessions.c[name]
            for name in (
                "revision", "messages_total", "compactions", "audit_rows", "version",
                "last_event_at_ms",
            )
        )
    ).where(
        sessions.c.agent_id == bindparam("agent_id"), sessions.c.session_id == bindparam("named")
    ),
    ("agent_id", "named"),
)  # fmt: skip
# No other column, so that texts stay unread, and prepared, because there may be 100,000 rows.
_LIVE = Prepared(
    select(messages.c.position).where(of_messages, is_live).order_by(messages.c.position),
    ("of_sid",),
)
_RETRACTED = Prepared(
    select(retracted_messages.c.position)
    .where(retracted_messages.c.sid == bindparam("of_sid"))
    .order_by(retracted_messages.c.position),
    ("of_sid",),
)
_VERSIONS = select(*(summaries.c[name] for name in VersionMark._fields))
_SUMS = [
    func.coalesce(func.sum(sessions.c[name]), 0)
    for name in ("messages_total", "tokens_total", "live_messages", "live_tokens", "versions")
]
_LATER = compactions.alias("later")
_IS_TRIED_AGAIN = and_(
    compactions.c.trigger == Trigger.STAND_IN,
    exists().where(
        _LATER.c.sid == compactions.c.sid,
        _LATER.c.ordinal > compactions.c.ordinal,
        _LATER.c.trigger == Trigger.STAND_IN,
        _LATER.c.finished_at_ms.is_not(None),
    ),
)
"""An outage leaves a row for each attempt to replace an extractive summary: the last counts."""
_HAS_FAILED = or_(
    and_(compactions.c.status.in_([JobStatus.FAILED, JobStatus.REJECTED]), not_(_IS_TRIED_AGAIN)),
    and_(is_open, compactions.c.attempts > 0, compactions.c.reason.is_not(None)),
)


class SqlInspectionStore(SqlStore):
    """Inspections in SQL; see `turnfold.ports.inspection.InspectionStore`."""

    async def totals(self, agent_ids: Collection[str] | None) -> InstallationTotals:
        """Return sums over the sessions of these agents, or of all."""
        return await self._database.snapshot(lambda connection: _totals(connection, agent_ids))

    async def strip(self, key: SessionKey) -> SessionStrip:
        """Return the messages of a session by state."""
        return await self._database.snapshot(lambda connection: _strip(connection, key))

    async def mark(self, key: SessionKey) -> SessionMark:
        """Return counters of a session, of one row."""
        rows = await self._database.read_small(
            lambda connection: _MARK.rows(connection, key.agent_id, key.session_id)
        )
        if not rows:
            raise UnknownSession
        return SessionMark(*rows[0])

    async def compactions_of(
        self, key: SessionKey, *, before: int | None, limit: int
    ) -> Sequence[CompactionRow]:
        """Return compactions of a session before an ordinal, newest first."""

        def read(connection: Connection) -> list[CompactionRow]:
            (sid,) = session_row(connection, key, sessions.c.sid)
            chosen = _COMPACTIONS.where(compactions.c.sid == sid).order_by(
                compactions.c.ordinal.desc()
            )
            if before is not None:
                chosen = chosen.where(compactions.c.ordinal < before)
            return _compactions(connection, chosen.limit(limit))

        return await self._database.snapshot(read)

    async def compactions(
        self, chosen: CompactionFilter, *, agent_ids: Collection[str] | None, limit: int
    ) -> Sequence[CompactionRow]:
        """Return the newest open or failed compactions of these agents, or of all."""
        condition = is_open if chosen == "open" else _HAS_FAILED
        wanted = (
            _COMPACTIONS.where(condition, _of_agents(agent_ids))
            .order_by(compactions.c.requested_at_ms.desc(), compactions.c.compaction_id)
            .limit(limit)
        )
        return await self._database.snapshot(lambda connection: _compactions(connection, wanted))

    async def erasures(
        self,
        *,
        agent_ids: Collection[str] | None,
        limit: int,
        after: ListPlace | None = None,
    ) -> Sequence[ErasureRow]:
        """Return erasures of these agents, or of all, newest first, after a place in the list."""
        chosen = (
            select(
                erasures.c.agent_id,
                # The erasure of a whole agent has an empty session id.
                func.nullif(erasures.c.session_id, ""),
                erasures.c.at_ms,
                erasures.c.audit_rows,
            )
            .order_by(erasures.c.at_ms.desc(), erasures.c.agent_id, erasures.c.session_id)
            .limit(limit)
        )
        if agent_ids is not None:
            chosen = chosen.where(erasures.c.agent_id.in_(agent_ids))
        if after is not None:
            at_ms, *names = after
            is_after = tuple_(erasures.c.agent_id, erasures.c.session_id) > tuple_(*names)
            is_same_time = erasures.c.at_ms == at_ms
            chosen = chosen.where((erasures.c.at_ms < at_ms) | (is_same_time & is_after))
        return await self._database.snapshot(
            lambda connection: [ErasureRow(*row) for row in connection.execute(chosen)]
        )

    async def agents(
        self, agent_ids: Collection[str] | None, *, after: str | None, limit: int
    ) -> Sequence[AgentTotals]:
        """Return the agents after one, in the order of their ids, with sums over their sessions."""
        # In the order of the index of sessions, so that no more agents are read than a page has.
        chosen = (
            select(
                sessions.c.agent_id,
                func.count(),
                *_SUMS,
                func.sum(case((sessions.c.failures > 0, 1), else_=0)),
                func.max(sessions.c.last_event_at_ms),
            )
            .where(_of_agents(agent_ids))
            .group_by(sessions.c.agent_id)
            .order_by(sessions.c.agent_id)
            .limit(limit)
        )
        if after is not None:
            chosen = chosen.where(sessions.c.agent_id > after)
        return await self._database.snapshot(
            lambda connection: [
                AgentTotals._make([row[0], *map(int, row[1:-1]), row[-1]])
                for row in connection.execute(chosen)
            ]
        )

    async def costs(
        self, agent_ids: Collection[str] | None, *, since_day: int, agents: int
    ) -> SummaryCosts:
        """Return what the summaries of these agents took; `agents` names those that took most."""
        return await self._database.snapshot(
            lambda connection: _summary_costs(
                connection, agent_ids, since_day=since_day, agents=agents
            )
        )

    async def campaigns(
        self, agent_ids: Collection[str] | None, *, limit: int
    ) -> Sequence[CampaignRow]:
        """Return the newest campaigns of these agents; those of all agents only for None."""
        return await self._database.snapshot(
            lambda connection: newest_campaigns(connection, agent_ids, limit)
        )


def _of_agents(
    agent_ids: Collection[str] | None, agent_id: Column[str] = sessions.c.agent_id
) -> ColumnElement[bool]:
    return agent_id != ERASED_AGENT if agent_ids is None else agent_id.in_(agent_ids)


def _compactions(connection: Connection, chosen: Select[*tuple[Any, ...]]) -> list[CompactionRow]:
    return [CompactionRow(*row) for row in connection.execute(chosen)]


def _totals(connection: Connection, agent_ids: Collection[str] | None) -> InstallationTotals:
    of_agents = _of_agents(agent_ids)

    def number(chosen: Select[*tuple[Any, ...]]) -> int:
        return int(connection.execute(chosen).scalar() or 0)

    sums = connection.execute(
        select(
            func.count(sessions.c.agent_id.distinct()),
            func.count(),
            *_SUMS,
        ).where(of_agents)
    ).one()
    in_force = (summaries.c.sid == sessions.c.sid) & (summaries.c.version == sessions.c.version)
    jobs = select(func.count()).select_from(compactions).where(is_of_kept(compactions.c.sid))
    if agent_ids is not None:
        jobs = jobs.join(sessions, sessions.c.sid == compactions.c.sid).where(of_agents)
    dead = (
        select(func.count())
        .select_from(dead_letters)
        .where(dead_letters.c.replayed_at_ms.is_(None))
    )
    if agent_ids is not None:
        dead = dead.where(dead_letters.c.agent_id.in_(agent_ids))
    agents, count, total, tokens, live, live_tokens, versions = (int(value) for value in sums)
    return InstallationTotals(
        agents=agents,
        sessions=count,
        messages=total,
        tokens=tokens,
        live_messages=live,
        live_tokens=live_tokens,
        summaries=versions,
        summary_tokens=number(
            select(func.sum(summaries.c.tokens)).join(sessions, in_force).where(of_agents)
        ),
        sessions_cooling_down=number(
            select(func.count()).select_from(sessions).where(sessions.c.failures > 0, of_agents)
        ),
        compactions_open=number(jobs.where(is_open)),
        compactions_failed=number(jobs.where(_HAS_FAILED)),
        dead_letters=number(dead),
    )


def _strip(connection: Connection, key: SessionKey) -> SessionStrip:
    sid, in_force = session_row(connection, key, sessions.c.sid, sessions.c.version)
    of_session = _COMPACTIONS.where(compactions.c.sid == sid).order_by(compactions.c.ordinal)
    versions = _VERSIONS.where(summaries.c.sid == sid).order_by(summaries.c.version)
    return SessionStrip(
        live=[position for (position,) in _LIVE.rows(connection, sid)],
        retracted=[position for (position,) in _RETRACTED.rows(connection, sid)],
        compactions=_compactions(connection, of_session),
        versions=[VersionMark(*row) for row in connection.execute(versions)],
        in_force=in_force,
    )  # fmt: skip


def _summary_costs(
    connection: Connection, agent_ids: Collection[str] | None, *, since_day: int, agents: int
) -> SummaryCosts:
    """Return what summaries took: by model since the beginning, by day and agent since a day."""
    by_model = (
        select(
            summaries.c.model,
            func.count(),
            func.coalesce(func.sum(summaries.c.prompt_tokens), 0),
            func.coalesce(func.sum(summaries.c.completion_tokens), 0),
            func.coalesce(func.sum(summaries.c.cost), 0.0),
            func.count() - func.count(summaries.c.cost),
        )
        .where(is_of_kept(summaries.c.sid))
        .group_by(summaries.c.model)
    )
    if agent_ids is not None:
        by_model = by_model.join(sessions, sessions.c.sid == summaries.c.sid).where(
            sessions.c.agent_id.in_(agent_ids)
        )
    usage, taken = summary_token_usage, func.sum(summary_token_usage.c.tokens)
    recent = (usage.c.day >= since_day) & _of_agents(agent_ids, usage.c.agent_id)
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
