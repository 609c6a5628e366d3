"""Subjects: how they encode ids, and the names of streams, events, requests and notices."""

import hmac
import re
from collections.abc import Mapping
from urllib.parse import unquote_to_bytes

from turnfold.errors import BadRequest
from turnfold.messages import AgentId, SessionId, SessionKey

EVENTS_STREAM = "TURNFOLD_EVENTS"
EVENTS_CONSUMER = "ingest"
NOTICES_STREAM = "TURNFOLD_NOTICES"
NOTICES_SUBJECTS = ("context.compressed.>", "summary.updated.>", "compaction.failed.>")

TURN_COMPLETED = "turn.completed"
TOOL_RESULT = "tool.result"
USAGE_REPORTED = "usage.reported"
TURN_RETRACTED = "turn.retracted"
EVENT_TYPES = (TURN_COMPLETED, TOOL_RESULT, USAGE_REPORTED, TURN_RETRACTED)
EVENTS_SUBJECTS = tuple(subject for name in EVENT_TYPES for subject in (name, f"{name}.>"))

READS = (
    "context.get",
    "history.get",
    "history.search",
    "summary.list",
    "summary.get",
    "summary.expand",
    "session.get",
    "session.tools",
    "session.tool",
    "audit.list",
)
"""Requests about a session that query services answer."""
WRITES = (
    "session.policy",
    "session.erase",
    "session.pop",
    "compaction.request",
    "compaction.restore",
    "summary.promote",
    "summary.regenerate",
)
"""Requests about a session that workers answer."""
AGENT_READS = ("events.known", "session.list")
"""Requests about an agent that query services answer."""
POLICY_READS = ("session.policy", "agent.policy")
"""Requests that query services answer if they change nothing; workers answer the others."""
AGENT_WRITES = ("agent.policy", "agent.erase", "agent.regenerate")
"""Requests about an agent that workers answer."""
INSTALLATION_REQUESTS = ("installation.regenerate", "campaign.get", "deadletters.replay")
"""Requests about the installation that workers answer; their subjects name no agent."""
QUERY_QUEUE = "turnfold-query"
WORKER_QUEUE = "turnfold-worker"

INGESTED = "turnfold.ingested"
"""Best-effort signal that new sequences are stored; a receiver that waits for one checks again."""
ERASED = b"erased"
"""Payload of that signal after an erase; receivers then drop cached texts."""
ERASURES = "turnfold.erased"
"""Best-effort signal of an erasure to the programs of its agent, on `<name>.<agent>`."""
ASKED = "turnfold.asked"
"""Best-effort hint of a query server: the budget of a window, on `<name>.<agent>.<session>`."""

ID_MAX_BYTES = 256
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Not the dot, which separates tokens, nor wildcards: an id is one token whatever it contains.
_ENCODED = re.compile(rb"[^A-Za-z0-9_-]")
_TOKEN = re.compile(r"(?:[A-Za-z0-9_-]|%[0-9A-F]{2})+")


def id_fault(value: object) -> str | None:
    """Return the fault of an id, as words that follow its name; None if it is valid."""
    if not isinstance(value, str):
        return "must be a string"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return "contains a lone surrogate"
    if not 1 <= size <= ID_MAX_BYTES:
        return f"has {size} bytes; 1 to {ID_MAX_BYTES} are allowed"
    return "contains a control character" if _CONTROL.search(value) else None


def token_of(identifier: str) -> str:
    """Encode an id as a subject token: UTF-8, with bytes outside `[A-Za-z0-9_-]` as `%XX`."""
    return _ENCODED.sub(lambda byte: b"%%%02X" % byte[0][0], identifier.encode()).decode()


def id_of(token: str) -> str | None:
    """Decode a subject token; None if it does not encode a valid id canonically."""
    if not _TOKEN.fullmatch(token):
        return None
    try:
        identifier = unquote_to_bytes(token).decode()
    except UnicodeDecodeError:
        return None
    # Canonical only: two subjects for one session would evade permissions.
    return identifier if id_fault(identifier) is None and token_of(identifier) == token else None


def session_subject(name: str, key: SessionKey) -> str:
    """Return the subject `<name>.<agent token>.<session token>`."""
    return f"{name}.{token_of(key.agent_id)}.{token_of(key.session_id)}"


def agent_subject(name: str, agent_id: str) -> str:
    """Return the subject `<name>.<agent token>`.

    Raises:
        BadRequest: the id is invalid; its subject could reach nobody.
    """
    if fault := id_fault(agent_id):
        raise BadRequest(f"agent_id {fault}")
    return f"{name}.{token_of(agent_id)}"


def event_headers(agent_id: str, event_id: str, secret: bytes) -> dict[str, str]:
    """Return the headers with which an event is published, once per event id."""
    return unique_headers(f"{token_of(agent_id)}.{token_of(event_id)}", secret)


def unique_headers(name: str, secret: bytes) -> dict[str, str]:
    """Return headers by which the broker stores a message of this name once.

    The broker searches the whole stream for duplicates, and an error of it quotes the newest id to
    any client: so the id is a digest, which names nothing and lets nobody predict another.
    """
    message_id = hmac.digest(secret, name.encode(), "sha256").hex()
    return {"Nats-Expected-Stream": EVENTS_STREAM, "Nats-Msg-Id": message_id}


REPLAY_HEADER = "Turnfold-Replay-Of"
"""The header of a replayed dead letter: the sequence at which the event was published first."""


def replayed_seq(headers: Mapping[str, str] | None) -> int:
    """Return the sequence of the dead letter that a message replays; 0 if it replays none."""
    seq = headers.get(REPLAY_HEADER, "") if headers else ""
    # Anybody may send the header: digits that int() refuses or that are too many stand for none.
    return int(seq) if seq.isascii() and seq.isdigit() and len(seq) < 20 else 0


def key_of_event_subject(subject: str) -> SessionKey | None:
    """Return the session of an event's subject; None if it names none."""
    match _ids_of_event_subject(subject):
        case [str(agent_id), str(session_id)]:
            return SessionKey(AgentId(agent_id), SessionId(session_id))
        case _:
            return None


def agent_of_event_subject(subject: str) -> AgentId | None:
    """Return the agent of an event's subject, whatever follows it; None if it names none."""
    match _ids_of_event_subject(subject):
        case [str(agent_id), *_]:
            return AgentId(agent_id)
        case _:
            return None


def _ids_of_event_subject(subject: str) -> list[str | None]:
    """Return the ids after the type of an event; None for those that are not encoded right."""
    for kind in EVENT_TYPES:
        if subject.startswith(f"{kind}."):
            return [id_of(token) for token in subject.removeprefix(f"{kind}.").split(".")]
    return []


def key_of_subject(name: str, subject: str) -> SessionKey | AgentId:
    """Return the session of a request's subject, or the agent if it has only one token.

    Raises:
        BadRequest: a token does not encode an id.
    """
    tokens = subject.removeprefix(f"{name}.").split(".")
    ids = [id_of(token) for token in tokens]
    if (
        not subject.startswith(f"{name}.")
        or any(identifier is None for identifier in ids)
        or len(ids) > len(SessionKey._fields)
    ):
        raise BadRequest(f"subject of {name} must end with the encoded agent and session ids")
    return (
        AgentId(str(ids[0]))
        if len(ids) == 1
        else SessionKey(AgentId(str(ids[0])), SessionId(str(ids[1])))
    )
