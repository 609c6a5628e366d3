"""Subjects: how ids travel in them, and the names of streams, events, requests and notices."""

import re
from urllib.parse import unquote_to_bytes

from turnfold.errors import BadRequest
from turnfold.messages import AgentId, SessionId, SessionKey

EVENTS_STREAM = "TURNFOLD_EVENTS"
EVENTS_SUBJECTS = ("turn.completed", "turn.completed.>", "tool.result", "tool.result.>")
EVENTS_CONSUMER = "ingest"
NOTICES_STREAM = "TURNFOLD_NOTICES"
NOTICES_SUBJECTS = ("context.compressed.>", "summary.updated.>", "compaction.failed.>")

TURN_COMPLETED = "turn.completed"
TOOL_RESULT = "tool.result"
EVENT_TYPES = (TURN_COMPLETED, TOOL_RESULT)

READS = (
    "context.get",
    "history.get",
    "history.search",
    "summary.list",
    "summary.get",
    "summary.expand",
    "session.get",
    "audit.list",
)
"""Requests about a session that query servers answer."""
WRITES = (
    "session.policy",
    "session.erase",
    "compaction.request",
    "compaction.restore",
    "summary.promote",
    "summary.regenerate",
)
"""Requests about a session that a worker answers."""
POLICY_READS = ("session.policy", "agent.policy")
"""Requests of these that change nothing are read: query servers answer them, and workers leave them alone."""
AGENT_WRITES = ("agent.policy", "agent.erase", "agent.regenerate")
"""The same about all of an agent."""
INSTALLATION_REQUESTS = ("installation.regenerate", "campaign.get", "deadletters.replay")
"""The same about everybody: their subjects name no agent."""
QUERY_QUEUE = "turnfold-query"
WORKER_QUEUE = "turnfold-worker"

INGESTED = "turnfold.ingested"
"""Best-effort word that new sequences are stored; whoever waits for one looks again."""
ERASED = b"erased"
"""What such a word says besides where something was erased: whoever remembers texts forgets them."""

ID_MAX_BYTES = 256
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_PLAIN = re.compile(rb"[^A-Za-z0-9_-]")
_TOKEN = re.compile(r"(?:[A-Za-z0-9_-]|%[0-9A-F]{2})+")


def id_fault(value: object) -> str | None:
    """What is wrong with an id, in words that follow its name; None when it is one."""
    if not isinstance(value, str):
        return "must be a text"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return "holds a lone surrogate"
    if not 1 <= size <= ID_MAX_BYTES:
        return f"has {size} bytes; 1 to {ID_MAX_BYTES} are allowed"
    return "holds a control character" if _CONTROL.search(value) else None


def token_of(identifier: str) -> str:
    """An id as one subject token: UTF-8, every byte outside `[A-Za-z0-9_-]` as `%XX`."""
    return _PLAIN.sub(lambda byte: b"%%%02X" % byte[0][0], identifier.encode()).decode()


def id_of(token: str) -> str | None:
    """The id a token stands for, or None when no id is written so, or none may be what is written."""
    if not _TOKEN.fullmatch(token):
        return None
    try:
        identifier = unquote_to_bytes(token).decode()
    except UnicodeDecodeError:
        return None
    return identifier if id_fault(identifier) is None and token_of(identifier) == token else None


def session_subject(name: str, key: SessionKey) -> str:
    """`<name>.<agent token>.<session token>`."""
    return f"{name}.{token_of(key.agent_id)}.{token_of(key.session_id)}"


def message_header(agent_id: str, event_id: str, secret: str) -> str:
    """The `Nats-Msg-Id` of an event. The broker looks for copies in the whole stream: nobody may guess what another uses."""
    return f"{token_of(agent_id)}.{token_of(event_id)}.{secret}"


def key_of_event_subject(subject: str) -> SessionKey | None:
    """The session that the subject of an event names; None where it names none."""
    for kind in EVENT_TYPES:
        ids = (
            [id_of(token) for token in subject.removeprefix(f"{kind}.").split(".")]
            if subject.startswith(f"{kind}.")
            else []
        )
        match ids:
            case [str(agent_id), str(session_id)]:
                return SessionKey(AgentId(agent_id), SessionId(session_id))
            case _:
                continue
    return None


def key_of_subject(name: str, subject: str) -> SessionKey | AgentId:
    """The session (or the agent, where there is one token only) that a request's subject names.

    Raises:
        BadRequest: a token stands for no id.
    """
    tokens = subject.removeprefix(f"{name}.").split(".")
    ids = [id_of(token) for token in tokens]
    if (
        not subject.startswith(f"{name}.")
        or any(one is None for one in ids)
        or len(ids) > len(SessionKey._fields)
    ):
        raise BadRequest(f"{name} takes the agent and the session as encoded tokens")
    return (
        AgentId(str(ids[0]))
        if len(ids) == 1
        else SessionKey(AgentId(str(ids[0])), SessionId(str(ids[1])))
    )
