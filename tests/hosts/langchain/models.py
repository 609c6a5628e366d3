"""A scripted model for agents of LangChain, and what would make a provider refuse its input."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import Field


class ScriptedModel(BaseChatModel):  # type: ignore[misc]  # without types here
    """Gives the answers of its script in order, and keeps what it was asked."""

    script: list[AIMessage] = Field(default_factory=list)
    calls: list[list[Any]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, *_: Any, **__: Any) -> "ScriptedModel":
        return self

    def _generate(self, messages: list[Any], *_: Any, **__: Any) -> ChatResult:
        self.calls.append(messages)
        return ChatResult(generations=[ChatGeneration(message=self.script.pop(0))])


def calls(turn: str, *places: str, thinking: str = "") -> AIMessage:
    blocks: list[Any] = [{"type": "thinking", "thinking": thinking, "signature": "s" * 40}]
    return AIMessage(
        blocks if thinking else "",
        tool_calls=[
            {"id": f"{turn}-{place}", "name": "look", "args": {"place": place}} for place in places
        ],
    )


def faults(messages: Sequence[AnyMessage]) -> list[str]:
    """Return broken pairs: each call has one result, directly after it."""
    found: list[str] = []
    open_calls: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            if message.tool_call_id in open_calls:
                open_calls.remove(message.tool_call_id)
            else:
                found.append(f"result {message.tool_call_id}")
            continue
        found += [f"call {call_id}" for call_id in open_calls]
        open_calls = []
        if isinstance(message, AIMessage):
            made = [*message.tool_calls, *message.invalid_tool_calls]
            open_calls = [str(call["id"]) for call in made]
    found += [f"call {call_id}" for call_id in open_calls]
    ids = Counter(
        call["id"] for one in messages if isinstance(one, AIMessage) for call in one.tool_calls
    )
    found += [f"twice {call_id}" for call_id, count in ids.items() if count > 1]
    return (
        found if any(isinstance(one, HumanMessage) for one in messages) else [*found, "no request"]
    )
