"""Requests as they travel, over the bus and over HTTP: strict about what they know, forgiving about what they do not."""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnfold.errors import BadRequest

MAX_WAIT_MS = 5_000
Tokens = Annotated[int, Field(ge=0, le=2**53)]
Moment = Annotated[str, Field(max_length=300)] | Annotated[int, Field(ge=0, le=2**53)]
AS_OF = "The window as it was: digits name a version of the summary, `<event_id>#<index>` a message, anything else is a time of RFC 3339."


class Request(BaseModel):
    """What every request has in common: unknown fields are allowed, numbers are finite, nothing is guessed."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class ContextRequest(Request):
    """What should the model see next?"""

    max_tokens: Annotated[Tokens | None, Field(description="The whole window, summary included; without it the model decides.")] = None
    model: Annotated[str | None, Field(max_length=300)] = None
    system_tokens: Tokens = 0
    tools_tokens: Tokens = 0
    max_output_tokens: Tokens | None = None
    max_messages: Annotated[int | None, Field(ge=1, le=2**53)] = None
    mode: Literal["normal", "emergency"] = "normal"
    format: Literal["openai", "anthropic"] = "openai"
    placement: Literal["separate", "system", "message", "user"] = "separate"
    after: Annotated[int | None, Field(ge=0, le=2**63 - 1, description="A publish acknowledgement's seq.")] = None
    wait_ms: Annotated[int, Field(ge=0)] = 250
    query: Annotated[str | None, Field(description="What the user asks now; recall does not exist yet, so it changes nothing.")] = None
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


class PromoteRequest(Request):
    """Put a version in force."""

    version: Annotated[int, Field(ge=1, le=2**31 - 1)]
    over: Annotated[
        int | None, Field(ge=1, le=2**31 - 1, description="Only in the place of this version; `conflict` where another is in force.")
    ] = None


class RegenerateRequest(Request):
    """Write a version anew beside the one in force, of the originals; what is not named is as the policy says."""

    model: Annotated[str | None, Field(min_length=1, max_length=300)] = None
    style: Literal["narrative", "structured"] | None = None
    prompt: Annotated[
        str | None, Field(min_length=1, max_length=20_000, description="The task in other words; the data stay as they are.")
    ] = None
    from_version: Annotated[int | None, Field(ge=1, le=2**31 - 1, description="Write on this version, and read what came after.")] = None


class CampaignRequest(Request):
    """Write the summaries of many sessions anew, a few at a time."""

    model: Annotated[str | None, Field(min_length=1, max_length=300)] = None
    style: Literal["narrative", "structured"] | None = None
    prompt: Annotated[str | None, Field(min_length=1, max_length=20_000)] = None
    at_once: Annotated[int, Field(ge=1, le=100, description="Sessions in work at the same time.")] = 2


class ProgressRequest(Request):
    """How far is a campaign?"""

    campaign_id: Annotated[str, Field(min_length=1, max_length=40)]


class RestoreRequest(Request):
    """Undo a compaction."""

    compaction_id: Annotated[str, Field(min_length=1, max_length=40)] | int


class ExpandRequest(Request):
    """The messages that one entry of a version's ledger, or one line of its text, came from; both count from 0."""

    version: Annotated[int, Field(ge=1, le=2**31 - 1)]
    entry: Annotated[int | None, Field(ge=0, le=2**31 - 1)] = None
    line: Annotated[int | None, Field(ge=0, le=2**31 - 1)] = None


class ReplayRequest(Request):
    """Publish dead letters again: those that are named, those of a reason, or all; the last two without those that were before."""

    dead_letter_ids: Annotated[list[Annotated[int, Field(ge=1, le=2**63 - 1)]] | None, Field(min_length=1, max_length=50)] = None
    reason: Annotated[str | None, Field(min_length=1, max_length=100)] = None
    all: bool = False
    after: Annotated[int, Field(ge=0, le=2**63 - 1, description="Go on behind this one.")] = 0
    until: Annotated[
        int | None, Field(ge=0, le=2**63 - 1, description="None beyond this one: those that a replay makes are not meant.")
    ] = None


class RefusalFields(BaseModel):
    """What was wrong in a word of the contract and in a sentence; what would fit, where something did not."""

    code: str
    message: str
    needed_tokens: int | None = None
    needed_messages: int | None = None


class Refusal(BaseModel):
    """The answer to a request that cannot be answered."""

    error: RefusalFields


class SessionRequest(Request):
    """The session itself."""


class CompactionRequest(Request):
    """Compact now."""


class PolicyRequest(Request):
    """What an agent or a session wants from now on; what is not named stays."""

    mode: Literal["off", "manual", "auto"] | None = None
    preset: str | None = None
    overrides: dict[str, Any] | None = None


Shape = TypeVar("Shape", bound=Request)


def read_request(shape: type[Shape], body: bytes) -> Shape:
    """Read a request's JSON; an empty body means `{}`.

    Raises:
        BadRequest: it is not one; the text names the first field that is wrong, never its value.
    """
    try:
        return shape.model_validate_json(body or b"{}", strict=True)
    except ValidationError as error:
        raise BadRequest(_first_fault(error)) from None


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
    return f"{where}: {first['msg']}" if where else first["msg"]
