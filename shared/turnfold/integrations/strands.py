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
from collections.abc import Container, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any
from uuid import uuid4

from turnfold.client import OutgoingEvent, PortalClient, Session, turn_event
from turnfold.client.events import retraction_event
from turnfold.integrations import requires
from turnfold.integrations.clients import carried_messages, newest_messages, publish_all
from turnfold.integrations.mirrored import WAIT_MS, Chat, MirroredWindows
from turnfold.integrations.strands_messages import (
    HeldMessage,
    Message,
    begins_window,
    block_texts,
    chat_of,
    is_changed,
    is_direct_call,
    is_left_out,
    is_made,
    is_message,
    longest_row,
    marked,
    parts_of,
    published_parts,
    rebuilt,
    recognized,
    texts_of,
)

with requires("strands"):
    from strands.agent.agent import Agent
    from strands.agent.conversation_manager import ConversationManager
    from strands.hooks.events import (
        AfterInvocationEvent,
        BeforeInvocationEvent,
        BeforeModelCallEvent,
    )
    from strands.hooks.registry import HookRegistry
    from strands.types.session import decode_bytes_values, encode_bytes_values

TAIL_MESSAGES = 1_000


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
        self._windows = MirroredWindows(agent_id, window=named, **options)
        self._small = MirroredWindows(agent_id, window={**named, "mode": "emergency"}, **options)
        self._is_reduced = False
        self._returned = 0
        self._session = self._windows.session(session_id)
        self._held: dict[str, HeldMessage] | None = None
        self._unnamed: set[str] = set()
        self._unconfirmed: list[str] = []
        self._is_asked = False
        self._ended: AfterInvocationEvent | None = None
        self._seen, self._written = set[str](), set[str]()

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        """Manage the messages before each call of the model."""
        super().register_hooks(registry, **kwargs)
        registry.add_callback(BeforeInvocationEvent, self._before_invocation)
        registry.add_callback(BeforeModelCallEvent, self._before_model_call)
        registry.add_callback(AfterInvocationEvent, self._after_invocation)

    def apply_management(self, agent: Agent, **kwargs: Any) -> None:  # noqa: ARG002  # of Strands
        """Publish what is new at the end of a run."""
        self._is_reduced = False
        self._windows.run(self._windows.attempt(lambda: agent.messages, self._publish))

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

    def _before_invocation(self, event: BeforeInvocationEvent) -> None:
        # Strands gives an id to each message next.
        self._name(event.agent.messages)
        # A hook may have the agent go on, in the user's name. Only now, because others may do so.
        # If an error ends that, a person asks next, with a state of another call.
        ended = self._ended
        self._is_asked = (
            ended is None
            or ended.resume is None
            or ended.invocation_state is not event.invocation_state
        )

    def _after_invocation(self, event: AfterInvocationEvent) -> None:
        self._ended = event

    def _name(self, messages: Sequence[Message]) -> None:
        if self._held is None:
            unnamed = [message for message in messages if not message.get("tracking_id")]
            self._unnamed.update(map(_named, unnamed))

    async def _before_model_call(self, event: BeforeModelCallEvent) -> None:
        names = {str(message.get("tracking_id")) for message in event.agent.messages}
        if not self._is_asked:
            # Within a run only programs write for the user: they ask for structured output.
            self._written = (self._written & names) | (names - self._seen)
        self._seen, self._is_asked = names, False
        await self._managed(event.agent, self._small if self._is_reduced else self._windows)

    async def _managed(self, agent: Agent, windows: MirroredWindows) -> None:
        shown = await windows.attempt(
            lambda: agent.messages, lambda messages: self._shown(messages, windows)
        )
        if shown is not None:
            before = _originals(agent.messages, self._held or {})
            messages, self._held = _messages(shown)
            after = _originals(messages, self._held)
            # The window may have messages that the agent and its session of Strands had not.
            self.removed_message_count += before - after - self._returned
            self._returned = max(0, -self.removed_message_count)
            self.removed_message_count += self._returned
            agent.messages[:] = messages
            self._seen |= set(self._held)

    async def _shown(
        self, messages: Sequence[Message], windows: MirroredWindows
    ) -> "list[_Entry] | None":
        """Publish, and return the window; None if the messages must stay."""
        await self._publish(messages)
        window = await windows.fresh_window(self._session)
        # The agent keeps nothing but the window.
        if not await self._is_confirmed():
            return None
        carried = zip(carried_messages(window), window.message_ids, strict=True)
        shown = [(body, message, name) for (body, message), name in carried]
        if not all(body or is_message(message) for body, message, _ in shown):
            windows.warn("another program publishes to this session; give each one of its own")
            return None
        return shown

    async def _publish(self, messages: Sequence[Message]) -> None:
        """Publish what is new or was changed since it was published."""
        if self._held is None:
            self._name(messages)
            self._held = await _restored(self._session, messages, self._unnamed)
        events, held = _changes(self._session, messages, self._held, self._written)
        await publish_all(self._session, events)
        # Only after the acknowledgement: if publishing fails, the next attempt repeats it.
        self._held |= held
        self._unconfirmed += [event.event_id for event in events]

    async def _is_confirmed(self) -> bool:
        """Return whether a fresh window may replace the messages, as far as they were published.

        Messages that are not stored are published again next time, unless they were erased.
        """
        asked, held = self._unconfirmed, self._held or {}
        missing = await self._windows.missing(asked) if asked else set()
        stored = [message for message in held.values() if not message.is_lost]
        others = {name for message in stored for name in message.event_ids}.difference(asked)
        # Events that were stored are missing only if their session was erased.
        is_erased = bool(missing and others and await self._windows.missing(others))
        self._unconfirmed = []
        if missing and not is_erased:
            self._windows.warn(f"{len(missing)} of {len(asked)} events are not stored")
            self._held = {
                name: message._replace(is_lost=message.is_lost or bool(missing & message.event_ids))
                for name, message in held.items()
            }
        return not missing or is_erased


_Entry = tuple[Chat | None, Any, Any]
"""A message of a window, None for one as it was published, what it carries, and its id."""


async def _restored(
    session: Session, messages: Sequence[Message], unnamed: Container[str]
) -> dict[str, HeldMessage]:
    """Return what is stored of messages that another program may have published.

    An application may have saved them without their ids: then their texts tell which they are.
    """
    held: dict[str, HeldMessage] = {}
    if len(messages) < 2:
        return held
    restored = [message for message in messages if _named(message) in unnamed]
    count = TAIL_MESSAGES if restored else sum(len(parts_of(message)) for message in messages)
    stored = await _stored(session, count)
    for message in messages:
        name, texts = _named(message), block_texts(message)
        if name in stored:
            known = texts_of([part for _, part in stored[name]])
            own = texts_of(parts_of(message))
            # A window may begin with the end of a message.
            is_same = is_made(message) or known[len(known) - len(texts) :] == own
            held[name] = HeldMessage(texts if is_same else known, stored[name])
    is_cut = sum(map(len, stored.values())) >= TAIL_MESSAGES
    others = [parts for name, parts in stored.items() if name not in held]
    return _found(restored, others, is_cut=is_cut) | held if restored else held


def _found(
    messages: Sequence[Message], stored: Sequence[list[tuple[str, Message]]], *, is_cut: bool
) -> dict[str, HeldMessage]:
    """Return what is stored of messages without ids: the longest row that both lists have.

    It begins with the first message. Any row will do if they begin as a window does: nothing of a
    window before a stored message is new. Without a row all are published. Stored messages after
    the row stay, although the host has lost them.
    """
    firsts = len(messages) if begins_window(messages[0]) else 1
    ours = [recognized(parts_of(message)) for message in messages]
    stored = [parts for parts in stored if not is_left_out([part for _, part in parts], ours)]
    theirs = [recognized([part for _, part in parts]) for parts in stored]
    size, at, place = longest_row(ours, theirs, firsts, is_cut=is_cut)
    known = [*([[]] * place), *stored[at : at + size]]
    pairs = zip(messages, known, strict=False)
    return {_named(message): HeldMessage(block_texts(message), parts) for message, parts in pairs}


async def _stored(session: Session, count: int) -> dict[str, list[tuple[str, Message]]]:
    """Return the newest stored messages of Strands by their ids."""
    stored: dict[str, list[tuple[str, Message]]] = {}
    for part in await newest_messages(session, min(count, TAIL_MESSAGES), wait_ms=WAIT_MS):
        if is_message(part.carry) and part.carry.get("tracking_id"):
            stored.setdefault(part.carry["tracking_id"], []).append((part.message_id, part.carry))
    return stored


def _named(message: Message) -> str:
    """Return the id of a message, which has one from now on."""
    if not message.get("tracking_id"):
        message["tracking_id"] = str(uuid4())
    return str(message["tracking_id"])


def _changes(
    session: Session,
    messages: Sequence[Message],
    known: Mapping[str, HeldMessage],
    written: Container[str],
) -> tuple[list[OutgoingEvent], dict[str, HeldMessage]]:
    """Return the events that bring a session up to messages, and what is held of them then.

    A program wrote the messages of the user whose ids are in `written`.

    From the first message on that the host changed, all are published anew, in their order.
    Messages between them that the window left out stay, before those that are published anew.
    """
    texts = [block_texts(message) for message in messages]
    before = [known.get(_named(message)) for message in messages]
    pairs = enumerate(zip(before, texts, strict=True))
    start = next((place for place, pair in pairs if is_changed(*pair)), len(messages))
    stale = [message_id for old in before[start:] if old for message_id, _ in old.stored]
    # Before the new events: a retraction concerns only what stands before it in the stream.
    events = [retraction_event(session.key, stale)] if stale else []
    held: dict[str, HeldMessage] = {}
    for place, message in enumerate(messages):
        old = before[place]
        if old is not None and place < start:
            continue
        parts = published_parts(message, old)
        ids: list[str] = []
        if parts:
            event = _event(session, message, parts, old, is_meta=_named(message) in written)
            events.append(event)
            ids = [f"{event.event_id}#{index}" for index in range(len(parts))]
        held[_named(message)] = HeldMessage(texts[place], list(zip(ids, parts, strict=True)))
    return events, held


def _originals(messages: Sequence[Message], held: Mapping[str, HeldMessage]) -> int:
    """Return how many messages of Strands stand in these, whole or shortened."""
    known = [(held.get(_named(message)), message) for message in messages]
    # Each message of Strands is one event.
    return sum(len(old.event_ids) if old else not is_made(message) for old, message in known)


def _event(
    session: Session,
    message: Message,
    parts: Sequence[Message],
    old: HeldMessage | None,
    *,
    is_meta: bool,
) -> OutgoingEvent:
    # An event that is published again, also by another program, is the same one, unless it was
    # retracted, or the session is another one: agents may begin with the same messages.
    content = [parts, old.stored[0][0]] if old and old.stored else encode_bytes_values(message)
    text = json.dumps([session.key, content], sort_keys=True)
    return turn_event(
        session.key,
        [chat_of(part) for part in parts],
        event_id=blake2b(text.encode(), digest_size=16).hexdigest(),
        carry=parts,
        is_meta=is_meta or is_direct_call(message),
    )


def _messages(shown: Iterable[_Entry]) -> tuple[list[Message], dict[str, HeldMessage]]:
    """Return the messages of a window, and what is stored of them.

    Neighbors of one role are one message.
    """
    messages: list[Message] = []
    stored: list[list[tuple[str, Message]]] = []
    for body, carried, message_id in shown:
        message: Message = decode_bytes_values(carried) if body is None else rebuilt(body)
        own = [(str(message_id), carried)] if is_message(carried) else []
        if own and carried.get("tracking_id"):
            message["tracking_id"] = carried["tracking_id"]
        _named(message)
        if not messages or messages[-1]["role"] != message["role"]:
            messages.append(message)
            stored.append(own)
            continue
        last = messages[-1]
        stored[-1] += own
        last["content"] = [*last["content"], *message["content"]]
        if last["tracking_id"] != message["tracking_id"] or is_made(message):
            last["metadata"] = marked(last)
    return messages, {
        message["tracking_id"]: HeldMessage(block_texts(message), ids)
        for message, ids in zip(messages, stored, strict=True)
    }
