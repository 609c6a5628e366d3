"""A scripted chat client of the framework, and what would make a provider refuse its input."""

# pyright: reportAttributeAccessIssue=false

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

from agent_framework import (
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    Message,
    ResponseStream,
)


class ScriptedClient(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):  # type: ignore[misc]  # without types here
    """Gives the answers of its script in order, and keeps what it was asked."""

    def __init__(self, *script: list[Any]) -> None:
        super().__init__()
        self.script = list(script)
        self.calls: list[list[Message]] = []

    def _inner_get_response(self, *, messages: Sequence[Message], stream: bool, **_: Any) -> Any:
        self.calls.append(list(messages))
        contents = self.script.pop(0)
        if stream:
            return ResponseStream(self._updates(contents), finalizer=ChatResponse.from_updates)
        return self._response(contents)

    async def _response(self, contents: list[Any]) -> ChatResponse:
        return ChatResponse(messages=[Message("assistant", contents)])

    async def _updates(self, contents: list[Any]) -> AsyncIterator[ChatResponseUpdate]:
        for content in contents:
            part = Content.from_text(content) if isinstance(content, str) else content
            yield ChatResponseUpdate(role="assistant", contents=[part])


def calls(turn: str, *places: str) -> list[Any]:
    thinking = Content.from_text_reasoning(text="Both.", protected_data="x" * 40)
    return [
        thinking,
        *(
            Content.from_function_call(f"{turn}-{one}", "look", arguments={"place": one})
            for one in places
        ),
    ]


def size(messages: Sequence[Message]) -> int:
    """Return a rough number of tokens: a quarter of the characters."""
    said = [
        one.text or one.arguments or one.result for message in messages for one in message.contents
    ]
    return sum(len(str(one)) for one in said) // 4


def faults(messages: Sequence[Message]) -> list[str]:
    """Return broken pairs: each call has one result, before anything else is said."""
    found: list[str] = []
    open_calls: list[str] = []
    seen: Counter[str] = Counter()
    for message in messages:
        results = [one for one in message.contents if one.type == "function_result"]
        if not results:
            found += [f"call {call_id}" for call_id in open_calls]
            open_calls = []
        for content in message.contents:
            if content.type == "function_call":
                open_calls.append(content.call_id)
                seen[content.call_id] += 1
            elif content.type == "function_result" and content.call_id in open_calls:
                open_calls.remove(content.call_id)
            elif content.type == "function_result":
                found.append(f"result {content.call_id}")
    found += [f"call {call_id}" for call_id in open_calls]
    return found + [f"twice {call_id}" for call_id, count in seen.items() if count > 1]
