"""Regenerations of many sessions, in memory."""

from dataclasses import dataclass, field

from turnfold.core.eviction.eviction import Trigger
from turnfold.core.history.audit_chain import LOCAL
from turnfold.messages import AgentId, CompactionId, SessionKey
from turnfold.ports.admin import CampaignProgress
from turnfold.ports.compact import RegenerateOptions
from turnfold.ports.ingest import Installation
from turnfold.testing.jobs import open_work
from turnfold.testing.kept import Memory


@dataclass(slots=True)
class Campaign:
    """One, with the sessions it still has to open."""

    campaign_id: str
    agent_id: AgentId | None
    wanted: RegenerateOptions
    at_once: int
    sessions: int
    waiting: list[SessionKey]
    requested_at_ms: int
    opened: dict[CompactionId, SessionKey] = field(default_factory=dict)
    finished_at_ms: int | None = None


class MemoryCampaigns:
    """See `turnfold.ports.admin.CampaignStore`."""

    _memory: Memory
    _campaigns: list[Campaign]

    async def begin(
        self,
        agent_id: AgentId | None,
        wanted: RegenerateOptions,
        *,
        at_once: int,
        installation: Installation,
        now_ms: int,
        actor: str = LOCAL,  # noqa: ARG002
    ) -> CampaignProgress:
        """Begin one for an agent or for all; the one that is under way where the same was asked before."""
        for known in self._campaigns:
            if (known.agent_id, known.wanted, known.finished_at_ms) == (agent_id, wanted, None):
                return self._told(known)
        found = sorted(self._memory.sessions.values(), key=lambda session: session.sid)
        keys = [
            one.key
            for one in found
            if one.version is not None and agent_id in (None, one.key.agent_id)
        ]
        made = Campaign(
            str(installation.new_id()), agent_id, wanted, at_once, len(keys), keys, now_ms
        )
        made.finished_at_ms = None if keys else now_ms
        self._campaigns.append(made)
        return self._told(made)

    async def advance(self, *, installation: Installation, now_ms: int) -> int:  # noqa: ARG002
        """Open the next sessions of each campaign; how many that were."""
        opened = 0
        for one in self._campaigns:
            if one.finished_at_ms is not None:
                continue
            room = one.at_once - self._told(one).open
            chosen, one.waiting = one.waiting[:room], one.waiting[room:]
            if not chosen and room == one.at_once:
                one.finished_at_ms = now_ms
            for key in chosen:
                session = self._memory.sessions[key]
                if session.version is not None:
                    work = open_work(
                        self._memory, session, Trigger.REGENERATE, now_ms, now_ms, wanted=one.wanted
                    )
                    one.opened[work] = key
                    opened += 1
        return opened

    async def progress(self, campaign_id: str) -> CampaignProgress | None:
        """How far one is; None where there is none of that id."""
        return next(
            (self._told(one) for one in self._campaigns if one.campaign_id == campaign_id), None
        )

    def _told(self, campaign: Campaign) -> CampaignProgress:
        rows = {
            row.compaction_id: row
            for session in self._memory.sessions.values()
            for row in session.compactions
        }
        statuses = [rows[one].status for one in campaign.opened if one in rows]
        return CampaignProgress(
            campaign.campaign_id, campaign.agent_id, campaign.sessions, len(campaign.opened), statuses.count("committed"),
            sum(statuses.count(status) for status in ("rejected", "failed", "stale")),
            sum(statuses.count(status) for status in ("pending", "running")), campaign.requested_at_ms, campaign.finished_at_ms,
        )  # fmt: skip
