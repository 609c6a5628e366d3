"""A scripted model of Strands, and what would make a provider refuse its input."""

import copy
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from strands.models.model import Model

Message = dict[str, Any]


class ScriptedModel(Model):  # type: ignore[misc]  # without types here
    """Gives the answers of its script in order, and keeps what it was asked."""

    def __init__(self, *script: Any) -> None:
        self.script: list[Any] = list(script)
        self.calls: list[list[Message]] = []

    def update_config(self, **model_config: Any) -> None:
        """Has no settings."""

    def get_config(self) -> dict[str, Any]:
        return {}

    def structured_output(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("no run of these tests asks for structured output")

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncGenerator[Any, None]:
        self.calls.append(copy.deepcopy(list(messages)))
        answer = self.script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        yield {"messageStart": {"role": "assistant"}}
        for block in answer:
            use = block.get("toolUse")
            start = {"toolUse": {"name": use["name"], "toolUseId": use["toolUseId"]}} if use else {}
            yield {"contentBlockStart": {"start": start}}
            delta = {"toolUse": {"input": json.dumps(use["input"])}} if use else block
            yield {"contentBlockDelta": {"delta": delta}}
            yield {"contentBlockStop": {}}
        reason = "tool_use" if any("toolUse" in block for block in answer) else "end_turn"
        yield {"messageStop": {"stopReason": reason}}


def says(text: str) -> list[Any]:
    return [{"text": text}]


def calls(turn: str, *places: str) -> list[Any]:
    return [
        {"toolUse": {"toolUseId": f"{turn}-{place}", "name": "look", "input": {"place": place}}}
        for place in places
    ]


def size(messages: Sequence[Message]) -> int:
    """Return a rough number of tokens: a quarter of the characters."""
    return sum(len(json.dumps(message["content"])) for message in messages) // 4


def faults(messages: Sequence[Message]) -> list[str]:
    """Return calls that the next message does not answer, other results, and wrong turns."""
    found: list[str] = []
    called: list[str] = []
    for place, message in enumerate(messages):
        if message["role"] != ("user", "assistant")[place % 2]:
            found.append(f"message {place} is of {message['role']}")
        results = [
            block["toolResult"]["toolUseId"]
            for block in message["content"]
            if "toolResult" in block
        ]
        if sorted(results) != sorted(called):
            found.append(f"message {place}: {called} answered by {results}")
        called = [
            block["toolUse"]["toolUseId"] for block in message["content"] if "toolUse" in block
        ]
    return found + [f"open {call}" for call in called]
