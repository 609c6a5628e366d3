"""Requests as they travel, over the bus and over HTTP: strict about what they know, forgiving about what they do not."""

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnfold.errors import BadRequest
from turnfold.messages import AgentId, SessionKey

MAX_WAIT_MS = 5_000
Tokens = Annotated[int, Field(ge=0, le=2**53)]
Moment = Annotated[str, Field(max_length=300)] | Annotated[int, Field(ge=0, le=2**53)]
AS_OF = "The window as it was: digits name a version of the summary, `<event_id>#<index>` a message, anything else is a time of RFC 3339."


class Request(BaseModel):
    """What every request has in common: unknown fields are allowed, numbers are finite, nothing is guessed."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Command(Request):
    """What every request that writes has in common: an unknown field is refused, because a misspelt one would change its meaning.

    The ids may be repeated if they equal those of the subject; see `read_command`.
    """

    model_config = ConfigDict(extra="forbid")

    agent_id: Annotated[
        str | None, Field(description="May be left out; must equal the agent of the subject.")
    ] = None
    session_id: Annotated[
        str | None, Field(description="May be left out; must equal the session of the subject.")
    ] = None


class ContextRequest(Request):
    """What should the model see next?"""

    max_tokens: Annotated[
        Tokens | None,
        Field(description="The whole window, summary included; without it the model decides."),
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
        int | None, Field(ge=0, le=2**63 - 1, description="A publish acknowledgement's seq.")
    ] = None
    wait_ms: Annotated[int, Field(ge=0)] = 250
    query: Annotated[
        str | None,
        Field(
            description="What the user asks now; recall does not exist yet, so it changes nothing."
        ),
    ] = None
    etag: str | None = None
    as_of: Annotated[Moment | None, Field(description=AS_OF)] = None


class HistoryRequest(Request):
    """The originals of a session, by position or by id."""

    after_position: Annotated[int | None, Field(ge=0, le=2**63 - 1)] = None
    limit: Annotated[int, Field(ge=1, le=1_000)] = 100
    message_ids: Annotated[list[str] | None, Field(max_length=1_000)] = None


class SearchRequest(Request):
    """Words to be found in all messages of a session, or in those of a state, a role or a stretch of it."""

    q: Annotated[str, Field(min_length=1, max_length=1_000)]
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    state: Literal["live", "pending", "covered"] | None = None
    role: Literal["system", "developer", "user", "assistant", "tool"] | None = None
    after_position: Annotated[int | None, Field(ge=0, le=2**63 - 1)] = None
    before_position: Annotated[int | None, Field(ge=0, le=2**63 - 1)] = None


class AuditRequest(Request):
    """Audit rows after one of them."""

    after: Annotated[int, Field(ge=0, le=2**53)] = 0
    limit: Annotated[int, Field(ge=1, le=1_000)] = 100


class SummaryRequest(Request):
    """One version."""

    version: Annotated[int, Field(ge=1, le=2**31 - 1)]


class PromoteRequest(Command):
    """Put a version in force."""

    version: Annotated[int, Field(ge=1, le=2**31 - 1)]
    over: Annotated[
        int | None,
        Field(
            ge=1,
            le=2**31 - 1,
            description="Only in the place of this version; `conflict` where another is in force.",
        ),
    ] = None


class RegenerateRequest(Command):
    """Write a version anew beside the one in force, of the originals; what is not named is as the policy says."""

    model: Annotated[str | None, Field(min_length=1, max_length=300)] = None
    style: Literal["narrative", "structured"] | None = None
    prompt: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=20_000,
            description="The task in other words; the data stay as they are.",
        ),
    ] = None
    from_version: Annotated[
        int | None,
        Field(ge=1, le=2**31 - 1, description="Write on this version, and read what came after."),
    ] = None


class CampaignRequest(Command):
    """Write the summaries of many sessions anew, a few at a time."""

    model: Annotated[str | None, Field(min_length=1, max_length=300)] = None
    style: Literal["narrative", "structured"] | None = None
    prompt: Annotated[str | None, Field(min_length=1, max_length=20_000)] = None
    at_once: Annotated[
        int, Field(ge=1, le=100, description="Sessions in work at the same time.")
    ] = 2


class ProgressRequest(Command):
    """How far is a campaign?"""

    campaign_id: Annotated[str, Field(min_length=1, max_length=40)]


class RestoreRequest(Command):
    """Undo a compaction."""

    compaction_id: Annotated[str, Field(min_length=1, max_length=40)] | int


class ExpandRequest(Request):
    """The messages that one entry of a version's ledger, or one line of its text, came from; both count from 0."""

    version: Annotated[int, Field(ge=1, le=2**31 - 1)]
    entry: Annotated[int | None, Field(ge=0, le=2**31 - 1)] = None
    line: Annotated[int | None, Field(ge=0, le=2**31 - 1)] = None


class ReplayRequest(Command):
    """Publish dead letters again: those that are named, those of a reason, or all; the last two without those that were before."""

    dead_letter_ids: Annotated[
        list[Annotated[int, Field(ge=1, le=2**63 - 1)]] | None, Field(min_length=1, max_length=50)
    ] = None
    reason: Annotated[str | None, Field(min_length=1, max_length=100)] = None
    all: bool = False
    after: Annotated[int, Field(ge=0, le=2**63 - 1, description="Go on behind this one.")] = 0
    until: Annotated[
        int | None,
        Field(
            ge=0,
            le=2**63 - 1,
            description="None beyond this one: those that a replay makes are not meant.",
        ),
    ] = None


class RefusalFields(BaseModel):
    """What was wrong in a word of the contract and in a sentence; what would fit, where something did not."""

    code: str
    message: str
    needed_tokens: int | None = None
    needed_messages: int | None = None
    retry_after_ms: int | None = None


class ErrorReply(BaseModel):
    """The answer to a request that cannot be answered."""

    error: RefusalFields


class SessionRequest(Request):
    """The session itself."""


class CompactionRequest(Command):
    """Compact now."""


class EraseRequest(Command):
    """Erase a session, or all of an agent."""


class PolicyRequest(Command):
    """What an agent or a session wants from now on; what is not named stays."""

    mode: Literal["off", "manual", "auto"] | None = None
    preset: str | None = None
    overrides: dict[str, Any] | None = None


class PolicyReadRequest(Command):
    """The policy in force."""


def is_policy_read(body: bytes) -> bool:
    """Whether a policy request only reads: it names nothing that changes."""
    if not body:
        return True
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.keys() <= set(SessionKey._fields)


Shape = TypeVar("Shape", bound=Request)
CommandShape = TypeVar("CommandShape", bound=Command)
NAME_CHARACTERS = 100
"""How much of the name of an unknown field an error repeats."""


def read_request(shape: type[Shape], body: bytes) -> Shape:
    """Read a request's JSON; an empty body means `{}`.

    Raises:
        BadRequest: it is not one; the text names the first field that is wrong, never its value.
    """
    try:
        return shape.model_validate_json(body or b"{}", strict=True)
    except ValidationError as error:
        raise BadRequest(_first_fault(error)) from None


def read_command(
    shape: type[CommandShape], key: SessionKey | AgentId | None, body: bytes
) -> CommandShape:
    """Read a request that writes; `key` is what its subject names, None where it names nothing.

    Raises:
        BadRequest: as `read_request`; also for an unknown field, and for ids other than those of the subject.
    """
    request = read_request(shape, body)
    ids: tuple[str, ...] = key if isinstance(key, SessionKey) else (key,) if key is not None else ()
    named = dict(zip(SessionKey._fields, ids, strict=False))
    for name in request.model_fields_set.intersection(SessionKey._fields):
        if name not in named or getattr(request, name) != named[name]:
            raise BadRequest(f"{name}: differs from the {name} of the subject; leave it out")
    return request


def read_query(shape: type[Shape], fields: dict[str, str]) -> Shape:
    """Read a request from the text fields of a URL.

    Raises:
        BadRequest: as `read_request`.
    """
    try:
        return shape.model_validate(fields)
    except ValidationError as error:
        raise BadRequest(_first_fault(error)) from None


def _first_fault(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown field {where[:NAME_CHARACTERS]!r}; correct its name or leave it out"
    return f"{where}: {first['msg']}" if where else first["msg"]
