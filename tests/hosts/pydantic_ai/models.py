"""A scripted model for agents of Pydantic AI, and what would make a provider refuse its input."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel


@dataclass
class Script:
    """Answers in order, streamed or not, and the messages that each was asked with."""

    answers: list[list[Any]] = field(default_factory=list)
    calls: list[list[ModelMessage]] = field(default_factory=list)

    @property
    def model(self) -> FunctionModel:
        return FunctionModel(self._answer, stream_function=self._stream)

    def _answer(self, messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        self.calls.append(messages)
        return ModelResponse(parts=self.answers.pop(0))

    async def _stream(
        self, messages: list[ModelMessage], _: AgentInfo
    ) -> AsyncIterator[str | DeltaToolCalls]:
        self.calls.append(messages)
        for place, part in enumerate(self.answers.pop(0)):
            if isinstance(part, ToolCallPart):
                arguments = part.args_as_json_str()
                yield {
                    place: DeltaToolCall(part.tool_name, arguments, tool_call_id=part.tool_call_id)
                }
            elif isinstance(part, TextPart):
                yield part.content


def looks(turn: str, *places: str) -> list[Any]:
    calls = [ToolCallPart("look", {"place": place}, f"{turn}-{place}") for place in places]
    return [ThinkingPart(f"I look at {len(places)}.", signature="s" * 40), *calls]


def says(text: str) -> list[Any]:
    return [TextPart(text)]


def faults(messages: Sequence[ModelMessage]) -> list[str]:
    """Return broken pairs: each call has one result, before the next response."""
    found: list[str] = []
    open_calls: list[str] = []
    has_request = False
    for message in messages:
        if isinstance(message, ModelRequest):
            for part in message.parts:
                has_request = has_request or isinstance(part, UserPromptPart)
                if not isinstance(part, ToolReturnPart):
                    continue
                if part.tool_call_id in open_calls:
                    open_calls.remove(part.tool_call_id)
                else:
                    found.append(f"result {part.tool_call_id}")
            continue
        found += [f"call {call_id}" for call_id in open_calls]
        calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
        open_calls = [call.tool_call_id for call in calls]
    found += [f"call {call_id}" for call_id in open_calls]
    return found if has_request else [*found, "no request"]


def texts(messages: Sequence[ModelMessage]) -> list[str]:
    """Return the texts of system prompts, users and answers."""
    return [
        str(part.content)
        for message in messages
        for part in message.parts
        if isinstance(part, (SystemPromptPart, UserPromptPart, TextPart))
    ]


def size(messages: Sequence[ModelMessage]) -> int:
    """Return a rough number of tokens: a quarter of the characters."""
    return (
        sum(len(repr(getattr(part, "content", part))) for one in messages for part in one.parts)
        // 4
    )


def contents(messages: Sequence[ModelMessage]) -> list[list[tuple[str, Any]]]:
    """Return the contents of all parts, without times and ids."""
    return [
        [(part.part_kind, getattr(part, "content", None)) for part in message.parts]
        for message in messages
    ]
