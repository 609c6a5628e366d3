"""A conversation manager of Strands Agents: the agent's messages are a window of Turnfold.

```python
manager = TurnfoldConversationManager("support", "user-42", max_tokens=8_000)
agent = Agent(conversation_manager=manager)
```

Before each call of the model, what is new in the agent's messages is published, and they are
replaced by the window: the summary, and the newest messages.
"""

# pyright takes `strands` for this file.

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any
from uuid import uuid4

from turnfold.client import OutgoingEvent, PortalClient, Session, turn_event
from turnfold.client.events import BATCH_EVENTS, batches
from turnfold.integrations import requires
from turnfold.integrations.mirrored import Chat, MirroredWindows, call_arguments, content_text

with requires("strands"):
    from strands.agent.agent import Agent
    from strands.agent.conversation_manager import ConversationManager
    from strands.hooks.events import BeforeModelCallEvent
    from strands.hooks.registry import HookRegistry
    from strands.types.session import decode_bytes_values, encode_bytes_values

_MADE = "turnfold"
"""The mark of messages that Turnfold wrote or shortened: they are not published."""

Message = dict[str, Any]


class TurnfoldConversationManager(ConversationManager):  # type: ignore[misc]  # without types here
    """Keeps an agent's conversation in Turnfold, and a window of it in the agent.

    `client` is a `PortalClient`, or a URL of NATS (default: `TURNFOLD_NATS_URL`). `max_tokens` is
    the budget of the window, without system prompt and tools. Without it, the `model` decides: by
    default the one that was last reported. `window` has further options of
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
        max_tokens: int | None = None,
        model: str | None = None,
        window: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        options: dict[str, Any] = {"client": client, "max_tokens": max_tokens}
        named = {"model": model, **(window or {})}
        self._windows = _Windows(agent_id, window=named, **options)
        self._small = _Windows(agent_id, window={**named, "mode": "emergency"}, **options)
        self._is_reduced = False
        self._session = self._windows.session(session_id)
        self._published: set[str] = set()

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        """Manage the messages before each call of the model."""
        super().register_hooks(registry, **kwargs)
        registry.add_callback(BeforeModelCallEvent, self._before_model_call)

    def apply_management(self, agent: Agent, **kwargs: Any) -> None:  # noqa: ARG002  # of Strands
        """Publish what is new at the end of a run."""
        self._is_reduced = False
        self._windows.run(self._windows.recorded(agent.messages, self._publish))

    def reduce_context(
        self,
        agent: Agent,
        e: Exception | None = None,
        **kwargs: Any,  # noqa: ARG002  # of Strands
    ) -> None:
        """Replace the messages by a window that is as small as possible, until the run ends.

        Raises:
            Exception: `e`, if there is no smaller one.
        """
        before = len(json.dumps(encode_bytes_values(agent.messages)))
        self._is_reduced = True
        self._windows.run(self._managed(agent, self._small))
        if e is not None and len(json.dumps(encode_bytes_values(agent.messages))) >= before:
            raise e

    async def _before_model_call(self, event: BeforeModelCallEvent) -> None:
        await self._managed(event.agent, self._small if self._is_reduced else self._windows)

    async def _managed(self, agent: Agent, windows: "_Windows") -> None:
        shown = await windows.after(agent.messages, self._publish, self._session)
        if shown is not None:
            messages = _messages(shown)
            self.removed_message_count += max(0, _originals(agent.messages) - _originals(messages))
            agent.messages[:] = messages

    async def _publish(self, messages: Sequence[Message]) -> None:
        """Publish the messages that were not published yet."""
        events: dict[str, OutgoingEvent] = {}
        for message in messages:
            tracking_id = message.setdefault("tracking_id", str(uuid4()))
            if tracking_id not in self._published and not _is_made(message):
                events[tracking_id] = _event(self._session, message)
        for batch in batches(events.values(), most=BATCH_EVENTS):
            await self._session.publish_batch(batch)
        self._published.update(events)


class _Windows(MirroredWindows):
    """Windows of a session to which messages are only added."""

    async def recorded(self, messages: Sequence[Message], publish: "_Publish") -> None:
        """Publish."""
        await self.attempt(lambda: messages, publish)

    async def after(
        self, messages: Sequence[Message], publish: "_Publish", session: Session
    ) -> "list[_Entry] | None":
        """Publish, and return the window; None if the messages must stay."""

        async def ask(messages: Sequence[Message]) -> list[_Entry] | None:
            await publish(messages)
            window = await self.fresh_window(session)
            carried = [entry.get("carry") for entry in window.entries or ()]
            shown = list(zip(window.raw["messages"], carried, strict=True))
            if not all(body or _is_message(message) for body, message in shown):
                self.warn("another program publishes to this session; give each one of its own")
                return None
            return shown

        return await self.attempt(lambda: messages, ask)


_Publish = Callable[[Sequence[Message]], Awaitable[None]]
_Entry = tuple[Chat | None, Any]
"""A message of a window, None for one as it was published, and what it carries."""


def _event(session: Session, message: Message) -> OutgoingEvent:
    """Return the event of a message: each result of a tool is a chat message."""
    encoded = encode_bytes_values(message)
    others = [block for block in encoded["content"] if "toolResult" not in block]
    groups = [[block] for block in encoded["content"] if "toolResult" in block]
    groups += [others] if others or not groups else []
    # An event that is published again, also by another program, is the same one.
    text = json.dumps(encoded, sort_keys=True)
    return turn_event(
        session.key,
        [_chat(str(message["role"]), blocks) for blocks in groups],
        event_id=blake2b(text.encode(), digest_size=16).hexdigest(),
        carry=[{**encoded, "content": blocks} for blocks in groups],
    )


def _chat(role: str, blocks: Sequence[Mapping[str, Any]]) -> Chat:
    if blocks and "toolResult" in blocks[0]:
        return _result(blocks[0]["toolResult"])
    parts = [part for block in blocks if (part := _part(block)) is not None]
    calls = [_call(block["toolUse"]) for block in blocks if "toolUse" in block]
    # Reasoning counts as text.
    others = [block for block in blocks if not _CHAT_BLOCKS & set(block)]
    body = {"role": role, "content": _content(parts)}
    return body | ({"tool_calls": calls} if calls else {}) | ({"blocks": others} if others else {})


def _result(result: Mapping[str, Any]) -> Chat:
    parts = [
        _part(part) or {"type": "text", "text": json.dumps(part)} for part in result["content"]
    ]
    if all(part["type"] == "text" for part in parts):
        parts = [{"type": "text", "text": "\n".join(part["text"] for part in parts)}]
    body = {"role": "tool", "tool_call_id": result["toolUseId"], "content": _content(parts)}
    return body | ({"is_error": True} if result.get("status") == "error" else {})


def _part(block: Mapping[str, Any]) -> Chat | None:
    """Return a text or a file as a part of a content; None for other blocks."""
    if "text" in block:
        return {"type": "text", "text": block["text"]}
    for name, kind in _FILES.items():
        if name in block:
            # Without its bytes, which the event carries: a file counts as one, not as text.
            file = block[name]
            named = {"filename": file["name"]} if "name" in file else {}
            return {"type": kind, "format": file.get("format"), **named}
    return None


def _content(parts: Sequence[Chat]) -> Any:
    return parts[0]["text"] if len(parts) == 1 and "text" in parts[0] else list(parts) or ""


_FILES = {"image": "image", "document": "file", "video": "video", "audio": "audio"}
"""Blocks of Strands, and parts of a chat message."""
_CHAT_BLOCKS = {"text", "toolUse", "cachePoint", *_FILES}


def _call(use: Mapping[str, Any]) -> Chat:
    function = {"name": use["name"], "arguments": json.dumps(use["input"])}
    return {"id": use["toolUseId"], "type": "function", "function": function}


def _messages(shown: Iterable[_Entry]) -> list[Message]:
    """Return the messages of a window; neighbors of one role are one message."""
    messages: list[Message] = []
    for body, carried in shown:
        message: Message
        if body is None:
            message = decode_bytes_values(carried)
        else:
            message = _made(body)
            if isinstance(carried, dict) and "tracking_id" in carried:
                message["tracking_id"] = carried["tracking_id"]
        if not messages or messages[-1]["role"] != message["role"]:
            messages.append(message)
            continue
        last = messages[-1]
        last["content"] = [*last["content"], *message["content"]]
        if last.get("tracking_id") != message.get("tracking_id") or _is_made(message):
            last["metadata"] = _marked(last)
    return messages


def _made(body: Chat) -> Message:
    text = content_text(body.get("content"))
    blocks: list[Chat] = []
    if body["role"] == "tool":
        status = "error" if body.get("is_error") else "success"
        result = {"toolUseId": body["tool_call_id"], "status": status, "content": [{"text": text}]}
        blocks.append({"toolResult": result})
    elif text:
        blocks.append({"text": text})
    for call in body.get("tool_calls") or ():
        function = call["function"]
        use = {"toolUseId": call["id"], "name": function["name"]}
        blocks.append({"toolUse": {**use, "input": call_arguments(function["arguments"])}})
    role = "assistant" if body["role"] == "assistant" else "user"
    return {"role": role, "content": blocks or [{"text": "(empty)"}], "metadata": _marked({})}


def _is_message(carried: object) -> bool:
    return isinstance(carried, dict) and {"role", "content"} <= set(carried)


def _marked(message: Message) -> dict[str, Any]:
    metadata = message.get("metadata") or {}
    return {**metadata, "custom": {**(metadata.get("custom") or {}), _MADE: True}}


def _is_made(message: Message) -> bool:
    return bool(((message.get("metadata") or {}).get("custom") or {}).get(_MADE))


def _originals(messages: Iterable[Message]) -> int:
    return sum(not _is_made(message) for message in messages)
