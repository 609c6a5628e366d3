"""Every request on the bus: its model, the models of its answers, and its errors.

OpenAPI, AsyncAPI and the tests read this table, so a request that is missing here is documented
nowhere and fails the tests.
"""

import re
from typing import NamedTuple

from turnfold.contracts.answers.base import Answer
from turnfold.contracts.answers.history import (
    AuditAnswer,
    ElementsAnswer,
    EventsKnownAnswer,
    HistoryAnswer,
    PopAnswer,
    SearchAnswer,
    SessionAnswer,
    SessionNamesAnswer,
)
from turnfold.contracts.answers.installation import ReplayAnswer
from turnfold.contracts.answers.policies import (
    AgentErasedAnswer,
    OverridesAnswer,
    PolicyAnswer,
    SessionErasedAnswer,
)
from turnfold.contracts.answers.summaries import (
    CampaignAnswer,
    CompactionAnswer,
    RegenerationAnswer,
    RestoreAnswer,
    SourcesAnswer,
    VersionAnswer,
    VersionListAnswer,
)
from turnfold.contracts.answers.window import (
    ContextAnswer,
    ToolAnswer,
    ToolsAnswer,
    UnchangedAnswer,
)
from turnfold.contracts.history_requests import (
    AuditRequest,
    ElementsRequest,
    EventsKnownRequest,
    PopRequest,
    SearchRequest,
    SessionListRequest,
)
from turnfold.contracts.requests import (
    AgentEraseRequest,
    CampaignRequest,
    CompactionRequest,
    ContextRequest,
    CountsRequest,
    EraseRequest,
    ExpandRequest,
    PolicyRequest,
    ProgressRequest,
    PromoteRequest,
    RegenerateRequest,
    ReplayRequest,
    Request,
    RestoreRequest,
    SessionRequest,
    SummaryRequest,
    ToolRequest,
    ToolsRequest,
)
from turnfold.contracts.subjects import AGENT_READS, AGENT_WRITES, INSTALLATION_REQUESTS
from turnfold.errors import CannotFit, Conflict, RequestError, UnknownSession


class RequestEntry(NamedTuple):
    """A request: a topic, a model, and the answers and errors that belong to it.

    Every request may also fail with `bad_request`, `not_allowed`, `too_large` and `unavailable`.
    """

    topic: str
    request: type[Request]
    answers: tuple[type[Answer], ...]
    errors: tuple[type[RequestError], ...] = ()


_KNOWN = (UnknownSession,)
_CHANGED = (UnknownSession, Conflict)
REQUESTS: dict[str, RequestEntry] = {
    "context.get": RequestEntry(
        "window", ContextRequest, (ContextAnswer, UnchangedAnswer), (CannotFit,)
    ),
    "session.tools": RequestEntry("window", ToolsRequest, (ToolsAnswer,)),
    "session.tool": RequestEntry("window", ToolRequest, (ToolAnswer,), _KNOWN),
    "history.get": RequestEntry(
        "history", ElementsRequest, (HistoryAnswer, ElementsAnswer), _KNOWN
    ),
    "history.search": RequestEntry("history", SearchRequest, (SearchAnswer,), _KNOWN),
    "audit.list": RequestEntry("history", AuditRequest, (AuditAnswer,), _KNOWN),
    "session.get": RequestEntry("sessions", CountsRequest, (SessionAnswer,), _KNOWN),
    "session.pop": RequestEntry("history", PopRequest, (PopAnswer,), _KNOWN),
    "session.erase": RequestEntry("sessions", EraseRequest, (SessionErasedAnswer,)),
    "session.list": RequestEntry("sessions", SessionListRequest, (SessionNamesAnswer,)),
    "events.known": RequestEntry("events", EventsKnownRequest, (EventsKnownAnswer,)),
    "agent.erase": RequestEntry("sessions", AgentEraseRequest, (AgentErasedAnswer,)),
    "summary.list": RequestEntry("summaries", SessionRequest, (VersionListAnswer,), _KNOWN),
    "summary.get": RequestEntry("summaries", SummaryRequest, (VersionAnswer,), _KNOWN),
    "summary.expand": RequestEntry("summaries", ExpandRequest, (SourcesAnswer,), _KNOWN),
    "summary.promote": RequestEntry("summaries", PromoteRequest, (VersionAnswer,), _CHANGED),
    "summary.regenerate": RequestEntry(
        "summaries", RegenerateRequest, (RegenerationAnswer,), _CHANGED
    ),
    "agent.regenerate": RequestEntry("summaries", CampaignRequest, (CampaignAnswer,)),
    "installation.regenerate": RequestEntry("summaries", CampaignRequest, (CampaignAnswer,)),
    "campaign.get": RequestEntry("summaries", ProgressRequest, (CampaignAnswer,)),
    "compaction.request": RequestEntry(
        "compactions", CompactionRequest, (CompactionAnswer,), (Conflict,)
    ),
    "compaction.restore": RequestEntry("compactions", RestoreRequest, (RestoreAnswer,), _CHANGED),
    "session.policy": RequestEntry(
        "policies", PolicyRequest, (OverridesAnswer, PolicyAnswer), (Conflict,)
    ),
    "agent.policy": RequestEntry("policies", PolicyRequest, (OverridesAnswer, PolicyAnswer)),
    "deadletters.replay": RequestEntry("dead letters", ReplayRequest, (ReplayAnswer,)),
}


def address(name: str) -> str:
    """Return the subject of a request, with a parameter for each id."""
    if name in INSTALLATION_REQUESTS:
        return name
    is_of_agent = name in AGENT_READS or name in AGENT_WRITES
    return f"{name}.{{agent_id}}" if is_of_agent else f"{name}.{{agent_id}}.{{session_id}}"


def wildcard_subject(name: str) -> str:
    """Return the subject by which services subscribe to a request: its address for any ids."""
    return re.sub(r"{\w+}", "*", address(name))
