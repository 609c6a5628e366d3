"""Request models for messages of the past and for audit rows; see `turnfold.contracts.requests`."""

from typing import Annotated, Literal

from pydantic import Field

from turnfold.contracts.fields import RoleName, SearchedState, example
from turnfold.contracts.requests import (
    AS_OF,
    Command,
    FreshRequest,
    Moment,
    Request,
    Tokens,
)
from turnfold.messages import MOST_EXACT, MOST_INT64


class HistoryRequest(FreshRequest):
    """Read original messages of a session, by position or by id.

    A page begins after `after_position`. With `newest`, or with `before_position` alone, it ends
    at the newest message before `before_position`.
    """

    model_config = example(after_position=0, limit=100)

    after_position: Annotated[
        int | None, Field(ge=0, le=MOST_INT64, description="The page begins after it.")
    ] = None
    before_position: Annotated[
        int | None, Field(ge=0, le=MOST_INT64, description="The page ends before it.")
    ] = None
    limit: Annotated[
        int, Field(ge=1, le=1_000, description="Fewer are returned if they are large.")
    ] = 100
    newest: Annotated[
        int | None, Field(ge=1, le=1_000, description="Return this many of the newest messages.")
    ] = None
    message_ids: Annotated[list[str] | None, Field(max_length=1_000)] = None
    include_retracted: Annotated[
        bool, Field(description="True: retracted messages as well, in their places.")
    ] = False
    as_of: Annotated[
        Moment | None,
        Field(description=f"{AS_OF} The messages and states of that moment."),
    ] = None


class ElementsRequest(HistoryRequest):
    """Read original messages of a session on the bus; see `HistoryRequest`."""

    bodies: Annotated[
        Literal["published"] | None,
        Field(description="`published`: elements without their chat views."),
    ] = None


class DifferenceRequest(Request):
    """Compare the windows of two moments."""

    before: Annotated[
        str, Field(max_length=300, description="A moment as in `as_of` of `context.get`.")
    ]
    after: Annotated[
        str | None, Field(max_length=300, description="A moment likewise; by default now.")
    ] = None
    max_tokens: Tokens | None = None
    model: Annotated[str | None, Field(max_length=300)] = None
    limit: Annotated[int, Field(ge=1, le=1_000)] = 200


class SearchRequest(FreshRequest):
    """Search the messages of a session, optionally of one state, role or range of positions."""

    model_config = example(q="order 7341", limit=20)

    q: Annotated[
        str, Field(min_length=1, max_length=1_000, description="Plain text without syntax.")
    ]
    limit: Annotated[
        int, Field(ge=1, le=100, description="Fewer are returned if they are large.")
    ] = 20
    state: SearchedState | None = None
    role: RoleName | None = None
    after_position: Annotated[int | None, Field(ge=0, le=MOST_INT64)] = None
    before_position: Annotated[int | None, Field(ge=0, le=MOST_INT64)] = None


class PopRequest(Command):
    """Retract the newest messages and return them; of several callers, one gets each message."""

    model_config = example(count=1)

    count: Annotated[
        int, Field(ge=1, le=1_000, description="Fewer are retracted if they are very long.")
    ] = 1


class AuditRequest(Request):
    """Read audit rows after a given one."""

    model_config = example(after=0, limit=100)

    after: Annotated[int, Field(ge=0, le=MOST_EXACT)] = 0
    limit: Annotated[int, Field(ge=1, le=1_000)] = 100


class EventsKnownRequest(Request):
    """Ask which events of an agent are stored."""

    model_config = example(event_ids=["e1", "e2"])

    event_ids: Annotated[list[str], Field(max_length=1_000)]


class SessionListRequest(Request):
    """List the sessions of an agent by id."""

    model_config = example(prefix="user-", limit=100)

    prefix: Annotated[
        str, Field(max_length=256, description="The text with which the ids begin.")
    ] = ""
    limit: Annotated[int, Field(ge=1, le=1_000)] = 100
    after: Annotated[
        str | None, Field(max_length=256, description="`next_after` of the page before.")
    ] = None
