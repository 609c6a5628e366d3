"""Request models for NATS and HTTP.

Known fields are validated strictly. Requests that read ignore unknown fields, which their answers
name, and requests that write reject them.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from turnfold.contracts.event_models import Id
from turnfold.contracts.fields import example
from turnfold.errors import EventFault
from turnfold.messages import MOST_EXACT, MOST_INT32, MOST_INT64, ToolFormat, WindowFormat

MAX_WAIT_MS = 5_000
Tokens = Annotated[int, Field(ge=0, le=MOST_EXACT)]
Moment = Annotated[str, Field(max_length=300)] | Annotated[int, Field(ge=0, le=MOST_EXACT)]
AS_OF = (
    "An earlier moment: digits are a version of the summary, `<event_id>#<index>` is a message,"
    " anything else is an RFC 3339 time."
)


class Request(BaseModel):
    """A request: unknown fields are kept apart, numbers are finite, values are not converted."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)


class Command(Request):
    """A request that writes.

    Unknown fields are rejected, because a misspelled one could change its meaning.

    The ids may be repeated if they equal those of the subject; see `read_command`.
    """

    model_config = ConfigDict(extra="forbid")

    agent_id: Annotated[
        str | None, Field(description="Optional; must equal the agent of the subject.")
    ] = None
    session_id: Annotated[
        str | None, Field(description="Optional; must equal the session of the subject.")
    ] = None


class RecallFields(Request):
    """The query of a recall, and the size of its block."""

    query: Annotated[
        str | None,
        Field(description="What to look for; by default the text of the newest request."),
    ] = None
    tokens: Annotated[Tokens | None, Field(description="Maximum tokens of the block.")] = None
    share: Annotated[
        float | None, Field(ge=0, le=0.9, description="Maximum share of the budget.")
    ] = None


class FreshRequest(Request):
    """A request that waits until an event is stored, so that its answer includes the event."""

    after: Annotated[
        Annotated[int, Field(ge=0, le=MOST_INT64)] | Literal["latest"] | None,
        Field(
            description="The `seq` of a publish acknowledgement; `latest`: that of the session's"
            " newest event in the stream."
        ),
    ] = None
    wait_ms: Annotated[
        int, Field(ge=0, description="How long to wait for that event, at most 5,000 ms.")
    ] = 250

    @property
    def after_seq(self) -> int:
        """The sequence to wait for; 0 without one. `latest` was replaced by a number before."""
        assert self.after != "latest"
        return self.after or 0

    @property
    def wait_seconds(self) -> float:
        """The time to wait for it."""
        return min(self.wait_ms, MAX_WAIT_MS) / 1000


class ContextFields(FreshRequest):
    """The fields of a request for the model's next input that NATS and HTTP share."""

    model_config = example(max_tokens=8_000, placement="user", after=4_711, wait_ms=1_000)

    max_tokens: Annotated[
        Tokens | None,
        Field(
            description="Size of the window with its summary; by default derived from the model."
        ),
    ] = None
    model: Annotated[
        str | None,
        Field(
            max_length=300,
            description="The model that reads the window; by default that of the newest event.",
        ),
    ] = None
    system_tokens: Annotated[
        Tokens, Field(description="Tokens of the agent's system text, taken off a derived budget.")
    ] = 0
    tools_tokens: Annotated[
        Tokens, Field(description="Tokens of the tools' definitions, taken off a derived budget.")
    ] = 0
    max_output_tokens: Annotated[
        Tokens | None,
        Field(description="Tokens of the answer, taken off a derived budget; default: policy."),
    ] = None
    max_messages: Annotated[
        int | None,
        Field(
            ge=1,
            le=MOST_EXACT,
            description="Maximum number of messages besides the pinned one; blocks stay whole.",
        ),
    ] = None
    mode: Annotated[
        Literal["normal", "emergency"],
        Field(description="`emergency` takes at most three fifths of the budget."),
    ] = "normal"
    format: Annotated[
        WindowFormat,
        Field(description="The interface that the messages are for."),
    ] = "openai"
    placement: Annotated[
        Literal["separate", "system", "message", "user"],
        Field(
            description="Where the summary stands: only in `summary`, at the end of the system"
            " message, or in a system or user message of its own (`user` is recommended)."
        ),
    ] = "separate"
    query: Annotated[
        str | None,
        Field(description="The user's current question: a short form of `recall.query`."),
    ] = None
    etag: Annotated[
        str | None,
        Field(description="That of an earlier answer; `not_modified` is returned if it holds."),
    ] = None
    as_of: Annotated[Moment | None, Field(description=AS_OF)] = None
    entries: Annotated[
        bool, Field(description="Whether the answer says in which form each message is shown.")
    ] = False
    bodies: Annotated[
        Literal["all", "changed"],
        Field(description="`changed`: null stands for messages that are shown as published."),
    ] = "all"
    follow_budget: Annotated[
        bool, Field(description="False: this budget evicts nothing, for inspection.")
    ] = True


class ContextRequest(ContextFields):
    """Read the model's next input."""

    recall: Annotated[
        RecallFields | Literal[False] | None,
        Field(description="Which earlier messages return in a block of their own; false: none."),
    ] = None


class ContextQuery(ContextFields):
    """Read the model's next input; the fields of a URL."""

    recall: Annotated[bool, Field(description="False: no recall block.")] = True
    recall_tokens: Annotated[
        Tokens | None, Field(description="Maximum tokens of the recall block.")
    ] = None
    recall_share: Annotated[
        float | None,
        Field(ge=0, le=0.9, description="Maximum share of the budget for recall."),
    ] = None

    def request(self) -> ContextRequest:
        """Return the same request as NATS carries it."""
        recall: RecallFields | Literal[False] | None = None
        if not self.recall:
            recall = False
        elif self.recall_tokens is not None or self.recall_share is not None:
            recall = RecallFields(tokens=self.recall_tokens, share=self.recall_share)
        fields = {name: getattr(self, name) for name in ContextFields.model_fields}
        # The fields are valid: this model has the same ones.
        return ContextRequest.model_construct(**fields, recall=recall)


class SummaryRequest(Request):
    """Read one version of the summary."""

    model_config = example(version=3)

    version: Annotated[int, Field(ge=1, le=MOST_INT32)]


class PromoteBody(Command):
    """Put the version of the path in force."""

    model_config = example(over=3)

    over: Annotated[
        int | None,
        Field(
            ge=1,
            le=MOST_INT32,
            description="Promote only if this version is in force; else `conflict`.",
        ),
    ] = None


class PromoteRequest(PromoteBody):
    """Put a version in force."""

    model_config = example(version=2, over=3)

    version: Annotated[int, Field(ge=1, le=MOST_INT32)]


class RegenerateRequest(Command):
    """Write a new version from the original messages; omitted fields follow the policy.

    The version in force stays in force.
    """

    model_config = example(model="openai/gpt-4.1-mini", style="structured")

    model: Annotated[str | None, Field(min_length=1, max_length=300)] = None
    style: Literal["narrative", "structured"] | None = None
    prompt: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=20_000,
            description="Another task for the model; the data are unchanged.",
        ),
    ] = None
    from_version: Annotated[
        int | None,
        Field(ge=1, le=MOST_INT32, description="Extend this version with the messages after it."),
    ] = None


class CampaignRequest(Command):
    """Regenerate the summaries of many sessions, a few at a time."""

    model_config = example(style="structured", at_once=2)

    model: Annotated[str | None, Field(min_length=1, max_length=300)] = None
    style: Literal["narrative", "structured"] | None = None
    prompt: Annotated[str | None, Field(min_length=1, max_length=20_000)] = None
    at_once: Annotated[
        int, Field(ge=1, le=100, description="Sessions to regenerate at the same time.")
    ] = 2


class ProgressRequest(Command):
    """Read the progress of a campaign."""

    model_config = example(campaign_id="4f1d9c2ab7")

    campaign_id: Annotated[str, Field(min_length=1, max_length=40)]


class RestoreRequest(Command):
    """Undo a compaction."""

    model_config = example(compaction_id="17")

    compaction_id: Annotated[str, Field(min_length=1, max_length=40)] | int


class ExpandRequest(SummaryRequest):
    """Read the source messages of a ledger entry or of a line of a version's text.

    `entry` and `line` count from 0. Fewer messages are returned if they are large.
    """

    model_config = example(version=3, entry=0)

    entry: Annotated[int | None, Field(ge=0, le=MOST_INT32)] = None
    line: Annotated[int | None, Field(ge=0, le=MOST_INT32)] = None


class ReplayRequest(Command):
    """Publish dead letters again: those with these ids, those with a reason, or all.

    The last two exclude dead letters that were replayed before.
    """

    model_config = example(reason="not_json")

    dead_letter_ids: Annotated[
        list[Annotated[int, Field(ge=1, le=MOST_INT64)]] | None, Field(min_length=1, max_length=50)
    ] = None
    reason: EventFault | None = None
    all: bool = False
    after: Annotated[
        int, Field(ge=0, le=MOST_INT64, description="Continue after this dead letter.")
    ] = 0
    until: Annotated[
        int | None,
        Field(
            ge=0,
            le=MOST_INT64,
            description="Stop at this dead letter, so that the replay's own ones are excluded.",
        ),
    ] = None


class SessionRequest(Request):
    """Read the session."""

    model_config = example()


class CountsRequest(SessionRequest):
    """Read the counts of a session, and its policy in force if asked for."""

    model_config = example(policy=True)

    policy: Annotated[
        bool, Field(description="Adds `policy`, also for callers that may not set it.")
    ] = False


class ToolsRequest(Request):
    """List the tools with which a model looks things up in its session."""

    model_config = example(format="openai")

    format: Annotated[ToolFormat, Field(description="The interface that the tools are for.")] = (
        "openai"
    )


class ToolBody(Request):
    """The arguments of a tool; HTTP names the tool in the path."""

    model_config = example(arguments={"query": "order 7341"})

    arguments: dict[str, Any] = {}


class ToolRequest(ToolBody):
    """Run one of the tools of `session.tools`."""

    model_config = example(name="search_history", arguments={"query": "order 7341"})

    name: Annotated[str, Field(min_length=1, max_length=100)]


class CompactionRequest(Command):
    """Request a compaction now."""

    model_config = example()


class EraseRequest(Command):
    """Erase a session, or an agent with all its sessions."""

    model_config = example()


class AgentEraseRequest(EraseRequest):
    """Erase an agent with all its sessions, or those whose ids begin with a prefix."""

    model_config = example(prefix="draft-")

    prefix: Annotated[
        Id | None, Field(description="Erase only the sessions whose ids begin with this text.")
    ] = None


class PolicyRequest(Command):
    """Set the policy of an agent or a session; omitted fields stay unchanged."""

    model_config = example(preset="balanced", overrides={"max_live_messages": 80})

    mode: Literal["off", "manual", "auto"] | None = None
    preset: str | None = None
    overrides: dict[str, Any] | None = None


class PolicyReadRequest(Command):
    """Read the policy in force."""
