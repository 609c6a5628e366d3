"""Anthropic's messages: `POST /v1/messages`."""

import json
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any, Final, Literal

from turnfold.core.shapes.anthropic import is_thinking
from turnfold.core.text.calls import are_pairable
from turnfold_proxy.apis.api import (
    MARKER,
    Calls,
    Element,
    LookupCall,
    ModelAnswer,
    RequestConversation,
    content_identity,
    content_text,
    dumped,
    elements_of,
    whole_number,
    with_more_tools,
    without_markers,
    without_nulls,
)

_PIECES: Final = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}
"""The field of each kind of delta; the first three are fields of the block as well."""
_AT_LIMIT: Final = ("max_tokens", "model_context_window_exceeded")
"""The `stop_reason` of an answer that was cut off."""


class MessagesApi:
    """The messages API of Anthropic."""

    shape: Literal["anthropic"] = "anthropic"
    uncounted_type = ""

    def conversation(self, body: Mapping[str, Any]) -> RequestConversation | None:
        """Return the messages; the system text stands beside them."""
        tools, elements = without_markers(body.get("tools")), elements_of(body.get("messages"))
        if not all(are_pairable(_named_calls(element)) for element in elements):
            return None
        return RequestConversation(
            instructions=content_text(body.get("system")),
            tools=dumped(tools) if tools else "",
            leading=(),
            elements=elements,
            max_output_tokens=whole_number(body.get("max_tokens")),
        )

    def with_elements(
        self, body: Mapping[str, Any], leading: Sequence[Element], elements: Sequence[Element]
    ) -> dict[str, Any]:
        """Return the request with other messages, the last one marked if it was."""
        own, shown = body["messages"], [*leading, *elements]
        # A message that the window changed comes from the store, which has no marks of caches.
        if shown and shown[-1] is not own[-1]:
            shown[-1] = _marked_like(own[-1], shown[-1])
        return {**body, "messages": shown}

    def stored(self, element: Element) -> Element:
        """Return a message without marks of a cache, an answer also without blank texts.

        Models write these beside other blocks, but the API refuses them, so clients leave them out.
        """
        message: Element = without_markers(element)
        content = message.get("content")
        if message.get("role") != "assistant" or not isinstance(content, list):
            return message
        return {
            **message,
            "content": [block for block in content if not _is_blank(block)] or content,
        }

    def identity(self, element: Element) -> Any:
        """Return role and blocks without thoughts, because clients may leave these out."""
        content = element.get("content")
        if not isinstance(content, list):
            return [element.get("role"), content_identity(content)]
        blocks = [_block_identity(block) for block in content if not is_thinking(block)]
        if all(isinstance(block, str) for block in blocks):
            return [element.get("role"), "".join(blocks).strip()]
        return [element.get("role"), blocks]

    def calls(self, element: Element) -> Calls:
        """Return the ids of the blocks that call tools, and of those that answer one.

        A call that the provider runs is not a call here, but its result in a later message is one.
        """
        content = element.get("content")
        blocks = content if isinstance(content, list) else []
        kinds = [(str(_kind(block)), block) for block in blocks]
        ran = {str(block.get("id")) for kind, block in kinds if kind.endswith("_tool_use")}
        answered = {
            str(block.get("tool_use_id")) for kind, block in kinds if kind.endswith("tool_result")
        }
        return (
            {str(block.get("id")) for kind, block in kinds if kind == "tool_use"},
            answered - ran,
        )

    def with_tools(self, body: Mapping[str, Any], tools: Sequence[Element]) -> dict[str, Any]:
        """Return the request with more tools."""
        shaped = [
            {
                "name": tool["name"],
                "description": tool["description"],
                "input_schema": tool["parameters"],
            }
            for tool in tools
        ]
        return with_more_tools(body, shaped)

    def lookups(self, elements: Sequence[Element]) -> list[LookupCall]:
        """Return the blocks that call tools."""
        return [
            LookupCall(block["id"], block["name"], block.get("input"))
            for message in elements
            for block in message["content"]
            if _kind(block) == "tool_use"
        ]

    def with_lookups(
        self,
        body: Mapping[str, Any],
        elements: Sequence[Element],
        names: frozenset[str],
        results: Sequence[tuple[str, str]],
    ) -> dict[str, Any]:
        """Return the request with the message, its thoughts included, and one of the results."""
        answered = [
            {
                **message,
                "content": [
                    block
                    for block in message["content"]
                    if _kind(block) != "tool_use" or block.get("name") in names
                ],
            }
            for message in elements
        ]
        blocks = [
            {"type": "tool_result", "tool_use_id": call_id, "content": text}
            for call_id, text in results
        ]
        return {
            **body,
            "messages": [*body["messages"], *answered, {"role": "user", "content": blocks}],
        }

    def reader(self) -> "MessagesReader":
        """Return a reader of one message."""
        return MessagesReader()


class MessagesReader:
    """Reads a message of the assistant, block by block."""

    def __init__(self) -> None:
        self._blocks: dict[int, Element] = {}
        # A string would be copied with each piece that is added to it.
        self._texts: dict[tuple[int, str], StringIO] = {}
        self._inputs: dict[int, StringIO] = {}
        self._ended: set[int] = set()
        self._usage: dict[str, Any] = {}

    def add(self, event: Mapping[str, Any]) -> None:
        """Add an event, or the whole message."""
        kind, place = event.get("type"), event.get("index", 0)
        message = event.get("message") if kind == "message_start" else event
        if isinstance(message, dict) and isinstance(usage := message.get("usage"), dict):
            # The start counts the tokens of the request, and the last delta those of the answer.
            self._usage |= {name: value for name, value in usage.items() if value is not None}
        if kind == "message":
            self._blocks = dict(enumerate(elements_of(event.get("content"))))
            self._ended = set(self._blocks)
        elif kind == "content_block_start":
            self._blocks[place] = dict(event["content_block"])
        elif kind == "content_block_delta":
            self._add_delta(place, event["delta"])
        elif kind == "content_block_stop":
            self._end(place)
        if (event.get("delta") or event).get("stop_reason") in _AT_LIMIT:
            self._forget_call_without_arguments()

    def answer(self) -> ModelAnswer:
        """Return the message; none if it has no block."""
        for (place, name), text in self._texts.items():
            self._blocks[place][name] = text.getvalue()
        # If a block was cut off, only its text is useful: thoughts lack their signature, and calls
        # a part of their JSON.
        blocks = [
            block
            for place, block in sorted(self._blocks.items())
            if place in self._ended or (_kind(block) == "text" and block.get("text"))
        ]
        usage = self._usage or None
        return ModelAnswer([{"role": "assistant", "content": blocks}] if blocks else [], usage)

    def _add_delta(self, place: int, delta: Mapping[str, Any]) -> None:
        block, name = self._blocks[place], _PIECES.get(str(delta.get("type")))
        if name == "partial_json":
            self._inputs.setdefault(place, StringIO()).write(delta[name])
        elif name is not None:
            if (place, name) not in self._texts:
                self._texts[place, name] = StringIO()
                self._texts[place, name].write(block.get(name) or "")
            self._texts[place, name].write(delta[name])
        elif delta.get("type") == "citations_delta":
            block["citations"] = block.get("citations") or []
            block["citations"].append(delta["citation"])
        else:
            # Such as that of a compaction, which comes in one piece.
            block |= {name: value for name, value in delta.items() if name != "type"}

    def _end(self, place: int) -> None:
        # A call without arguments keeps the empty input of its start.
        if text := self._inputs.pop(place, StringIO()).getvalue():
            try:
                self._blocks[place]["input"] = json.loads(text)
            except ValueError:
                # At the limit of an answer, the provider ends a block whose JSON is cut off.
                return
        self._ended.add(place)

    def _forget_call_without_arguments(self) -> None:
        """Forget the last block if it is a call whose arguments may not have begun."""
        place, block = max(self._blocks.items(), default=(0, {}))
        if _kind(block) == "tool_use" and not block.get("input"):
            self._ended.discard(place)


def _named_calls(element: Element) -> list[tuple[Any, Any]]:
    content = element.get("content")
    blocks = content if isinstance(content, list) else []
    return [(block.get("id"), block.get("name")) for block in blocks if _kind(block) == "tool_use"]


def _kind(block: Any) -> Any:
    return block.get("type") if isinstance(block, dict) else None


def _is_blank(block: Any) -> bool:
    return _kind(block) == "text" and not str(block.get("text")).strip()


def _block_identity(block: Any) -> Any:
    match _kind(block):
        case "text":
            return block.get("text")
        case "tool_use":
            return [block.get("id"), block.get("name"), block.get("input")]
        case "tool_result":
            is_error = bool(block.get("is_error"))
            return [block.get("tool_use_id"), content_identity(block.get("content")), is_error]
        case _:
            return without_nulls(without_markers(block))


def _marked_like(own: Element, shown: Element) -> Element:
    """Return a message whose last block has the mark of the caller's last block."""
    blocks, shown_blocks = own.get("content"), shown.get("content")
    if not (
        isinstance(blocks, list) and blocks and isinstance(shown_blocks, list) and shown_blocks
    ):
        return shown
    mark = blocks[-1].get(MARKER) if isinstance(blocks[-1], dict) else None
    if mark is None or not isinstance(shown_blocks[-1], dict):
        return shown
    return {**shown, "content": [*shown_blocks[:-1], {**shown_blocks[-1], MARKER: mark}]}
