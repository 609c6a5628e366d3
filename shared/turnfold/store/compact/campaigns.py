"""Regenerate the summaries of many sessions. Progress is stored, so that any worker continues."""

import json
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, get_args

from sqlalchemy import (
    Connection,
    Integer,
    bindparam,
    func,
    literal_column,
    or_,
    select,
    text,
    update,
)

from turnfold.core.history.audit_chain import LOCAL, WORKER
from turnfold.messages import AgentId
from turnfold.ports.admin import CampaignProgress
from turnfold.ports.compact import FailureStatus, JobStatus, RegenerateOptions
from turnfold.ports.ingest import Installation
from turnfold.ports.inspection import CampaignRow
from turnfold.store.compact.jobs.rows import number_of
from turnfold.store.compact.rewriting import open_regeneration, stated_options, wanted_of
from turnfold.store.database.engine import SqlStore
from turnfold.store.database.predicates import is_open
from turnfold.store.database.schema import campaigns, compactions, sessions
from turnfold.store.database.session_rows import SessionChange, SessionJournal, lock_by_sid
from turnfold.store.database.statements import Prepared, PreparedIn

_is_unfinished = campaigns.c.finished_at_ms.is_(None)
OPEN = (JobStatus.PENDING, JobStatus.RUNNING)
_open = (
    select(func.count())
    .where(compactions.c.campaign_id == campaigns.c.campaign_id, is_open)
    .scalar_subquery()
)
# Others wait for sessions that are open. Any agent may have many of them.
_may_advance = or_(
    (_open < campaigns.c.at_once) & (campaigns.c.last_sid < campaigns.c.until_sid),
    _open == literal_column("0"),
)
_ADVANCING = Prepared(
    select(campaigns.c.campaign_id)
    .where(_is_unfinished, _may_advance)
    .order_by(campaigns.c.requested_at_ms),
    (),
)
_CAMPAIGN = Prepared(select(campaigns).where(campaigns.c.campaign_id == bindparam("by")), ("by",))
_ALIKE = Prepared(
    select(campaigns.c.campaign_id).where(
        _is_unfinished,
        campaigns.c.wanted == bindparam("wanted"),
        func.coalesce(campaigns.c.agent_id, literal_column("''")) == bindparam("of_agent"),
    ),
    ("wanted", "of_agent"),
)
_has_version = sessions.c.version.is_not(None)
_of_agent = or_(
    bindparam("of_agent") == literal_column("''"), sessions.c.agent_id == bindparam("of_agent")
)
_SCOPE = Prepared(
    select(func.count(), func.coalesce(func.max(sessions.c.sid), literal_column("0"))).where(
        _has_version, _of_agent
    ),
    ("of_agent",),
)
_NEXT = Prepared(
    select(sessions.c.sid)
    .where(
        _has_version,
        _of_agent,
        sessions.c.sid > bindparam("last"),
        sessions.c.sid <= bindparam("until"),
    )
    .order_by(sessions.c.sid)
    .limit(bindparam("most", type_=Integer)),
    ("of_agent", "last", "until", "most"),
)
_LOCKED = Prepared(
    select(campaigns.c.campaign_id)
    .where(campaigns.c.campaign_id == bindparam("by"))
    .with_for_update(),
    ("by",),
)
_STATUSES = Prepared(
    select(compactions.c.status, func.count())
    .where(compactions.c.campaign_id == bindparam("by"))
    .group_by(compactions.c.status),
    ("by",),
)
_OWNERS = PreparedIn(select(compactions.c.campaign_id), compactions.c.compaction_id)
FAILED = get_args(FailureStatus)


class SqlCampaignStore(SqlStore):
    """Campaigns in SQL; see `turnfold.ports.admin.CampaignStore`."""

    async def begin(
        self,
        agent_id: AgentId | None,
        wanted: RegenerateOptions,
        *,
        at_once: int,
        installation: Installation,
        now_ms: int,
        actor: str = LOCAL,
    ) -> CampaignProgress:
        """Begin a campaign, or return the running one with the same options."""
        options_json = json.dumps(stated_options(wanted), sort_keys=True)

        def begin(connection: Connection) -> CampaignProgress:
            # Idempotent: a client may repeat a request whose answer was lost, or is still to come.
            if connection.dialect.name == "postgresql":
                connection.execute(text("LOCK TABLE campaigns IN SHARE ROW EXCLUSIVE MODE"))
            for (known,) in _ALIKE.rows(connection, options_json, agent_id or ""):
                return _progress(connection, known)
            ((count, until),) = _SCOPE.rows(connection, agent_id or "")
            campaign_id = installation.new_id()
            row = {
                "campaign_id": campaign_id, "agent_id": agent_id, "wanted": options_json,
                "at_once": at_once, "until_sid": until, "sessions": count,
                "requested_at_ms": now_ms, "finished_at_ms": None if count else now_ms,
                "actor": actor,
            }  # fmt: skip
            connection.execute(campaigns.insert(), row)
            return _progress(connection, campaign_id)

        return await self._database.write(begin)

    async def advance(self, *, installation: Installation, now_ms: int) -> int:
        """Open the next sessions of each campaign, within its limit; return how many."""
        advancing = await self._database.snapshot(
            lambda connection: [campaign_id for (campaign_id,) in _ADVANCING.rows(connection)]
        )
        # One transaction per campaign, so that locks on many sessions are not held together.
        opened = await self._aside.each(
            self._aside.others(advancing),
            lambda campaign_id: self._database.write(
                partial(_advance, campaign_id=campaign_id, installation=installation, now_ms=now_ms)
            ),
        )
        return sum(opened)

    async def progress(self, campaign_id: str) -> CampaignProgress | None:
        """Return the progress of a campaign; None if there is no such campaign."""
        by = number_of(campaign_id)
        return await self._database.snapshot(
            lambda connection: _progress(connection, by) if _CAMPAIGN.rows(connection, by) else None
        )


def _row(connection: Connection, campaign_id: int) -> dict[str, Any]:
    (row,) = _CAMPAIGN.rows(connection, campaign_id)
    return dict(zip(campaigns.c.keys(), row, strict=True))


def _counts(connection: Connection, campaign_id: int) -> dict[str, int]:
    return {status: int(count) for status, count in _STATUSES.rows(connection, campaign_id)}


def _advance(
    connection: Connection, campaign_id: int, installation: Installation, now_ms: int
) -> int:
    # Before it is read: each worker advances each campaign, and would choose the same sessions.
    _LOCKED.rows(connection, campaign_id)
    row, counts = _row(connection, campaign_id), _counts(connection, campaign_id)
    # Another worker may have finished it since the snapshot.
    if row["finished_at_ms"] is not None:
        return 0
    room = row["at_once"] - sum(counts.get(status, 0) for status in OPEN)
    chosen: Sequence[int] = ()
    if room > 0:
        chosen = [
            sid
            for (sid,) in _NEXT.rows(
                connection, row["agent_id"] or "", row["last_sid"], row["until_sid"], room
            )
        ]
        # No row of it is open, and no session is left.
        if not chosen and room == row["at_once"]:
            connection.execute(
                update(campaigns)
                .where(campaigns.c.campaign_id == campaign_id)
                .values(finished_at_ms=now_ms)
            )
    if not chosen:
        return 0
    locked, journal, wanted = (
        list(lock_by_sid(connection, chosen).values()),
        SessionJournal(row["actor"] or WORKER),
        wanted_of(row["wanted"]),
    )
    # The first compaction of a session may have been restored meanwhile.
    still = [session for session in locked if session.version is not None]
    opened = []
    for session in still:
        change = SessionChange(connection, session, journal, now_ms)
        compaction_id = open_regeneration(change, wanted, installation, campaign_id=campaign_id)
        # A session with too many open ones is passed over.
        if compaction_id is not None:
            opened.append(compaction_id)
    journal.write(connection, locked)
    # An open one with these options may belong to a campaign of other sessions.
    owned = sum(row[0] == campaign_id for row in _OWNERS.rows(connection, opened))
    moved = update(campaigns).where(campaigns.c.campaign_id == campaign_id)
    connection.execute(moved.values(last_sid=chosen[-1], opened=campaigns.c.opened + owned))
    return len(opened)


def _progress(connection: Connection, campaign_id: int) -> CampaignProgress:
    row, counts = _row(connection, campaign_id), _counts(connection, campaign_id)
    return CampaignProgress(
        str(campaign_id), row["agent_id"], row["sessions"], row["opened"],
        counts.get(JobStatus.COMMITTED, 0), sum(counts.get(status, 0) for status in FAILED),
        sum(counts.get(status, 0) for status in OPEN), row["requested_at_ms"],
        row["finished_at_ms"],
    )  # fmt: skip


def newest_campaigns(
    connection: Connection, agent_ids: Collection[str] | None, limit: int
) -> list[CampaignRow]:
    """Return the newest campaigns of these agents; those of all agents only for None."""
    chosen = (
        select(campaigns.c.campaign_id, campaigns.c.actor)
        .order_by(campaigns.c.requested_at_ms.desc(), campaigns.c.campaign_id)
        .limit(limit)
    )
    if agent_ids is not None:
        chosen = chosen.where(campaigns.c.agent_id.in_(agent_ids))
    return [
        CampaignRow(_progress(connection, campaign_id), actor)
        for campaign_id, actor in connection.execute(chosen).all()
    ]
