"""Models of the events. They describe what `events.read_event` accepts, which is faster.

Both ignore unknown fields, which are stored.
"""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from turnfold.contracts.elements import FAULTS
from turnfold.contracts.events import (
    LIMIT_AT_MOST,
    MODEL_MAX_CHARACTERS,
)
from turnfold.contracts.fields import RoleName, example
from turnfold.contracts.retractions import MESSAGE_ID_MAX_CHARACTERS, RETRACTED_AT_MOST
from turnfold.contracts.subjects import (
    ID_MAX_BYTES,
    TOOL_RESULT,
    TURN_COMPLETED,
    TURN_RETRACTED,
    USAGE_REPORTED,
    id_fault,
)
from turnfold.messages import Shape, ShapeName


def _validate_id(value: str) -> str:
    if fault := id_fault(value):
        raise ValueError(fault)
    return value


Id = Annotated[
    str,
    Field(min_length=1, max_length=ID_MAX_BYTES, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$"),
    AfterValidator(_validate_id),
]
"""An id; the limit is one of bytes, which a JSON schema cannot express."""
EventId = Annotated[
    Id,
    Field(
        description="Unique among the events of the agent. Publishing the same event again has no"
        " effect."
    ),
]
Occurred = Annotated[
    Any, Field(description="When it happened for the producer, as RFC 3339. Only stored.")
]
Metadata = Annotated[
    dict[str, Any] | None,
    Field(description="Stored. `truncated: true`: the producer has shortened the content."),
]


Carried = Annotated[
    list[Any] | None,
    Field(
        description="One value for each message, any JSON or null. Kept verbatim for the"
        " producer; never counted, searched or shown to a model."
    ),
]


_TURN: Final[dict[str, Any]] = {
    "event_id": "01JCZ4T9W7Q2M8XH5R3N6KBVEA",
    "agent_id": "support",
    "session_id": "user-42",
    "occurred_at": "2026-11-20T10:00:00Z",
    "messages": [
        {"role": "user", "content": "Where is order 7341?"},
        {"role": "assistant", "content": "It left Ghent this morning."},
    ],
    "model": "gpt-4.1",
    "usage": {"prompt_tokens": 1_200, "completion_tokens": 80, "total_tokens": 1_280},
    "is_meta": False,
    "metadata": {},
}
_RESULT: Final[dict[str, Any]] = {
    "event_id": "01JCZ4TA3GZ5E0Y7D1C9W2PQKF",
    "agent_id": "support",
    "session_id": "user-42",
    "occurred_at": "2026-11-20T10:00:01Z",
    "tool_call_id": "call_1",
    "name": "search_flights",
    "content": "SK 1472, 09:15",
    "is_error": False,
    "metadata": {},
}
_REPORT: Final[dict[str, Any]] = {
    "event_id": "01JCZ4TB7M1X9S6K2F8R5D3HQW",
    "agent_id": "support",
    "session_id": "user-42",
    "model": "gpt-4.1",
    "limit_tokens": 16_000,
    "is_overflow": True,
}
_RETRACTION: Final[dict[str, Any]] = {
    "event_id": "01JCZ4TC2P5V0N8D4H6Y9R7KXM",
    "agent_id": "support",
    "session_id": "user-42",
    "message_ids": ["01JCZ4T9W7Q2M8XH5R3N6KBVEA#1"],
}


class PublishedMessage(BaseModel):
    """A chat message in the format of OpenAI; unknown fields are kept."""

    model_config = ConfigDict(extra="allow")

    role: RoleName
    is_meta: Annotated[
        Any,
        Field(description="`true`: a program wrote this user message. No model is shown the mark."),
    ] = None


class PublishedElement(BaseModel):
    """An item of the Responses API, or a message of the Anthropic API; all fields are kept."""

    model_config = ConfigDict(extra="allow")


class PublishedEvent(BaseModel):
    """The fields of every event."""

    model_config = ConfigDict(extra="allow", frozen=True)

    event_id: EventId
    agent_id: Annotated[Id, Field(description="The id of the agent.")]
    session_id: Annotated[Id, Field(description="The id of the session.")]
    occurred_at: Occurred = None
    metadata: Metadata = None


class TurnCompleted(PublishedEvent):
    """Messages of a turn, in order: a whole turn, or a step of one."""

    model_config = example(**_TURN)

    messages: Annotated[
        list[PublishedMessage | PublishedElement],
        Field(
            min_length=1,
            max_length=1_000,
            description="Chat messages, or elements of the shape that `shape` names.",
        ),
    ]
    shape: Annotated[
        ShapeName | None,
        Field(description="The shape of `messages`: chat by default."),
    ] = None
    model: Annotated[str | None, Field(description="The model that answered.")] = None
    usage: Annotated[
        dict[str, Any] | None,
        Field(description="The tokens that the provider counted for the last call of the turn."),
    ] = None
    is_meta: Annotated[
        bool | None, Field(description="True if a program wrote the user messages.")
    ] = None
    carry: Carried = None

    @model_validator(mode="after")
    def _carries_one_value_each(self) -> Self:
        if self.carry is not None and len(self.carry) != len(self.messages):
            raise ValueError("carry must have one value for each message")
        return self

    @model_validator(mode="after")
    def _has_one_shape(self) -> Self:
        fault_of = FAULTS[self.shape or Shape.CHAT]
        for element in self.messages:
            if fault := fault_of(element.model_dump(exclude_unset=True)):
                raise ValueError(fault)
        return self


class ToolResult(PublishedEvent):
    """The result of one tool call."""

    model_config = example(**_RESULT)

    tool_call_id: str
    content: Annotated[
        Any, Field(description="Text, content parts, or any other JSON, including null.")
    ]
    name: Annotated[str | None, Field(description="The name of the tool.")] = None
    is_error: Annotated[bool | None, Field(description="True if the tool failed.")] = None
    carry: Annotated[Carried, Field(min_length=1, max_length=1)] = None


class UsageReported(PublishedEvent):
    """The window of a model, as a call revealed it."""

    model_config = example(**_REPORT)

    model: Annotated[
        str,
        Field(min_length=1, max_length=MODEL_MAX_CHARACTERS, description="The model of the call."),
    ]
    limit_tokens: Annotated[
        int | None,
        Field(ge=1, le=LIMIT_AT_MOST, description="The window's size that the provider named."),
    ] = None
    is_overflow: Annotated[
        bool | None, Field(description="True if the call failed because it was too long.")
    ] = None
    usage: Annotated[
        dict[str, Any] | None, Field(description="The tokens that the provider counted.")
    ] = None
    message_id: Annotated[
        str | None,
        Field(
            max_length=MESSAGE_ID_MAX_CHARACTERS,
            description="The id of the message that answered the call.",
        ),
    ] = None


MessageId = Annotated[str, Field(max_length=MESSAGE_ID_MAX_CHARACTERS)]


class TurnRetracted(PublishedEvent):
    """Messages that their user takes back, by exactly one of the three fields.

    Only messages before this event in the stream are retracted; unknown ids have no effect.
    """

    model_config = example(**_RETRACTION)

    message_ids: Annotated[
        list[MessageId] | None,
        Field(min_length=1, max_length=RETRACTED_AT_MOST, description="These messages."),
    ] = None
    after: Annotated[
        MessageId | None, Field(description="All messages after this one, which stays.")
    ] = None
    all: Annotated[bool | None, Field(description="True: all messages.")] = None

    @model_validator(mode="after")
    def _names_messages_once(self) -> Self:
        if sum([self.message_ids is not None, self.after is not None, bool(self.all)]) != 1:
            raise ValueError("name the messages by exactly one of message_ids, after or all: true")
        return self


class TurnCompletedBody(TurnCompleted):
    """The body of a `turn.completed` event over HTTP, where `type` names the event."""

    model_config = example(type=TURN_COMPLETED, **_TURN)

    type: Literal["turn.completed"]


class ToolResultBody(ToolResult):
    """The body of a `tool.result` event over HTTP, where `type` names the event."""

    model_config = example(type=TOOL_RESULT, **_RESULT)

    type: Literal["tool.result"]


class UsageReportedBody(UsageReported):
    """The body of a `usage.reported` event over HTTP, where `type` names the event."""

    model_config = example(type=USAGE_REPORTED, **_REPORT)

    type: Literal["usage.reported"]


class TurnRetractedBody(TurnRetracted):
    """The body of a `turn.retracted` event over HTTP, where `type` names the event."""

    model_config = example(type=TURN_RETRACTED, **_RETRACTION)

    type: Literal["turn.retracted"]


EVENTS: dict[str, type[PublishedEvent]] = {
    TURN_COMPLETED: TurnCompleted,
    TOOL_RESULT: ToolResult,
    USAGE_REPORTED: UsageReported,
    TURN_RETRACTED: TurnRetracted,
}
"""The model of each event type."""
EVENT_BODIES = (TurnCompletedBody, ToolResultBody, UsageReportedBody, TurnRetractedBody)
