"""A scripted model of the ADK, and what would make the API refuse its input."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from pydantic import Field


class ScriptedModel(BaseLlm):  # type: ignore[misc]  # without types here
    """Gives the answers of its script in order, and keeps what it was asked."""

    model: str = "scripted"
    script: list[list[types.Part]] = Field(default_factory=list)
    calls: list[list[Any]] = Field(default_factory=list)

    async def generate_content_async(
        self,
        llm_request: Any,
        stream: bool = False,  # noqa: ARG002  # of the ADK
    ) -> AsyncGenerator[LlmResponse, None]:
        self.calls.append(list(llm_request.contents))
        yield LlmResponse(content=types.Content(role="model", parts=self.script.pop(0)))


def says(text: str) -> list[types.Part]:
    return [types.Part(text=text)]


def calls(*places: str, with_ids: str = "") -> list[types.Part]:
    parts = [types.Part(text="Both.", thought=True)]
    for place in places:
        call = types.FunctionCall(name="look", args={"place": place})
        if with_ids:
            call.id = f"{with_ids}-{place}"
        parts.append(types.Part(function_call=call, thought_signature=b"signed"))
    return parts


def size(contents: Sequence[types.Content]) -> int:
    """Return a rough number of tokens: a quarter of the characters."""
    parts = [part for content in contents for part in content.parts or []]
    said = [part.text or part.function_call or part.function_response for part in parts]
    return sum(len(str(one)) for one in said) // 4


def faults(contents: Sequence[types.Content]) -> list[str]:
    """Return calls that are not answered by the next content, one by one, and other responses."""
    found: list[str] = []
    called: list[tuple[str | None, str | None]] = []
    for place, content in enumerate(contents):
        parts = content.parts or []
        answered = [
            (part.function_response.id, part.function_response.name)
            for part in parts
            if part.function_response
        ]
        if sorted(map(str, answered)) != sorted(map(str, called)):
            found.append(f"content {place}: {called} answered by {answered}")
        if answered and len(answered) != len(parts):
            found.append(f"content {place}: responses beside other parts")
        called = [
            (part.function_call.id, part.function_call.name) for part in parts if part.function_call
        ]
        if any(part.function_call and not part.thought_signature for part in parts):
            found.append(f"content {place}: a call without its signature")
    return found + [f"open {call}" for call in called]
