"""The form of answers to requests: any client on the bus may reply to a request, and a framework replies with anything."""

import json
from collections.abc import Mapping
from typing import Any, Final

FIELDS: Final[Mapping[str, Mapping[str, type]]] = {
    "context.get": {"agent_id": str, "session_id": str, "messages": list},
    "history.get": {"messages": list},
    "history.search": {"hits": list},
    "summary.list": {"summaries": list},
    "summary.get": {"version": int},
    "summary.expand": {"messages": list},
    "summary.promote": {"version": int},
    "session.get": {"agent_id": str, "session_id": str},
    "session.erase": {"agent_id": str, "session_id": str},
    "agent.erase": {"agent_id": str},
    "audit.list": {"audit": list},
    "compaction.request": {"compaction_id": object},
    "compaction.restore": {"compaction_id": object},
    "summary.regenerate": {"compaction_id": object},
    "agent.regenerate": {"campaign_id": object},
    "installation.regenerate": {"campaign_id": object},
    "campaign.get": {"campaign_id": object},
    "deadletters.replay": {"dead_letters": list},
}
"""Fields that every answer to a request has; an answer to any other request is some object."""


def read_answer(name: str, data: bytes) -> dict[str, Any] | None:
    """The answer to a request, or the error in its place; None when these bytes are neither."""
    try:
        told = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, dict):
        return None
    if "error" in told:
        failure = told["error"]
        return told if isinstance(failure, dict) and isinstance(failure.get("code"), str) else None
    if name == "context.get" and told.get("not_modified") is True:
        return told
    fields = FIELDS.get(name, {})
    return (
        told
        if all(field in told and isinstance(told[field], kind) for field, kind in fields.items())
        else None
    )


def request_name(subject: str) -> str:
    """The name of a request: the first two tokens of its subject."""
    return ".".join(subject.split(".", 2)[:2])
