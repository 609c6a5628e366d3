"""Port for looking at an installation: totals, compactions, erasures and timelines, no texts."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from turnfold.messages import SessionKey
from turnfold.ports.admin import CampaignProgress
from turnfold.ports.query import ListPlace

CompactionFilter = Literal["open", "failed"]
"""`open`: waits for its summary. `failed`: ended without one, or goes on after a failed attempt."""


class InstallationTotals(NamedTuple):
    """Sums over sessions. `summary_tokens` are those of the versions in force."""

    agents: int
    sessions: int
    messages: int
    tokens: int
    live_messages: int
    live_tokens: int
    summaries: int
    summary_tokens: int
    sessions_cooling_down: int
    compactions_open: int
    compactions_failed: int
    dead_letters: int


class CompactionRow(NamedTuple):
    """A compaction as job and record. Times are milliseconds since 1970.

    The positions are null while nothing has left the window.
    """

    compaction_id: int
    agent_id: str
    session_id: str
    ordinal: int
    trigger: str
    status: str
    is_covered: bool
    is_regeneration: bool
    first_position: int | None
    last_position: int | None
    messages: int
    tokens: int
    tokens_before: int
    tokens_after: int | None
    attempts: int
    reason: str | None
    version: int | None
    actor: str | None
    requested_at_ms: int
    evicted_at_ms: int | None
    finished_at_ms: int | None
    next_attempt_at_ms: int
    restored_at_ms: int | None


class VersionMark(NamedTuple):
    """A version of a summary on a timeline."""

    version: int
    kind: str
    tokens: int
    messages_covered: int
    last_position: int
    created_at_ms: int


class ErasureRow(NamedTuple):
    """An erasure; without a session, all of the agent was erased."""

    agent_id: str
    session_id: str | None
    at_ms: int
    audit_rows: int

    @property
    def place(self) -> ListPlace:
        """The place in the list."""
        return self.at_ms, self.agent_id, self.session_id or ""


class AgentTotals(NamedTuple):
    """Sums over the sessions of an agent."""

    agent_id: str
    sessions: int
    messages: int
    tokens: int
    live_messages: int
    live_tokens: int
    summaries: int
    sessions_cooling_down: int
    last_event_at_ms: int | None


class ModelCosts(NamedTuple):
    """The cost of the versions of one model; `model` is None for those written without a model.

    `cost` is in US dollars, from providers and price lists. `unpriced` counts the versions without
    a known cost.
    """

    model: str | None
    versions: int
    prompt_tokens: int
    completion_tokens: int
    cost: float
    unpriced: int


class DayUsage(NamedTuple):
    """The tokens that summaries took on a day (since 1970, UTC), failed attempts included."""

    day: int
    tokens: int


class AgentUsage(NamedTuple):
    """The tokens that an agent's summaries took, failed attempts included."""

    agent_id: str
    tokens: int


@dataclass(frozen=True, slots=True)
class SummaryCosts:
    """The cost of summaries: by model since the beginning, by day and agent since a day."""

    models: Sequence[ModelCosts]
    days: Sequence[DayUsage]
    agents: Sequence[AgentUsage]


class CampaignRow(NamedTuple):
    """A campaign and who began it."""

    progress: CampaignProgress
    actor: str


@dataclass(frozen=True, slots=True)
class SessionStrip:
    """The messages of a session by state, in one snapshot.

    `live` and `retracted` are positions in order. `compactions` are in the order of their
    ordinals and include restored ones.
    """

    live: Sequence[int]
    retracted: Sequence[int]
    compactions: Sequence[CompactionRow]
    versions: Sequence[VersionMark]
    in_force: int | None


class SessionMark(NamedTuple):
    """Counters of a session, one of which is different after every change."""

    revision: int
    messages: int
    compactions: int
    audit_rows: int
    version: int | None
    last_event_at_ms: int | None


class InspectionStore(Protocol):
    """Read what the console and other observers show.

    Raises:
        UnknownSession: there is no such session.
        Unavailable: the database cannot be read now.
    """

    async def totals(self, agent_ids: Collection[str] | None) -> InstallationTotals: ...

    async def strip(self, key: SessionKey) -> SessionStrip: ...

    async def compactions_of(
        self, key: SessionKey, *, before: int | None, limit: int
    ) -> Sequence[CompactionRow]: ...

    async def compactions(
        self, chosen: CompactionFilter, *, agent_ids: Collection[str] | None, limit: int
    ) -> Sequence[CompactionRow]: ...

    async def erasures(
        self,
        *,
        agent_ids: Collection[str] | None,
        limit: int,
        after: ListPlace | None = None,
    ) -> Sequence[ErasureRow]: ...

    async def agents(
        self, agent_ids: Collection[str] | None, *, after: str | None, limit: int
    ) -> Sequence[AgentTotals]: ...

    async def costs(
        self, agent_ids: Collection[str] | None, *, since_day: int, agents: int
    ) -> SummaryCosts: ...

    async def campaigns(
        self, agent_ids: Collection[str] | None, *, limit: int
    ) -> Sequence[CampaignRow]: ...
