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
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from turnfold.client import PortalClient, Session, turn_event
from turnfold.client.events import BATCH_EVENTS, batches
from turnfold.integrations import requires
from turnfold.integrations.mirrored import Chat, MirroredWindows

with requires("haystack"):
    from haystack.core.serialization import default_to_dict
    from haystack.dataclasses.chat_message import ChatMessage, TextContent, ToolCall
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
        self._client = client
        self._windows_of(1).session(session_id)

    def compact(
        self, messages: list[ChatMessage], target_tokens: int, token_counter: TokenCounter
    ) -> list[ChatMessage] | None:
        """Return a window of the conversation; None if it is not smaller."""
        windows = self._windows_of(target_tokens)
        return windows.run(self.compact_async(messages, target_tokens, token_counter))

    async def compact_async(
        self, messages: list[ChatMessage], target_tokens: int, token_counter: TokenCounter
    ) -> list[ChatMessage] | None:
        """Return a window of the conversation; None if it is not smaller."""
        start = next(
            (place for place, one in enumerate(messages) if not one.is_from("system")),
            len(messages),
        )
        system = messages[:start]
        room = max(target_tokens - token_counter.count(messages=system), 1)
        windows = self._windows_of(room)
        session = windows.session(self._settings["session_id"])
        shown = await windows.replaced(session, messages[start:])
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

    def _windows_of(self, tokens: int) -> "_Compacted":
        return _Compacted(
            self._settings["agent_id"],
            client=self._client,
            max_tokens=tokens,
            window=self._settings["window"],
        )


class _Compacted(MirroredWindows):
    """Windows of a session to which messages are only added."""

    async def replaced(
        self, session: Session, messages: Sequence[ChatMessage]
    ) -> list[ChatMessage] | None:
        """Publish what is new, and return the window; None if the messages must stay."""

        async def ask(messages: Sequence[ChatMessage]) -> list[ChatMessage] | None:
            events, digest = [], _hashed(session.key)
            for one in messages:
                body = _chat(one)
                # Of the list up to here: what is published again, after an error of the model or in
                # another process, is the same event.
                digest = _hashed([digest, body])
                if not {_KEPT, _MADE} & set(one.meta):
                    carry = [one.to_dict()]
                    events.append(turn_event(session.key, [body], event_id=digest, carry=carry))
            for batch in batches(events, most=BATCH_EVENTS):
                await session.publish_batch(batch)
            window = await self.fresh_window(session)
            carried = [entry.get("carry") for entry in window.entries or ()]
            return [
                _message(body, message)
                for body, message in zip(window.raw["messages"], carried, strict=True)
            ]

        return await self.attempt(lambda: messages, ask)


def _chat(message: ChatMessage) -> Chat:
    """Return a message as a chat message, in which all calls and results have ids."""
    result = message.tool_call_result
    if result is not None and not isinstance(result.result, str):
        parts = [one if isinstance(one, TextContent) else _named(one) for one in result.result]
        message = ChatMessage.from_tool(parts, origin=result.origin, error=result.error)
    body: Chat = message.to_openai_dict_format(require_tool_call_ids=False)
    for call, shown in zip(message.tool_calls, body.get("tool_calls") or (), strict=True):
        shown.setdefault("id", _id(call))
    if result is not None:
        body.setdefault("tool_call_id", _id(result.origin))
    return body


def _hashed(value: Any) -> str:
    told = json.dumps(value, sort_keys=True, default=str)
    return blake2b(told.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _named(content: Any) -> TextContent:
    """Return what stands for an image or a file in a result."""
    return TextContent(f"[media: {getattr(content, 'mime_type', None) or 'unknown'}]")


def _id(call: ToolCall) -> str:
    """Return an id for a call without one, which its result has as well: it names the call."""
    return _OWN_ID + _hashed([call.tool_name, call.arguments])


def _without_own_id(body: Chat, name: str) -> Chat:
    """Return a call or a result without the id that only Turnfold needed."""
    is_own = str(body.get(name)).startswith(_OWN_ID)
    return {key: value for key, value in body.items() if not (is_own and key == name)}


def _message(body: Chat | None, carried: Any) -> ChatMessage:
    if body is None:
        if not isinstance(carried, dict) or "role" not in carried:
            raise ValueError("another program publishes to this session")
        message = ChatMessage.from_dict(carried)
        message.meta[_KEPT] = True
        return message
    if body["role"] != "assistant" and not body.get("content"):
        body = {**body, "content": "(empty)"}
    body = {name: value for name, value in body.items() if name in _FIELDS}
    body = _without_own_id(body, "tool_call_id")
    if body.get("tool_calls"):
        body["tool_calls"] = [_without_own_id(call, "id") for call in body["tool_calls"]]
    message = ChatMessage.from_openai_dict_format(body)
    message.meta[_KEPT if isinstance(carried, dict) else _MADE] = {"strategy": "turnfold"}
    return message


_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id")
