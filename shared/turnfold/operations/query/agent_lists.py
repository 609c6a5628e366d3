"""Answer requests about what an agent has: its sessions by prefix, and its stored events."""

from typing import Any

from turnfold.contracts.history_requests import EventsKnownRequest, SessionListRequest
from turnfold.contracts.subjects import id_fault
from turnfold.errors import BadRequest
from turnfold.messages import AgentId
from turnfold.operations.query.replies import with_times
from turnfold.ports.agent_lists import AgentLists


async def known_events(
    agent_id: AgentId, request: EventsKnownRequest, *, lists: AgentLists
) -> dict[str, Any]:
    """Return which of the event ids are stored and which are erased, each once."""
    # No event has any other id, and a database cannot compare every text.
    possible = [name for name in dict.fromkeys(request.event_ids) if id_fault(name) is None]
    known = await lists.known_events(agent_id, possible)
    return {
        "agent_id": agent_id,
        "known": [name for name in possible if name in known.stored],
        "erased": [name for name in possible if name in known.erased],
    }


async def sessions(
    agent_id: AgentId, request: SessionListRequest, *, lists: AgentLists
) -> dict[str, Any]:
    """Return a page of sessions, in the order of their ids.

    Raises:
        BadRequest: the prefix or the place to continue cannot be part of an id.
    """
    for name in ("prefix", "after"):
        text = getattr(request, name)
        if text and (fault := id_fault(text)):
            raise BadRequest(f"{name}: {fault}")
    page = await lists.sessions(
        agent_id, prefix=request.prefix, after=request.after or None, limit=request.limit
    )
    return {
        "agent_id": agent_id,
        "sessions": [with_times(session._asdict()) for session in page],
        "next_after": page[-1].session_id if len(page) == request.limit else None,
    }
