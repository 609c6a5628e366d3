"""Request models for NATS and HTTP.

Known fields are validated strictly. Requests that read ignore unknown fields, and requests that
write reject them.
"""

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnfold.contracts.fields import example
from turnfold.errors import BadRequest
from turnfold.messages import AgentId, SessionKey

MAX_WAIT_MS = 5_000
Tokens = Annotated[int, Field(ge=0, le=2**53)]
Moment = Annotated[str, Field(max_length=300)] | Annotated[int, Field(ge=0, le=2**53)]
AS_OF = (
    "An earlier window: digits are a version of the summary, `<event_id>#<index>` is a message,"
    " anything else is an RFC 3339 time."
)


class Request(BaseModel):
    """A request: unknown fields are ignored, numbers are finite, values are not converted."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


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
    tokens: Annotated[Tokens | None, Field(description="The most tokens of the block.")] = None
    share: Annotated[
        float | None, Field(ge=0, le=0.9, description="The largest share of the budget.")
    ] = None


class ContextFields(Request):
    """The fields of a request for the model's next input that NATS and HTTP share."""

    model_config = example(max_tokens=8_000, placement="user", after=4_711, wait_ms=1_000)

    max_tokens: Annotated[
        Tokens | None,
        Field(description="Size of the window, including the summary; by default from the model."),
    ] = None
    model: Annotated[str | None, Field(max_length=300)] = None
    system_tokens: Tokens = 0
    tools_tokens: Tokens = 0
    max_output_tokens: Tokens | None = None
    max_messages: Annotated[int | None, Field(ge=1, le=2**53)] = None
    mode: Literal["normal", "emergency"] = "normal"
    format: Literal["openai", "anthropic"] = "openai"
    placement: Literal["separate", "system", "message", "user"] = "separate"
    after: Annotated[
        int | None, Field(ge=0, le=2**63 - 1, description="The `seq` of a publish acknowledgement.")
    ] = None
    wait_ms: Annotated[int, Field(ge=0)] = 250
    query: Annotated[
        str | None,
        Field(description="The user's current question: a short form of `recall.query`."),
    ] = None
    etag: str | None = None
    as_of: Annotated[Moment | None, Field(description=AS_OF)] = None


class ContextRequest(ContextFields):
    """Read the model's next input."""

    recall: Annotated[
        RecallFields | Literal[False] | None,
        Field(description="Which earlier messages return in a block of their own; false: none."),
    ] = None


class ContextQuery(ContextFields):
    """Read the model's next input; the fields of a URL."""

    recall: Annotated[bool, Field(description="False: no earlier messages return.")] = True
    recall_tokens: Annotated[
        Tokens | None, Field(description="The most tokens of the recall block.")
    ] = None
    recall_share: Annotated[
        float | None,
        Field(ge=0, le=0.9, description="The largest share of the budget for recall."),
    ] = None

    def request(self) -> ContextRequest:
        """Return the same request as NATS carries it."""
        fields = {name: getattr(self, name) for name in ContextFields.model_fields}
        recall = RecallFields(tokens=self.recall_tokens, share=self.recall_share)
        is_plain = recall == RecallFields()
        return ContextRequest(
            **fields, recall=False if not self.recall else None if is_plain else recall
        )


class HistoryRequest(Request):
    """Read original messages of a session, by position or by id."""

    model_config = example(after_position=0, limit=100)

    after_position: Annotated[int | None, Field(ge=0, le=2**63 - 1)] = None
    limit: Annotated[int, Field(ge=1, le=1_000)] = 100
    message_ids: Annotated[list[str] | None, Field(max_length=1_000)] = None


class SearchRequest(Request):
    """Search the messages of a session, optionally of one state, role or range of positions."""

    model_config = example(q="order 7341", limit=20)

    q: Annotated[str, Field(min_length=1, max_length=1_000)]
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    state: Literal["live", "pending", "covered"] | None = None
    role: Literal["system", "developer", "user", "assistant", "tool"] | None = None
    after_position: Annotated[int | None, Field(ge=0, le=2**63 - 1)] = None
    before_position: Annotated[int | None, Field(ge=0, le=2**63 - 1)] = None


class AuditRequest(Request):
    """Read audit rows after a given one."""

    model_config = example(after=0, limit=100)

    after: Annotated[int, Field(ge=0, le=2**53)] = 0
    limit: Annotated[int, Field(ge=1, le=1_000)] = 100


class SummaryRequest(Request):
    """Read one version of the summary."""

    model_config = example(version=3)

    version: Annotated[int, Field(ge=1, le=2**31 - 1)]


class PromoteBody(Command):
    """Put the version of the path in force."""

    model_config = example(over=3)

    over: Annotated[
        int | None,
        Field(
            ge=1,
            le=2**31 - 1,
            description="Promote only if this version is in force; else `conflict`.",
        ),
    ] = None


class PromoteRequest(PromoteBody):
    """Put a version in force."""

    model_config = example(version=2, over=3)

    version: Annotated[int, Field(ge=1, le=2**31 - 1)]


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
        Field(ge=1, le=2**31 - 1, description="Extend this version with the messages after it."),
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


class ExpandRequest(Request):
    """Read the source messages of a ledger entry or of a line of a version's text.

    `entry` and `line` count from 0.
    """

    model_config = example(version=3, entry=0)

    version: Annotated[int, Field(ge=1, le=2**31 - 1)]
    entry: Annotated[int | None, Field(ge=0, le=2**31 - 1)] = None
    line: Annotated[int | None, Field(ge=0, le=2**31 - 1)] = None


class ReplayRequest(Command):
    """Publish dead letters again: those with these ids, those with a reason, or all.

    The last two exclude dead letters that were replayed before.
    """

    model_config = example(reason="not_json")

    dead_letter_ids: Annotated[
        list[Annotated[int, Field(ge=1, le=2**63 - 1)]] | None, Field(min_length=1, max_length=50)
    ] = None
    reason: Annotated[str | None, Field(min_length=1, max_length=100)] = None
    all: bool = False
    after: Annotated[
        int, Field(ge=0, le=2**63 - 1, description="Continue after this dead letter.")
    ] = 0
    until: Annotated[
        int | None,
        Field(
            ge=0,
            le=2**63 - 1,
            description="Stop at this dead letter, so that the replay's own ones are excluded.",
        ),
    ] = None


class SessionRequest(Request):
    """Read the session."""

    model_config = example()


class ToolsRequest(Request):
    """List the tools with which a model looks things up in its session."""

    model_config = example(format="openai")

    format: Literal["openai", "anthropic"] = "openai"


class ToolRequest(Request):
    """Run one of the tools of `session.tools`."""

    model_config = example(name="search_history", arguments={"query": "order 7341"})

    name: Annotated[str, Field(min_length=1, max_length=100)]
    arguments: dict[str, Any] = {}


class ToolBody(Request):
    """The arguments of a tool; HTTP names the tool in the path."""

    model_config = example(arguments={"query": "order 7341"})

    arguments: dict[str, Any] = {}


class CompactionRequest(Command):
    """Request a compaction now."""

    model_config = example()


class EraseRequest(Command):
    """Erase a session, or an agent with all its sessions."""

    model_config = example()


class PolicyRequest(Command):
    """Set the policy of an agent or a session; omitted fields stay unchanged."""

    model_config = example(preset="balanced", overrides={"max_live_messages": 80})

    mode: Literal["off", "manual", "auto"] | None = None
    preset: str | None = None
    overrides: dict[str, Any] | None = None


class PolicyReadRequest(Command):
    """Read the policy in force."""


def is_policy_read(body: bytes) -> bool:
    """Return whether a policy request only reads: it contains no field that changes the policy."""
    if not body:
        return True
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and fields.keys() <= set(SessionKey._fields)


Shape = TypeVar("Shape", bound=Request)
CommandShape = TypeVar("CommandShape", bound=Command)
MAX_NAME_CHARACTERS = 100
"""The maximum length of an unknown field's name in an error message."""


def read_request(shape: type[Shape], body: bytes) -> Shape:
    """Read the JSON of a request; an empty body means `{}`.

    Raises:
        BadRequest: the request is invalid. The text names the first invalid field, never its
            value.
    """
    try:
        return shape.model_validate_json(body or b"{}", strict=True)
    except ValidationError as error:
        raise BadRequest(_first_fault(error)) from None


def read_command(
    shape: type[CommandShape], key: SessionKey | AgentId | None, body: bytes
) -> CommandShape:
    """Read a request that writes; `key` is the session or agent of its subject, if any.

    Raises:
        BadRequest: as in `read_request`, and for an unknown field or ids that differ from the
            subject.
    """
    request = read_request(shape, body)
    ids: tuple[str, ...] = key if isinstance(key, SessionKey) else (key,) if key is not None else ()
    named = dict(zip(SessionKey._fields, ids, strict=False))
    for name in request.model_fields_set.intersection(SessionKey._fields):
        if name not in named or getattr(request, name) != named[name]:
            raise BadRequest(f"{name}: differs from the {name} of the subject; omit it")
    return request


def read_query(shape: type[Shape], fields: dict[str, str]) -> Shape:
    """Read a request from the text fields of a URL.

    Raises:
        BadRequest: as in `read_request`.
    """
    try:
        return shape.model_validate(fields)
    except ValidationError as error:
        raise BadRequest(_first_fault(error)) from None


def _first_fault(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown field {where[:MAX_NAME_CHARACTERS]!r}; correct its name or omit it"
    return f"{where}: {first['msg']}" if where else first["msg"]
