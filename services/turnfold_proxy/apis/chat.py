"""Chat completions: `POST /v1/chat/completions`."""

import json
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any, Final, Literal

from turnfold.core.text.calls import called_tool, has_pairable_calls, is_custom
from turnfold_proxy.apis.api import (
    Calls,
    Element,
    LookupCall,
    ModelAnswer,
    RequestConversation,
    arguments_identity,
    content_identity,
    content_text,
    dumped,
    elements_of,
    parsed_arguments,
    split_leading,
    whole_number,
    with_more_tools,
    without_markers,
)

_ANSWERS: Final = (
    "content", "refusal", "reasoning_content", "reasoning", "tool_calls", "function_call", "audio",
    "images",
)  # fmt: skip
"""The fields of a message that say something."""
_LABELS: Final = ("role", "type", "channel")
"""The texts of a delta that each one repeats whole."""
_CUT: Final = (None, "", "length", "content_filter", "error")
"""The `finish_reason` of a chunk after which a call may lack its end; some providers write ""."""


class ChatApi:
    """OpenAI's chat completions, as many providers offer them."""

    shape: Literal["chat"] = "chat"
    uncounted_type = ""

    def conversation(self, body: Mapping[str, Any]) -> RequestConversation | None:
        """Return the messages after the instructions at the beginning."""
        leading, rest = split_leading(elements_of(body.get("messages")))
        if not all(map(has_pairable_calls, rest)):
            return None
        tools = [body[name] for name in ("tools", "functions") if body.get(name)]
        # Clients write null for a limit that they do not set.
        limits = [body.get(name) for name in ("max_completion_tokens", "max_tokens")]
        output = next((limit for limit in limits if limit is not None), None)
        return RequestConversation(
            instructions="\n".join(content_text(message.get("content")) for message in leading),
            tools=dumped(tools) if tools else "",
            leading=leading,
            elements=rest,
            max_output_tokens=whole_number(output),
        )

    def with_elements(
        self, body: Mapping[str, Any], leading: Sequence[Element], elements: Sequence[Element]
    ) -> dict[str, Any]:
        """Return the request with other messages."""
        return {**body, "messages": [*leading, *elements]}

    def stored(self, element: Element) -> Element:
        """Return a message without marks of a cache and without empty fields."""
        kept = {name: value for name, value in element.items() if value is not None and value != []}
        message: Element = without_markers(kept)
        return message if "content" in message else {**message, "content": None}

    def identity(self, element: Element) -> Any:
        """Return role, content, and the calls or the call that the message answers."""
        calls = element.get("tool_calls") or []
        return [
            element.get("role"),
            content_identity(element.get("content")),
            [_call_identity(call) for call in calls] if isinstance(calls, list) else calls,
            element.get("function_call"),
            element.get("tool_call_id"),
        ]

    def calls(self, element: Element) -> Calls:
        """Return the ids of calls and results; the name in place of an id in the older form."""
        calls = {str(call.get("id")) for call in elements_of(element.get("tool_calls") or [])}
        if isinstance(older := element.get("function_call"), dict):
            calls.add(str(older.get("name")))
        role = element.get("role")
        if role not in ("tool", "function"):
            return calls, set()
        return calls, {str(element.get("tool_call_id" if role == "tool" else "name"))}

    def with_tools(self, body: Mapping[str, Any], tools: Sequence[Element]) -> dict[str, Any]:
        """Return the request with more tools; the older form of tools has no room for them."""
        if body.get("functions"):
            raise ValueError("the request has tools in the older form")
        return with_more_tools(body, [{"type": "function", "function": tool} for tool in tools])

    def lookups(self, elements: Sequence[Element]) -> list[LookupCall]:
        """Return the calls of functions in a message."""
        calls = [call for message in elements for call in message.get("tool_calls") or ()]
        return [
            LookupCall(call["id"], function["name"], parsed_arguments(function.get("arguments")))
            for call in calls
            if (function := call.get("function"))
        ]

    def with_lookups(
        self,
        body: Mapping[str, Any],
        elements: Sequence[Element],
        names: frozenset[str],
        results: Sequence[tuple[str, str]],
    ) -> dict[str, Any]:
        """Return the request with the message, and a message for each result."""
        answered: list[Element] = []
        for message in elements:
            calls = message.get("tool_calls") or ()
            kept = [call for call in calls if (call.get("function") or {}).get("name") in names]
            answered.append({**self.stored(message), "tool_calls": kept})
        tools = [
            {"role": "tool", "tool_call_id": call_id, "content": text} for call_id, text in results
        ]
        return {**body, "messages": [*body["messages"], *answered, *tools]}

    def reader(self) -> "ChatReader":
        """Return a reader of one completion."""
        return ChatReader()


class ChatReader:
    """Reads a completion: its first choice."""

    def __init__(self) -> None:
        self._message: Element = {}
        # A string would be copied with each piece that is added to it.
        self._texts: dict[str, StringIO] = {}
        self._spoken: dict[str, StringIO] = {}
        self._calls: dict[int, Element] = {}
        self._newest: dict[int | None, int] = {}
        self._inputs: dict[tuple[int, str, str], StringIO] = {}
        self._usage: dict[str, Any] | None = None
        self._is_whole = False
        self._has_ended = False

    def add(self, event: Mapping[str, Any]) -> None:
        """Add a chunk, or the whole completion."""
        if isinstance(usage := event.get("usage"), dict):
            self._usage = usage
        for choice in event.get("choices") or ():
            # Some providers write null.
            if choice.get("index") not in (0, None):
                continue
            if isinstance(message := choice.get("message"), dict):
                self._message, self._is_whole = dict(message), True
            elif isinstance(delta := choice.get("delta"), dict):
                self._add_delta(delta)
            self._has_ended |= choice.get("finish_reason") not in _CUT

    def answer(self) -> ModelAnswer:
        """Return the message of the assistant; none if it has neither text nor a whole call."""
        texts = {name: text.getvalue() for name, text in self._texts.items()}
        message: Element = {**self._message, **texts}
        if self._spoken:
            for name, text in self._spoken.items():
                message["audio"][name] = text.getvalue()
        for (place, kind, name), text in self._inputs.items():
            self._calls[place][kind][name] = text.getvalue()
        if not self._is_whole:
            calls = [call for _, call in sorted(self._calls.items()) if self._is_complete(call)]
            if calls:
                message["tool_calls"] = calls
        says = any(map(message.get, _ANSWERS))
        message = {"role": "assistant"} | {
            name: value for name, value in message.items() if value is not None
        }
        return ModelAnswer([message] if says else [], self._usage, has_ended=self._has_ended)

    def _add_delta(self, delta: Mapping[str, Any]) -> None:
        for name, value in delta.items():
            if name == "tool_calls":
                for piece in value or ():
                    self._add_call(piece)
            elif name == "audio" and isinstance(value, dict):
                self._add_audio(value)
            # Fields that only some providers have are joined too, as clients read them.
            elif isinstance(value, str) and name not in _LABELS:
                self._texts.setdefault(name, StringIO()).write(value)
            elif isinstance(value, list) and isinstance(before := self._message.get(name), list):
                before += value
            elif value is not None and name not in ("role", "function_call"):
                self._message[name] = value

    def _add_audio(self, piece: Mapping[str, Any]) -> None:
        audio = self._message.setdefault("audio", {})
        for name, value in piece.items():
            if name in ("data", "transcript") and isinstance(value, str):
                self._spoken.setdefault(name, StringIO()).write(value)
            else:
                audio[name] = value

    def _add_call(self, piece: Mapping[str, Any]) -> None:
        place = self._place_of(piece)
        call = self._calls.setdefault(place, {"type": "function"})
        for name, value in piece.items():
            if name in ("function", "custom") and isinstance(value, dict):
                inner = call.setdefault(name, {})
                for key, text in value.items():
                    if key in ("arguments", "input") and isinstance(text, str):
                        self._inputs.setdefault((place, name, key), StringIO()).write(text)
                    else:
                        inner[key] = text or inner.get(key)
            # Some providers repeat the id in later pieces as an empty text.
            elif name != "index" and value not in (None, ""):
                call[name] = value

    def _place_of(self, piece: Mapping[str, Any]) -> int:
        """Return the place of the call to which a piece belongs.

        Some providers give one index, or none, to all calls: a name with another id begins a call.
        """
        index, call_id, tool = piece.get("index"), piece.get("id"), called_tool(piece) or {}
        place = self._newest.get(index)
        before = {} if place is None else self._calls[place]
        is_other = call_id != before.get("id", call_id) if call_id else index is None
        if place is None or (tool.get("name") and is_other):
            place = max(self._calls, default=-1) + 1
            if isinstance(index, int) and index not in self._calls:
                place = index
            self._newest[index] = place
        return place

    def _is_complete(self, call: Mapping[str, Any]) -> bool:
        tool = called_tool(call) or {}
        arguments = None if is_custom(call) else tool.get("arguments")
        # Free text, or none, may be the beginning of more.
        if not arguments:
            return self._has_ended and bool(tool.get("name"))
        try:
            json.loads(arguments)
        except (ValueError, RecursionError):
            return False
        return bool(tool.get("name"))


def _call_identity(call: Any) -> Any:
    if not isinstance(call, dict):
        return call
    inner = call.get("function") or call.get("custom") or {}
    if not isinstance(inner, dict):
        return call
    arguments = inner.get("arguments", inner.get("input"))
    return [call.get("id"), inner.get("name"), arguments_identity(arguments)]
