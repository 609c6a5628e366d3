"""A session as an agent uses it: publish, query, inspect and control one conversation."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Literal

from turnfold.client.events import (
    OutgoingEvent,
    Receipt,
    new_event_id,
    result_event,
    retraction_event,
    session_key,
    turn_event,
    usage_event,
)
from turnfold.client.replies import StoredMessage, Summary, Window, read
from turnfold.client.session_history import SessionHistory, wait_seconds
from turnfold.contracts.subjects import ID_MAX_BYTES, agent_subject
from turnfold.errors import UnknownSession
from turnfold.messages import Json, SessionId, ShapeName, ToolFormat, WindowFormat

POP_SECONDS = 8.0
"""How long a worker waits at most for the events before."""


class Session(SessionHistory):
    """One conversation of an agent.

    Windows include everything that this client has published before. Every method raises the
    subclasses of `turnfold.errors.RequestError`, among them `Unavailable` if no service answers.
    """

    def __repr__(self) -> str:
        return f"Session({self.key.agent_id!r}, {self.key.session_id!r})"

    def subsession(self, name: str | None = None) -> "Session":
        """Return the session of a sub-agent: another conversation of the same agent.

        Its id is this session's id, a slash and the name. Without a name, each call makes a new
        one. If the result is too long for an id, this session's id is replaced by its hash.

        Raises:
            BadRequest: the name cannot be part of an id.
        """
        own, name = self.key.session_id, name if name is not None else new_event_id()
        # With the lone surrogates of a name, which is then refused.
        if len(f"{own}/{name}".encode(errors="surrogatepass")) > ID_MAX_BYTES:
            own = SessionId(blake2b(own.encode(), digest_size=16).hexdigest())
        return Session(self._client, session_key(self.key.agent_id, f"{own}/{name}"))

    # --- publish

    async def turn_completed(
        self,
        messages: Sequence[Json],
        *,
        model: str | None = None,
        usage: Json | None = None,
        is_meta: bool = False,
        metadata: Json | None = None,
        event_id: str | None = None,
        shape: ShapeName | None = None,
        carry: Sequence[Any] | None = None,
    ) -> Receipt:
        """Publish the OpenAI chat messages of a turn; return when the stream has stored them.

        With `shape`, publish items of the Responses API or messages of the Anthropic API instead.
        Publish the items of one response together: they stay or leave windows as one.

        `usage` is the provider's usage report. `is_meta` marks user messages that a program wrote;
        `"is_meta": True` beside its role marks a single message. By default the event gets a new
        id. Pass your own to publish the same event again after an error.

        `carry` has one JSON value or None for each message. It is given back as it is in
        `StoredMessage.carry` and `Window.entries`, and never counted, searched or shown to a model.
        """
        return await self._client.publish(
            turn_event(
                self.key,
                messages,
                model=model,
                usage=usage,
                is_meta=is_meta,
                metadata=metadata,
                event_id=event_id,
                shape=shape,
                carry=carry,
            )
        )

    async def tool_result(
        self,
        tool_call_id: str,
        content: Any,
        *,
        name: str | None = None,
        is_error: bool = False,
        metadata: Json | None = None,
        event_id: str | None = None,
        carry: Any = None,
    ) -> Receipt:
        """Publish the result of a tool call; the call itself may be published later.

        `carry` is a JSON value that is given back as it is; see `turn_completed`.
        """
        return await self._client.publish(
            result_event(
                self.key,
                tool_call_id,
                content,
                name=name,
                is_error=is_error,
                metadata=metadata,
                event_id=event_id,
                carry=carry,
            )
        )

    async def usage_reported(
        self,
        model: str,
        *,
        usage: Json | None = None,
        message_id: str | None = None,
        limit_tokens: int | None = None,
        is_overflow: bool = False,
        event_id: str | None = None,
    ) -> Receipt:
        """Publish what a call revealed about a model's window; later windows follow it.

        `usage` is the provider's usage report of the call, and `message_id` its answer.
        `limit_tokens` is the size that the provider named for the window. `is_overflow` means that
        the call failed because it was too long; it makes a compaction due.
        """
        return await self._client.publish(
            usage_event(
                self.key,
                model,
                usage=usage,
                message_id=message_id,
                limit_tokens=limit_tokens,
                is_overflow=is_overflow,
                event_id=event_id,
            )
        )

    async def publish_batch(self, events: Iterable[OutgoingEvent]) -> list[Receipt]:
        """Publish at most 1,000 events of this session, all or none; see `Client.publish_batch`."""
        return await self._client.publish_batch(events)

    async def erased_events(self, event_ids: Iterable[str]) -> set[str]:
        """Return which of at most 1,000 events were erased: they are not stored again."""
        subject = agent_subject("events.known", self.key.agent_id)
        answer = await self._client.ask(subject, {"event_ids": list(event_ids)})
        # An older query service does not tell them.
        return read(lambda fields: set(fields.get("erased", ())), answer)

    # --- take back

    async def retract(
        self, *message_ids: str, after: str | None = None, event_id: str | None = None
    ) -> Receipt:
        """Retract these messages, or all after one; a result follows its call.

        Only messages that were published before are retracted; unknown ids have no effect. No
        window, search, count or summary includes a retracted message any more.
        """
        event = retraction_event(self.key, message_ids, after=after, event_id=event_id)
        return await self._client.publish(event)

    async def clear(self, *, event_id: str | None = None) -> Receipt:
        """Retract all messages. Unlike `erase`, this keeps the originals in the history."""
        return await self._client.publish(
            retraction_event(self.key, is_all=True, event_id=event_id)
        )

    async def pop(self, count: int = 1) -> list[StoredMessage]:
        """Retract the newest messages and return them, in order; of several callers, one gets each.

        Fewer are returned if the session has no more, or if they are very long.

        Raises:
            Unavailable: events of the session are still in the buffer; they are newer.
        """
        await self.flush()
        try:
            answer = await self.ask("session.pop", {"count": count}, patience_seconds=POP_SECONDS)
        except UnknownSession:
            return []
        return [read(StoredMessage.of, entry) for entry in answer["messages"]]

    # --- ask

    async def context(  # noqa: PLR0913  # the request has these fields
        self,
        *,
        max_tokens: int | None = None,
        model: str | None = None,
        system_tokens: int | None = None,
        tools_tokens: int | None = None,
        max_output_tokens: int | None = None,
        max_messages: int | None = None,
        mode: Literal["normal", "emergency"] | None = None,
        format: WindowFormat | None = None,
        placement: Literal["separate", "system", "message", "user"] | None = None,
        query: str | None = None,
        recall: Json | Literal[False] | None = None,
        as_of: str | int | None = None,
        entries: bool | None = None,
        bodies: Literal["changed"] | None = None,
        follow_budget: bool | None = None,
        after: int | Literal["latest"] | None = None,
        wait_ms: int | None = None,
        known: Window | None = None,
    ) -> Window:
        """Return the model's next input: the summary and the messages after it.

        Sizes are tokens. `after` is a freshness token: by default that of this client's newest
        event, with `latest` that of any client's. The service waits at most `wait_ms` (limit 5,000)
        until it is stored. Unless `after` is a number, the client waits before for the session's
        events in its buffer, and a window without them is not fresh. `known` is an earlier window
        of the same options, returned itself if nothing has changed. With `format` "anthropic",
        messages have the shape of that API, and `Window.system` the system text; with "responses"
        they are items. `as_of` is a version, message id or RFC 3339 time. `recall` says what to
        quote (`query`, `tokens`, `share`, or False). With `entries`, `Window.entries` has the form
        of each message; with `bodies` "changed", None stands for messages shown as published.
        If `follow_budget` is false, nothing is evicted for this budget.

        Raises:
            CannotFit: no window is that small. Retry with `needed_tokens` or `needed_messages`.
        """
        fields: dict[str, Any] = {
            "max_tokens": max_tokens,
            "model": model,
            "system_tokens": system_tokens,
            "tools_tokens": tools_tokens,
            "max_output_tokens": max_output_tokens,
            "max_messages": max_messages,
            "mode": mode,
            "format": format,
            "placement": placement,
            "query": query,
            "recall": recall,
            "as_of": None if as_of is None else str(as_of),
            "entries": entries,
            "bodies": bodies,
            "follow_budget": follow_budget,
        }
        return await self._window(fields, after, wait_ms, known)

    async def _window(
        self,
        fields: Json,
        after: int | Literal["latest"] | None,
        wait_ms: int | None,
        known: Window | None,
    ) -> Window:
        is_flushed = True
        if not isinstance(after, int):
            is_flushed, wait_ms = await self._flushed(wait_ms)
        # An agent sees its own last turn without naming it.
        after = after if after is not None else self._client.newest_seq(self.key)
        etag = known.etag if known is not None else None
        # Sequences begin at 1: with 0 nothing was published here, and there is nothing to wait for.
        answer = await self.ask(
            "context.get",
            {**fields, "after": after or None, "wait_ms": wait_ms, "etag": etag or None},
            patience_seconds=wait_seconds(wait_ms),
        )
        if known is not None and answer.get("not_modified"):
            window = known
        else:
            window = read(Window.of, answer)
        # Without its etag: the next one may be fresh although nothing was stored meanwhile.
        return window if is_flushed else replace(window, fresh=False, etag="")

    async def status(self) -> dict[str, Any]:
        """Return the session's counters: messages by state, tokens, policy and version in force."""
        return await self.ask("session.get")

    async def tools(self, *, format: ToolFormat = "openai") -> list[dict[str, Any]]:
        """Return definitions of tools with which a model looks things up in this session.

        Each has `name`, `description`, and `parameters` or with "anthropic" `input_schema`.
        """
        tools: list[dict[str, Any]] = (await self.ask("session.tools", {"format": format}))["tools"]
        return tools

    async def run_tool(self, name: str, arguments: Json) -> str:
        """Run one of these tools, and return its result for the model.

        Raises:
            BadRequest: there is no such tool, or the arguments are wrong. The text is meant for
                the model.
        """
        asked = {"name": name, "arguments": dict(arguments)}
        content: str = (await self.ask("session.tool", asked))["content"]
        return content

    # --- steer

    async def compact(self) -> str | int | None:
        """Request a compaction now; return its id, or None if there is nothing to evict."""
        compaction_id: str | int | None = (await self.ask("compaction.request"))["compaction_id"]
        return compaction_id

    async def restore(self, compaction_id: str | int) -> dict[str, Any]:
        """Undo a compaction: its messages are live again.

        Raises:
            Conflict: a newer version covers part of it. Restore that one first.
        """
        return await self.ask("compaction.restore", {"compaction_id": compaction_id})

    async def regenerate(
        self, *, model: str | None = None, style: str | None = None, from_version: int | None = None
    ) -> dict[str, Any]:
        """Request a new summary, written in the background.

        The old version stays in force until the new one is promoted.
        """
        return await self.ask(
            "summary.regenerate", {"model": model, "style": style, "from_version": from_version}
        )

    async def promote(self, version: int) -> Summary:
        """Put a version in force."""
        return read(Summary.of, await self.ask("summary.promote", {"version": version}))

    async def policy(
        self,
        *,
        mode: str | None = None,
        preset: str | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Set the compaction policy of this session.

        `mode` is off, manual or auto. `preset` is a policy's name. `overrides` are settings that
        differ from it.
        """
        return await self.ask(
            "session.policy", {"mode": mode, "preset": preset, "overrides": overrides}
        )

    async def erase(self) -> dict[str, Any]:
        """Erase the session and everything derived from it; this cannot be undone.

        Raises:
            Unavailable: events of the session are still in the buffer; they would be stored later.
        """
        await self.flush()
        return await self.ask("session.erase")
