"""The interface of an API, and what all of them share."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final, Literal, Protocol

from turnfold.contracts.strict_json import STRICT
from turnfold.core.shapes.anthropic import is_thinking
from turnfold.errors import BadEvent
from turnfold.messages import SYSTEM_ROLES

Element = dict[str, Any]

MARKER: Final = "cache_control"
"""The field by which clients of Anthropic mark what a provider caches. It moves with each call."""
_HOLDS_BLOCKS: Final = ("content", "source", "tool_calls")


@dataclass(frozen=True, slots=True)
class RequestConversation:
    """The conversation of a request.

    `instructions` and `tools` are JSON or text that stands beside it, and `leading` the elements
    before it that are instructions. `elements` are the rest of the list.
    """

    instructions: str
    tools: str
    leading: Sequence[Element]
    elements: Sequence[Element]
    max_output_tokens: int | None

    @property
    def first_user_text(self) -> str:
        """The first element of the user, as text."""
        of_user = (element for element in self.elements if element.get("role") == "user")
        first = next(of_user, None)
        return content_text(first.get("content")) if first is not None else ""


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """The elements that a model wrote, and the usage that its provider reported.

    `has_failed`: the provider ended it with an error, so that it may lack its end. With
    `has_ended`, an error beside it is none: some providers fill in that field in all they send.
    """

    elements: Sequence[Element]
    usage: dict[str, Any] | None = None
    has_ended: bool = False
    has_failed: bool = False


Calls = tuple[set[str], set[str]]
"""The ids of calls of tools, and the ids of the calls to which results belong."""


@dataclass(frozen=True, slots=True)
class LookupCall:
    """A call of a tool with JSON arguments; `arguments` is None if they are not JSON."""

    call_id: str
    name: str
    arguments: Any


class AnswerReader(Protocol):
    """Reads an answer while it is relayed."""

    def add(self, event: Mapping[str, Any]) -> None:
        """Add an event of a stream, or the whole answer if it was not streamed."""
        ...

    def answer(self) -> ModelAnswer:
        """Return what has arrived so far; calls that are incomplete are left out."""
        ...


class Api(Protocol):
    """An API of a provider. Methods take JSON of unknown shape and raise `ValueError` for it."""

    @property
    def shape(self) -> Literal["chat", "responses", "anthropic"]:
        """The shape of the elements in an event."""
        ...

    @property
    def uncounted_type(self) -> str:
        """The type of elements without identity; empty if all have one."""
        ...

    def conversation(self, body: Mapping[str, Any]) -> RequestConversation | None:
        """Return the conversation of a request.

        None if the request does not hold all of it, or has calls that are not pairable.
        """
        ...

    def with_elements(
        self, body: Mapping[str, Any], leading: Sequence[Element], elements: Sequence[Element]
    ) -> dict[str, Any]:
        """Return the request with other elements."""
        ...

    def stored(self, element: Element) -> Element:
        """Return an element as it is published."""
        ...

    def identity(self, element: Element) -> Any:
        """Return JSON that is equal for two ways in which a client writes one element.

        It is None for an element of the `uncounted_type`, which clients may leave out, and which
        belongs to the next one.
        """
        ...

    def calls(self, element: Element) -> Calls:
        """Return the ids of the calls in an element, and of the calls that it answers."""
        ...

    def with_tools(self, body: Mapping[str, Any], tools: Sequence[Element]) -> dict[str, Any]:
        """Return the request with more tools, which have a name, a description and parameters."""
        ...

    def lookups(self, elements: Sequence[Element]) -> list[LookupCall]:
        """Return the calls of functions in an answer."""
        ...

    def with_lookups(
        self,
        body: Mapping[str, Any],
        elements: Sequence[Element],
        names: frozenset[str],
        results: Sequence[tuple[str, str]],
    ) -> dict[str, Any]:
        """Return the request with an answer and the results of its calls of some tools.

        Its calls of other tools are left out: they have no result yet.
        """
        ...

    def reader(self) -> AnswerReader:
        """Return a reader of one answer."""
        ...


def dumped(value: Any) -> str:
    """Return a value as JSON text; texts are returned as they are."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def elements_of(value: Any) -> list[Element]:
    """Return a list of objects.

    Raises:
        ValueError: the value is something else.
    """
    if not isinstance(value, list) or not all(isinstance(element, dict) for element in value):
        raise ValueError("the conversation is not a list of objects")
    return value


def split_leading(elements: Sequence[Element]) -> tuple[list[Element], list[Element]]:
    """Split a list into the instructions at its beginning and the rest."""
    leading = list(takewhile(lambda element: element.get("role") in SYSTEM_ROLES, elements))
    return leading, list(elements[len(leading) :])


def without_markers(value: Any) -> Any:
    """Return messages, blocks or tools without the marks of a provider's cache.

    All else in them stays as it is: a tool may have an argument of that name.
    """
    if isinstance(value, list):
        return [without_markers(item) for item in value]
    if isinstance(value, dict):
        return {
            name: without_markers(field) if name in _HOLDS_BLOCKS else field
            for name, field in value.items()
            if name != MARKER
        }
    return value


def without_nulls(value: Any) -> Any:
    """Return JSON without fields that are null: clients write them, or leave them out."""
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return value


def content_identity(content: Any) -> Any:
    """Return the content of an element: a text, stripped, or the parts that are not plain text.

    Thoughts, which some models write into the content, are left out: clients may drop them.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content.strip()
    if not isinstance(content, list):
        return content
    content = [part for part in content if not is_thinking(part)]
    texts = [
        part["text"]
        for part in content
        if isinstance(part, dict)
        and isinstance(part.get("text"), str)
        and part.get("type") in ("text", "input_text", "output_text")
    ]
    if len(texts) == len(content):
        return "".join(texts).strip()
    return without_nulls(without_markers(content))


def content_text(content: Any) -> str:
    """Return a content as text, with what is not text as JSON, and without marks of a cache."""
    return dumped(content_identity(content))


def arguments_identity(arguments: Any) -> Any:
    """Return the arguments of a call as JSON, because clients write the same ones differently."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return STRICT.decode(arguments)
    except (ValueError, BadEvent, RecursionError):
        return arguments


def with_more_tools(body: Mapping[str, Any], tools: Sequence[Element]) -> dict[str, Any]:
    """Return a request with more tools at the end.

    Raises:
        ValueError: the caller's tools are not a list of objects, or one of them has such a name.
    """
    own = elements_of(body.get("tools") or [])
    if not set(map(_name_of_tool, tools)).isdisjoint(map(_name_of_tool, own)):
        raise ValueError("a tool of the caller has the name of another")
    return {**body, "tools": [*own, *tools]}


def _name_of_tool(tool: Element) -> str:
    # Chat completions hold a tool in `function`; in the other APIs it has its name itself.
    return str((tool.get("function") or tool).get("name"))


def parsed_arguments(arguments: Any) -> Any:
    """Return the arguments of a call as JSON; None if they are none."""
    parsed = arguments_identity(arguments or "{}")
    return None if isinstance(parsed, str) else parsed


def whole_number(value: Any) -> int | None:
    """Return a positive whole number, or None."""
    is_number = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value if is_number else None
