"""Port for looking up the sessions and the events of an agent by their ids."""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from turnfold.messages import AgentId


class ListedSession(NamedTuple):
    """A session in the list of its agent."""

    session_id: str
    messages_total: int
    tokens_total: int
    last_event_at_ms: int | None


class KnownEvents(NamedTuple):
    """The ids of events that are stored, and of those that were stored and erased."""

    stored: frozenset[str]
    erased: frozenset[str]


class AgentLists(Protocol):
    """Look up what an agent has, by ids.

    Raises:
        Unavailable: the database cannot be read now.
    """

    async def sessions(
        self, agent_id: AgentId, *, prefix: str, after: str | None, limit: int
    ) -> Sequence[ListedSession]: ...

    async def known_events(self, agent_id: AgentId, event_ids: Collection[str]) -> KnownEvents: ...
