"""OpenAI's responses: `POST /v1/responses`."""

from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from itertools import groupby
from typing import Any, Final, Literal

from turnfold.core.shapes.responses import (
    CUSTOM,
    FUNCTION,
    REASONING,
    answered_id,
    is_call,
    is_of_model,
    kind_of,
)
from turnfold.core.text.calls import are_pairable
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
    without_nulls,
)

_ELSEWHERE: Final = ("previous_response_id", "conversation")
_OF_PROVIDER: Final = frozenset({"id", "status"})


class ResponsesApi:
    """The responses API of OpenAI, for clients that keep the conversation themselves."""

    shape: Literal["responses"] = "responses"
    uncounted_type = REASONING

    def conversation(self, body: Mapping[str, Any]) -> RequestConversation | None:
        """Return the items after the instructions; None if the provider keeps a part of them."""
        leading, rest = split_leading(elements_of(_items(body.get("input"))))
        if any(body.get(name) for name in _ELSEWHERE) or any(_is_reference(item) for item in rest):
            return None
        answers = (items for is_answer, items in groupby(rest, is_of_model) if is_answer)
        if not all(are_pairable(_named_calls(items)) for items in answers):
            return None
        texts = [dumped(body.get("instructions") or "")]
        texts += [content_text(item.get("content")) for item in leading]
        return RequestConversation(
            instructions="\n".join(filter(None, texts)),
            tools=dumped(body["tools"]) if body.get("tools") else "",
            leading=leading,
            elements=rest,
            max_output_tokens=whole_number(body.get("max_output_tokens")),
        )

    def with_elements(
        self, body: Mapping[str, Any], leading: Sequence[Element], elements: Sequence[Element]
    ) -> dict[str, Any]:
        """Return the request with other items."""
        return {**body, "input": [*leading, *elements]}

    def stored(self, element: Element) -> Element:
        """Return an item without empty fields."""
        return {name: value for name, value in element.items() if value is not None}

    def identity(self, element: Element) -> Any:
        """Return what an item says or calls, without the ids that the provider gave it.

        Reasoning has none: clients may leave it out.
        """
        kind = element.get("type") or "message"
        if kind == "message":
            return [element.get("role"), content_identity(element.get("content"))]
        if kind in ("function_call", "custom_tool_call"):
            arguments = arguments_identity(element.get("arguments", element.get("input")))
            return [kind, element.get("call_id"), element.get("name"), arguments]
        if kind in ("function_call_output", "custom_tool_call_output"):
            return [kind, element.get("call_id"), content_identity(element.get("output"))]
        if kind == self.uncounted_type:
            return None
        fields = {name: value for name, value in element.items() if name not in _OF_PROVIDER}
        return without_nulls(without_markers(fields))

    def calls(self, element: Element) -> Calls:
        """Return the id of the item if it is a call, or if it is the result of one."""
        call_id, kind = {str(answered_id(element))}, str(element.get("type"))
        if kind.endswith("_call_output"):
            return set(), call_id
        return (call_id if kind.endswith("_call") and "call_id" in element else set()), set()

    def with_tools(self, body: Mapping[str, Any], tools: Sequence[Element]) -> dict[str, Any]:
        """Return the request with more tools.

        Raises:
            ValueError: the caller asks for the answer later, where nobody answers its lookups.
        """
        if body.get("background"):
            raise ValueError("the response is generated in the background")
        # Without this field the API would make the schemas strict, which these are not.
        return with_more_tools(
            body, [{"type": "function", **tool, "strict": False} for tool in tools]
        )

    def lookups(self, elements: Sequence[Element]) -> list[LookupCall]:
        """Return the items that call functions."""
        return [
            LookupCall(item["call_id"], item["name"], parsed_arguments(item.get("arguments")))
            for item in elements
            if item.get("type") == "function_call"
        ]

    def with_lookups(
        self,
        body: Mapping[str, Any],
        elements: Sequence[Element],
        names: frozenset[str],
        results: Sequence[tuple[str, str]],
    ) -> dict[str, Any]:
        """Return the request with the items of the response, and one for each result."""
        answered = [
            item for item in elements if not self.calls(item)[0] or item.get("name") in names
        ]
        outputs = [
            {"type": "function_call_output", "call_id": call_id, "output": text}
            for call_id, text in results
        ]
        return {**body, "input": [*_items(body["input"]), *answered, *outputs]}

    def reader(self) -> "ResponsesReader":
        """Return a reader of one response."""
        return ResponsesReader()


class ResponsesReader:
    """Reads a response, item by item."""

    def __init__(self) -> None:
        self._items: dict[int, Element] = {}
        # A string would be copied with each piece that is added to it.
        self._texts: dict[int, StringIO] = {}
        self._usage: dict[str, Any] | None = None

    def add(self, event: Mapping[str, Any]) -> None:
        """Add an event, or the whole response."""
        kind, place = str(event.get("type", "")), event.get("output_index", 0)
        response = event.get("response") if kind.startswith("response.") else event
        if isinstance(response, dict):
            if isinstance(usage := response.get("usage"), dict):
                self._usage = usage
            if response.get("status") != "in_progress" and response.get("output"):
                # The last event repeats all items of the answer.
                self._items = dict(enumerate(elements_of(response["output"])))
                self._texts.clear()
        if kind == "response.output_item.done":
            self._items[place] = event["item"]
            self._texts.pop(place, None)
        elif kind == "response.output_text.delta":
            self._texts.setdefault(place, StringIO()).write(event["delta"])

    def answer(self) -> ModelAnswer:
        """Return the whole items, and the message that was being written."""
        texts = {place: text.getvalue() for place, text in self._texts.items()}
        cut = {place: _message(text) for place, text in texts.items() if text}
        items = [item for _, item in sorted((self._items | cut).items())]
        return ModelAnswer([item for item in items if not _is_cut_call(item)], self._usage)


def _is_cut_call(item: Element) -> bool:
    # At the limit of an answer, the provider ends an item whose arguments are cut off.
    is_cut = item.get("status") in ("in_progress", "incomplete")
    return is_cut and kind_of(item) in (FUNCTION, CUSTOM)


def _named_calls(items: Iterable[Element]) -> list[tuple[Any, Any]]:
    calls = [(item, kind_of(item)) for item in items if is_call(item)]
    return [
        # Other calls are named after their type.
        (item.get("call_id"), item.get("name") if kind in (FUNCTION, CUSTOM) else kind)
        for item, kind in calls
    ]


def _items(value: Any) -> Any:
    """Return the input of a request as items; a text stands for one message of the user."""
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


def _is_reference(item: Element) -> bool:
    # Its type may be left out, and that of a message, which has a role.
    kind = item.get("type")
    return kind == "item_reference" or not (kind or item.get("role"))


def _message(text: str) -> Element:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "role": "assistant", "content": [part]}
