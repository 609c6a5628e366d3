"""Validation of answers to requests.

Any client of NATS may reply to a request, also a framework with a message of its own.
"""

from collections.abc import Mapping
from typing import Any, Final

from turnfold.contracts.json_values import json_object

FIELDS: Final[Mapping[str, Mapping[str, type]]] = {
    "context.get": {"agent_id": str, "session_id": str, "messages": list},
    "history.get": {"messages": list},
    "history.search": {"hits": list},
    "summary.list": {"summaries": list},
    "summary.get": {"version": int},
    "summary.expand": {"messages": list},
    "summary.promote": {"version": int},
    "session.get": {"agent_id": str, "session_id": str},
    "session.tools": {"tools": list},
    "session.tool": {"content": str},
    "session.policy": {"agent_id": str},
    "agent.policy": {"agent_id": str},
    "session.list": {"sessions": list},
    "events.known": {"known": list},
    "session.pop": {"messages": list, "seq": int},
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
"""Required fields of answers by request; answers to other requests are any JSON objects."""


def read_answer(name: str, data: bytes) -> dict[str, Any] | None:
    """Return the answer or the error to a request; None if the bytes are neither."""
    answer = json_object(data)
    if answer is None:
        return None
    if "error" in answer:
        failure = answer["error"]
        is_valid = isinstance(failure, dict) and isinstance(failure.get("code"), str)
    elif name == "context.get" and answer.get("not_modified") is True:
        is_valid = True
    else:
        fields = FIELDS.get(name, {}).items()
        is_valid = all(key in answer and isinstance(answer[key], kind) for key, kind in fields)
    return answer if is_valid else None


def request_name(subject: str) -> str:
    """Return the name of a request: the first two tokens of its subject."""
    return ".".join(subject.split(".", 2)[:2])
