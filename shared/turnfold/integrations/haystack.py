"""A compactor for agents of Haystack: compacted conversations are windows of Turnfold.

```python
compactor = TurnfoldCompactor("support", "user-42")
hook = CompactionHook(compactor=compactor, context_window=128_000)
agent = Agent(chat_generator=generator, tools=tools, hooks={"before_llm": [hook]})
```

Haystack decides when. Then what is new in the messages is published, and they are replaced by the
window: system messages, the summary, and the newest messages.
"""

# pyright takes `haystack` for this file.

import json
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from itertools import takewhile
from typing import Any

from turnfold.client import OutgoingEvent, PortalClient, Session
from turnfold.client.events import BATCH_EVENTS
from turnfold.integrations import requires
from turnfold.integrations.clients import carried_messages, events_in_place, publish_all
from turnfold.integrations.mirrored import (
    Chat,
    MirroredWindows,
    content_text,
    file_part,
    host_id,
    number_shared_ids,
)

with requires("haystack"):
    from haystack.core.serialization import default_to_dict
    from haystack.dataclasses.chat_message import ChatMessage, TextContent, ToolCall
    from haystack.dataclasses.file_content import FileContent
    from haystack.dataclasses.image_content import ImageContent
    from haystack.hooks.compaction.types import Compactor
    from haystack.token_counters.types import TokenCounter

_KEPT = "turnfold"
"""The mark of messages that were published."""
_MADE = "context_compaction"
"""Haystack's mark of messages that a compactor wrote."""
_OWN_ID = "turnfold-"
"""How ids begin of calls that have none in Haystack."""


class TurnfoldCompactor(Compactor):  # type: ignore[misc]  # without types here
    """Keeps an agent's conversation in Turnfold, and puts a window of it into the agent.

    `client` is a `PortalClient`, or a URL of NATS (default: `TURNFOLD_NATS_URL`). The budget of the
    window is the target of the `CompactionHook`. `window` has further options of
    `turnfold.Session.context`.

    If Turnfold does not answer, the messages stay as they are, and the logger
    `turnfold.integrations` gets a warning.

    Raises:
        BadRequest: an id is empty, longer than 256 bytes or contains control characters.
    """

    def __init__(
        self,
        agent_id: str,
        session_id: str,
        *,
        client: PortalClient | str | None = None,
        window: Mapping[str, Any] | None = None,
    ) -> None:
        self._settings: dict[str, Any] = {
            "agent_id": agent_id,
            "session_id": session_id,
            "client": None if isinstance(client, PortalClient) else client,
            "window": dict(window or {}),
        }
        self._windows = MirroredWindows(agent_id, client=client, window=window)
        self._windows.session(session_id)
        self._lost = frozenset[str]()
        """The ids of messages under which they are not stored."""

    def compact(
        self, messages: list[ChatMessage], target_tokens: int, token_counter: TokenCounter
    ) -> list[ChatMessage] | None:
        """Return a window of the conversation; None if it is not smaller."""
        return self._windows.run(self.compact_async(messages, target_tokens, token_counter))

    async def compact_async(
        self, messages: list[ChatMessage], target_tokens: int, token_counter: TokenCounter
    ) -> list[ChatMessage] | None:
        """Return a window of the conversation; None if it is not smaller."""
        start = len(list(takewhile(lambda message: message.is_from("system"), messages)))
        system = messages[:start]
        room = max(target_tokens - token_counter.count(messages=system), 1)
        shown = await self._windows.attempt(
            lambda: messages[start:], lambda rest: self._window(rest, room)
        )
        if shown is None:
            return None
        compacted = [*system, *shown]
        if token_counter.count(messages=compacted) >= token_counter.count(messages=messages):
            return None
        return compacted

    def to_dict(self) -> dict[str, Any]:
        """Return the settings; a `PortalClient` is not among them."""
        settings: dict[str, Any] = default_to_dict(self, **self._settings)
        return settings

    async def _window(
        self, messages: Sequence[ChatMessage], tokens: int
    ) -> list[ChatMessage] | None:
        """Publish what is new, and return the window; None if the messages must stay."""
        session = self._windows.session(self._settings["session_id"])
        events = _events(session, messages, self._lost)
        await publish_all(session, events)
        window = await self._windows.fresh_window(session, max_tokens=tokens)
        # The agent keeps nothing but the window.
        names = [event.event_id for event in events]
        if missing := await self._windows.missing(names):
            self._windows.warn(f"{len(missing)} of {len(names)} events are not stored")
            await self._lose(session, names, missing)
            return None
        calls: dict[str, ToolCall] = {}
        return [_message(body, message, calls) for body, message in carried_messages(window)]

    async def _lose(self, session: Session, names: Sequence[str], missing: set[str]) -> None:
        """Let what follows the first missing event have other ids next time, in its order."""
        first = next(place for place, name in enumerate(names) if name in missing)
        # An event has two messages at most, with its carrier. Unknown ids have no effect.
        stale = [f"{name}#{index}" for name in names[first:] for index in (0, 1)]
        for start in range(0, len(stale), BATCH_EVENTS):
            await session.retract(*stale[start : start + BATCH_EVENTS])
        # The retraction of a carrier has the id of its event with a suffix.
        self._lost |= {name.partition("-")[0] for name in missing}


def _events(
    session: Session, messages: Sequence[ChatMessage], lost: Collection[str]
) -> list[OutgoingEvent]:
    """Return the events of what is new in the messages, one for each message, without lost ids."""
    events: list[OutgoingEvent] = []
    digest = _hashed(session.key)
    bodies = list(map(_chat, messages))
    number_shared_ids(bodies)
    for message, body in zip(messages, bodies, strict=True):
        # A digest of the list up to here: a message that is published again, after an error of the
        # model or in another process, is the same event.
        digest = _hashed([digest, body])
        while digest in lost:
            digest = _hashed([digest])
        if not {_KEPT, _MADE} & set(message.meta):
            carry = [message.to_dict()]
            events += events_in_place(session.key, [body], carry, is_first=False, event_id=digest)
    return events


def _chat(message: ChatMessage) -> Chat:
    """Return a message as a chat message, in which all calls and results have ids."""
    result = message.tool_call_result
    contents: list[Any] = []
    if message.is_from("assistant") and (message.images or len(message.texts) > 1):
        # Its form for OpenAI has the first text alone.
        contents = [*map(TextContent, message.texts), *message.images]
    elif result is not None and not isinstance(result.result, str):
        contents = list(result.result)
        message = ChatMessage.from_tool("", origin=result.origin, error=result.error)
    body: Chat = message.to_openai_dict_format(require_tool_call_ids=False)
    if contents:
        body["content"] = [shown for part in contents for shown in _content_parts(part)]
    elif isinstance(body.get("content"), list):
        body["content"] = [_without_data(part) for part in body["content"]]
    for call, shown in zip(message.tool_calls, body.get("tool_calls") or (), strict=True):
        shown.setdefault("id", _id(call))
    if result is not None:
        body.setdefault("tool_call_id", _id(result.origin))
        body |= {"is_error": True} if result.error else {}
    return body


def _without_data(part: Chat) -> Chat:
    """Return a part of a content; of a file its hash, because the event carries its data."""
    image, file = part.get("image_url") or {}, part.get("file") or {}
    head, _, data = str(image.get("url") or file.get("file_data") or "").partition(",")
    if not data:
        return part
    mime_type = head.removeprefix("data:").partition(";")[0]
    return file_part(mime_type, file_id=_hashed(data))


def _hashed(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _content_parts(part: TextContent | ImageContent | FileContent) -> list[Chat]:
    """Return a part of a message; for an image or a file its name, and what counts as one."""
    if isinstance(part, TextContent):
        return [{"type": "text", "text": part.text}]
    is_image = isinstance(part, ImageContent)
    mime_type = part.mime_type or ("image/*" if is_image else "unknown")
    data = part.base64_image if is_image else part.base64_data
    # The text stays if the message is shortened.
    name = {"type": "text", "text": f"[media: {mime_type}]"}
    return [name, file_part(mime_type, file_id=_hashed(data))]


def _id(call: ToolCall) -> str:
    """Return an id for a call without one, which its result has as well: it names the call."""
    return _OWN_ID + _hashed([call.tool_name, call.arguments])


def _with_host_id(call: Chat) -> Chat:
    """Return a call with the id that it has in Haystack, if any."""
    if call["id"].startswith(_OWN_ID):
        return {key: value for key, value in call.items() if key != "id"}
    return call | {"id": host_id(call["id"])}


def _message(body: Chat | None, carried: Any, calls: dict[str, ToolCall]) -> ChatMessage:
    """Return a message of a window; `calls` are those of the messages before it, by their ids."""
    own = None
    if isinstance(carried, dict) and "role" in carried:
        own = ChatMessage.from_dict(carried)
        calls.update((call.id or _id(call), call) for call in own.tool_calls)
    if body is not None:
        message = _rebuilt(body, own, calls)
        message.meta[_KEPT if own else _MADE] = {"strategy": "turnfold"}
        return message
    if own is None:
        raise ValueError("another program publishes to this session")
    own.meta[_KEPT] = True
    return own


def _rebuilt(body: Chat, own: ChatMessage | None, calls: Mapping[str, ToolCall]) -> ChatMessage:
    """Return a message that Turnfold wrote, or shortened `own`."""
    if body["role"] != "assistant" and not body.get("content"):
        body = {**body, "content": "(empty)"}
    body = {name: value for name, value in body.items() if name in _FIELDS}
    if isinstance(body.get("content"), list):
        body["content"] = content_text(body["content"])
    if body["role"] == "tool":
        # Models that pair calls by the names of their tools are sent the name of the origin.
        result = own.tool_call_result if own else None
        origin = result.origin if result else calls[host_id(body["tool_call_id"])]
        return ChatMessage.from_tool(body["content"], origin, error=bool(result and result.error))
    if body.get("tool_calls"):
        body["tool_calls"] = list(map(_with_host_id, body["tool_calls"]))
    return ChatMessage.from_openai_dict_format(body)


_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id")
