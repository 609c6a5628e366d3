"""Continue the window of the previous call, so that a call need not wait until it is stored.

A call that only adds to a list is sent with the window of the previous list, followed by its new
elements, if that fits. The services store and trim meanwhile, and the next call begins with their
answer.
"""

import asyncio
import json
import marshal
import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import ceil
from typing import Any, Final, cast

from cachetools import TTLCache

from turnfold.client import Window
from turnfold.client.mirrored_list import place_of
from turnfold.core.shapes.anthropic import chat_views, is_thinking
from turnfold.core.text.tokens import MEDIA_PARTS, REASONING_FIELDS
from turnfold.errors import Conflict
from turnfold.messages import SYSTEM_ROLES
from turnfold_proxy.apis.api import MARKER, Api, Element, dumped, without_markers

KEEP_SECONDS: Final = 60.0
"""How long texts of a window stay in the proxy: the signal of an erasure may be lost."""
KEEP_BYTES: Final = 64 * 1024 * 1024
ENTRY_BYTES: Final = 1_024
LIST_HEADER: Final = 5
"""The bytes of a list before its elements: a type and their number."""
ELEMENT_TOKENS: Final = 8
"""The tokens of an element beside its text, with a reserve."""
_MEDIA_TYPES: Final = (*MEDIA_PARTS, "document", "computer_screenshot", "image_generation_call")
_MEDIA: Final = re.compile('"audio": {|"type": "(' + "|".join(_MEDIA_TYPES) + ')"')
"""Media count by the piece, as only the services know: their bytes are not text."""

Part = int | Element
"""A place in the caller's list, or an element that Turnfold wrote."""
SessionIds = tuple[str, str]
"""The ids of an agent and of its session."""


@dataclass(frozen=True, slots=True)
class ListDigest:
    """A list of elements by its length, the size of its bytes and the hash of them.

    Marks of a provider's cache are left out.
    """

    length: int
    size: int
    digest: bytes


class ListBytes:
    """A list as bytes, by which the lists are recognized that it continues.

    Raises:
        RecursionError: the list is nested too deeply.
    """

    def __init__(self, elements: Sequence[Element]) -> None:
        self._data = _bytes_of(elements)
        if MARKER.encode() in self._data:
            self._data = _bytes_of(without_markers(elements))
        self._length = len(elements)

    @property
    def digest(self) -> ListDigest:
        """The digest of the whole list."""
        size = len(self._data)
        return ListDigest(self._length, size, self._digest_of(size))

    def begins_with(self, beginning: ListDigest) -> bool:
        """Return whether the list begins with all elements of another one."""
        # The bytes of an element tell where it ends, so those of a longer list go on after them.
        return (
            beginning.size <= len(self._data)
            and self._digest_of(beginning.size) == beginning.digest
        )

    def _digest_of(self, size: int) -> bytes:
        return blake2b(memoryview(self._data)[LIST_HEADER:size]).digest()


def _bytes_of(elements: Sequence[Element]) -> bytes:
    """Return bytes that are equal for equal JSON whose fields have the same order.

    In a fifth of the time of JSON. Newer formats of `marshal` depend on more than the values.
    """
    try:
        return marshal.dumps(list(elements), 2)
    except ValueError as error:
        raise RecursionError("the list is nested too deeply") from error


@dataclass(frozen=True, slots=True)
class KnownWindow:
    """The window of a list: `parts`, or None if it is the list as it came.

    `asked` is what else it depends on. `beside_tokens` counts instructions and tools, `tokens` the
    window without them, which has room for `budget_tokens`. Tokens are the vocabulary's times the
    `factor` of the model, which is None until it is known. `connection` is that over which erasures
    are signaled, and which has not changed since the window was requested.
    """

    listed: ListDigest
    asked: Hashable
    beside_tokens: int
    parts: Sequence[Part] | None
    tokens: int
    budget_tokens: int | None
    version: int
    factor: float | None
    connection: int | None = None


@dataclass(frozen=True, slots=True)
class GrownWindow:
    """A window with the new elements of a call; `elements` is None if that is the whole list."""

    elements: Sequence[Element] | None
    tokens: int
    version: int


def _size_of(known: KnownWindow) -> int:
    """Return about how many bytes a window takes in memory."""
    written = [part for part in known.parts or () if not isinstance(part, int)]
    return ENTRY_BYTES + 8 * len(known.parts or ()) + len(json.dumps(written))


class KnownWindows:
    """The newest window of each session, for a minute."""

    def __init__(self) -> None:
        self._windows: TTLCache[SessionIds, KnownWindow] = TTLCache[SessionIds, KnownWindow](
            KEEP_BYTES, KEEP_SECONDS, getsizeof=_size_of
        )

    def get(self, session: SessionIds) -> KnownWindow | None:
        """Return the window of a session, if it is known."""
        return self._windows.get(session)

    def put(self, session: SessionIds, known: KnownWindow) -> None:
        """Remember a window."""
        self.forget(session)
        # The cache refuses what is larger than it.
        with suppress(ValueError):
            self._windows[session] = known
            asyncio.get_running_loop().call_later(KEEP_SECONDS, self._windows.expire)

    def calibrate(self, session: SessionIds, factor: float) -> None:
        """Add the factor of the model to the window of a session that lacks it."""
        known = self.get(session)
        if known is not None and known.factor is None:
            self.put(session, replace(known, factor=factor))

    def forget(self, session: SessionIds) -> None:
        """Ask for the next window of a session again."""
        self._windows.pop(session, None)

    def sessions(self) -> list[SessionIds]:
        """Return the sessions whose windows are known."""
        return list(self._windows)


def grown(
    known: KnownWindow,
    api: Api,
    own: Sequence[Element],
    own_bytes: ListBytes,
    *,
    asked: Hashable,
    beside_tokens: int,
    count: Callable[[str], int],
) -> GrownWindow | None:
    """Return the window of a longer list; None if only the services can tell it."""
    new = own[known.listed.length :]
    if known.asked != asked or known.budget_tokens is None or known.factor is None or not new:
        return None
    if not _is_continuation(api, new, has_recall=known.parts is not None):
        return None
    texts = list(map(dumped, new))
    if any(map(_MEDIA.search, texts)) or not own_bytes.begins_with(known.listed):
        return None
    counted = sum(count(text) + ELEMENT_TOKENS for text in texts)
    tokens = known.tokens + ceil(known.factor * counted)
    if tokens + max(beside_tokens - known.beside_tokens, 0) > known.budget_tokens:
        return None
    elements: list[Element] | None = None
    if known.parts is not None:
        elements = [own[part] if isinstance(part, int) else part for part in (*known.parts, *new)]
    return GrownWindow(elements, tokens, known.version)


def own_elements(api: Api, window: Window, own: Sequence[Element]) -> list[Element]:
    """Return a window whose unchanged messages are the caller's own, verbatim.

    Reasoning is the caller's as well: a provider that reads it wants it before its own item.

    Raises:
        Conflict: the window shows a message that is not in the caller's list.
    """
    elements: list[Element] = []
    steps, last = _steps(api, own)
    # Unchanged messages come without their body.
    messages = cast("Sequence[Element | None]", window.messages)
    entries = window.entries or [{}] * len(messages)
    for message, message_ids, entry in zip(messages, window.message_ids, entries, strict=True):
        ids = message_ids if isinstance(message_ids, list) else [message_ids]
        stored = [message_id for message_id in ids if message_id is not None]
        if (numbers := _numbers_of(stored)) is not None:
            taken = [steps[place] for place in numbers if place is not None and place < len(steps)]
            elements += [item for *reasoning, _ in taken for item in reasoning]
            sources = [element for *_, element in taken]
            if message is not None:
                elements += _changed_message(api, sources, numbers, message, entry)
            elif sources:
                elements.append(_shown_part(api, sources[0], stored[0]))
            else:
                raise Conflict("another publisher writes to this session")
    return elements + last


def _numbers_of(message_ids: Sequence[str]) -> list[int | None] | None:
    """Return the places of messages in their list, each once; None if one is uncounted."""
    places = dict.fromkeys(map(place_of, message_ids))
    if any(place is not None and place.is_uncounted for place in places):
        return None
    return [None if place is None else place.number for place in places]


def _changed_message(
    api: Api,
    sources: Sequence[Element],
    places: Sequence[int | None],
    message: Element,
    entry: Mapping[str, Any],
) -> Sequence[Element]:
    """Return what is sent for a changed message; `sources` are the elements at its places."""
    shown = _without_thoughts(api, sources, message)
    first = places[0] if len(sources) == len(places) > 0 else None
    are_neighbors = first is not None and places == [*range(first, first + len(places))]
    # Results of one message are several messages of a session, and neighbors of one role are
    # merged: their window is one message. Others became neighbors only there, and stay merged.
    if are_neighbors and _in_blocks(shown) == _merged([api.stored(source) for source in sources]):
        return sources
    own = sources[0] if len(sources) == len(places) == 1 else None
    return [_with_fields_of(api, own, shown, entry.get("without") or ())]


def _steps(api: Api, own: Sequence[Element]) -> tuple[list[list[Element]], list[Element]]:
    """Return each counted element with the uncounted ones before it, and what follows the last."""
    steps: list[list[Element]] = [[]]
    for element in own:
        steps[-1].append(element)
        if not api.uncounted_type or element.get("type") != api.uncounted_type:
            steps.append([])
    return steps[:-1], steps[-1]


def _without_thoughts(api: Api, sources: Sequence[Element], shown: Element) -> Element:
    """Return a message of Anthropic without its thoughts, if the caller has left them out."""
    content = shown.get("content")
    if api.shape != "anthropic" or not isinstance(content, list):
        return shown
    own = [source["content"] for source in sources if isinstance(source.get("content"), list)]
    if any(is_thinking(block) for blocks in own for block in blocks):
        return shown
    return {**shown, "content": [block for block in content if not is_thinking(block)] or content}


def _shown_part(api: Api, element: Element, message_id: str) -> Element:
    """Return the part of the caller's element that a session's message holds: usually all of it.

    In Anthropic's API, each result of a user message is a message of a session, as is the rest.
    """
    if api.shape != "anthropic":
        return element
    views = chat_views([element], [json.dumps(element)])
    if len(views) == 1:
        return element
    part: Element = json.loads(views[int(message_id.rpartition("#")[2])].text)
    return part


def _with_fields_of(
    api: Api, own: Element | None, shown: Element, without: Collection[str]
) -> Element:
    """Return the caller's element with what a window changed in it.

    The first form that was stored may have fields that the caller leaves out because the provider
    would refuse them.
    """
    if own is None or api.shape == "anthropic" or _kind(own) != _kind(shown):
        return shown
    shown = _with_own_calls(own, shown)
    element = _changed(api, own, shown)
    if "reasoning" in without:
        element = {name: value for name, value in element.items() if name not in REASONING_FIELDS}
    is_silent = element.get("content") is None and not element.get("tool_calls")
    if is_silent and shown.get("content") is not None:
        element["content"] = shown["content"]
    return element


def _with_own_calls(own: Element, shown: Element) -> Element:
    """Return a shortened message whose calls have the fields of the caller's."""
    if not isinstance(calls := shown.get("tool_calls"), list):
        return shown
    own_calls = {call.get("id"): call for call in own.get("tool_calls") or ()}
    return {
        **shown,
        "tool_calls": [_with_own_fields(own_calls.get(call.get("id")), call) for call in calls],
    }


def _changed(api: Api, own: Element, shown: Element) -> Element:
    """Return the caller's element with the fields of another one that say something else."""
    said, element = api.identity(own), dict(own)
    for name in {**own, **shown}:
        changed = {key: value for key, value in own.items() if key != name}
        if name in shown:
            changed[name] = shown[name]
        if api.identity(changed) != said:
            element.pop(name, None)
            element |= {name: shown[name]} if name in shown else {}
    return element


def _with_own_fields(own: Any, shown: Any) -> Any:
    """Return JSON without the fields of objects that the caller's has not."""
    if not isinstance(own, dict) or not isinstance(shown, dict):
        return shown
    return {
        name: _with_own_fields(own[name], value) for name, value in shown.items() if name in own
    }


def parts_of(elements: Sequence[Element], own: Sequence[Element]) -> list[Part]:
    """Return a window as places in the caller's list, where its elements are those."""
    places = {id(element): place for place, element in enumerate(own)}
    parts: list[Part] = []
    for element in elements:
        place = places.get(id(element))
        parts.append(element if place is None else place)
    return parts


def _is_continuation(api: Api, new: Sequence[Element], *, has_recall: bool) -> bool:
    """Return whether new elements can stand after any window: each call with its results.

    A new request of the user decides what is recalled, if something has left the window.
    """
    open_calls: set[str] = set()
    for element in new:
        calls, results = api.calls(element)
        if element.get("role") in SYSTEM_ROLES or not results <= open_calls:
            return False
        if has_recall and element.get("role") == "user" and not results:
            return False
        if open_calls and not calls and not results:
            return False
        open_calls = (open_calls - results) | calls
    return not open_calls


def _kind(element: Element) -> Any:
    return element.get("type") or "message"


def _merged(elements: Sequence[Element]) -> Element | None:
    """Return messages as one; None if they have no blocks to merge."""
    first, *others = map(_in_blocks, elements)
    if not others:
        return first
    contents = [message.get("content") for message in (first, *others)]
    if not all(isinstance(content, list) and content for content in contents):
        return None
    return {**first, "content": [block for content in contents for block in content or ()]}


def _in_blocks(element: Element) -> Element:
    """Return a message whose text is a block; Anthropic takes both, and windows have blocks."""
    content = element.get("content")
    if not isinstance(content, str):
        return element
    return {**element, "content": [{"type": "text", "text": content}]}
