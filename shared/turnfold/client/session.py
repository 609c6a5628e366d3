"""A session as an agent uses it: publish, query, inspect and control one conversation."""

from collections.abc import AsyncIterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal, Protocol

from turnfold.client.events import (
    OutgoingEvent,
    Receipt,
    new_event_id,
    result_event,
    session_key,
    turn_event,
    usage_event,
)
from turnfold.client.replies import HistoryPage, StoredMessage, Summary, Window, read
from turnfold.contracts.subjects import session_subject
from turnfold.errors import TooLarge
from turnfold.messages import Json, SessionId, SessionKey

CONTEXT_WAIT_MS = 250
PAGE_MESSAGES = 200
MAX_ID_BYTES = 256


class SessionTransport(Protocol):
    """The part of `Client` that a session uses."""

    def newest_seq(self, key: SessionKey) -> int:
        """Return the freshness token of the newest event published for the session, or 0."""
        ...

    async def publish(self, event: OutgoingEvent) -> Receipt:
        """Publish one event."""
        ...

    async def ask(
        self, subject: str, request: Json, *, patience_seconds: float = 0.0
    ) -> dict[str, Any]:
        """Send one request and return its answer."""
        ...


class Session:
    """One conversation of an agent.

    Windows include everything that this client has published before. Every method raises the
    subclasses of `turnfold.errors.RequestError`, among them `Unavailable` if no service answers.
    """

    def __init__(self, client: SessionTransport, key: SessionKey) -> None:
        self._client = client
        self.key = key

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
        if len(f"{own}/{name}".encode()) > MAX_ID_BYTES:
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
    ) -> Receipt:
        """Publish the OpenAI chat messages of a turn; return when the stream has stored them.

        `usage` is the provider's usage report. `is_meta` marks user messages that a program wrote;
        `"is_meta": True` beside its role marks a single message. By default the event gets a new
        id. Pass your own to publish the same event again after an error.
        """
        fields: dict[str, Any] = {
            "model": model,
            "usage": usage,
            "is_meta": is_meta,
            "metadata": metadata,
            "event_id": event_id,
        }
        return await self._client.publish(turn_event(self.key, messages, **fields))

    async def tool_result(
        self,
        tool_call_id: str,
        content: Any,
        *,
        name: str | None = None,
        is_error: bool = False,
        metadata: Json | None = None,
        event_id: str | None = None,
    ) -> Receipt:
        """Publish the result of a tool call; the call itself may be published later."""
        fields: dict[str, Any] = {
            "name": name,
            "is_error": is_error,
            "metadata": metadata,
            "event_id": event_id,
        }
        return await self._client.publish(result_event(self.key, tool_call_id, content, **fields))

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
        fields: dict[str, Any] = {
            "usage": usage,
            "message_id": message_id,
            "limit_tokens": limit_tokens,
            "is_overflow": is_overflow,
            "event_id": event_id,
        }
        return await self._client.publish(usage_event(self.key, model, **fields))

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
        format: Literal["openai", "anthropic"] | None = None,
        placement: Literal["separate", "system", "message", "user"] | None = None,
        query: str | None = None,
        recall: Json | Literal[False] | None = None,
        as_of: str | int | None = None,
        after: int | None = None,
        wait_ms: int | None = None,
        known: Window | None = None,
    ) -> Window:
        """Return the model's next input: the summary and the messages after it.

        Sizes are tokens. `after` is a freshness token. By default it is that of the newest event
        that this client published for the session. The service waits at most `wait_ms` (limit
        5,000) until that event is stored. `known` is a window from an earlier call with the same
        options: it is returned itself if nothing has changed. With `format` "anthropic", messages
        have the shape of that API, and the system text is in `Window.system`. `as_of` returns an
        earlier window: by summary version, message id or RFC 3339 time. `recall` chooses the
        earlier messages to quote (`query`, `tokens`, `share`): by default those that matter for the
        newest request, with False none.

        Raises:
            CannotFit: no valid window is that small. Retry with its `needed_tokens` or
                `needed_messages`.
        """
        # An agent sees its own last turn without naming it.
        after = after if after is not None else self._client.newest_seq(self.key)
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
            "after": after or None,
            "wait_ms": wait_ms,
            "etag": known.etag if known is not None else None,
        }
        wait_seconds = (wait_ms if wait_ms is not None else CONTEXT_WAIT_MS) / 1000
        answer = await self.ask("context.get", fields, patience_seconds=wait_seconds)
        if known is not None and answer.get("not_modified"):
            return known
        return read(Window.of, answer)

    async def status(self) -> dict[str, Any]:
        """Return the session's counters: messages by state, tokens, policy and version in force."""
        return await self.ask("session.get")

    async def tools(
        self, *, format: Literal["openai", "anthropic"] = "openai"
    ) -> list[dict[str, Any]]:
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

    # --- look back

    async def history(
        self,
        *,
        after_position: int | None = None,
        limit: int | None = None,
        message_ids: Sequence[str] | None = None,
    ) -> HistoryPage:
        """Return a page of the original messages, or those with these ids, in any state."""
        wanted = list(message_ids) if message_ids is not None else None
        return read(
            HistoryPage.of,
            await self.ask(
                "history.get",
                {"after_position": after_position, "limit": limit, "message_ids": wanted},
            ),
        )

    async def originals(self) -> AsyncIterator[StoredMessage]:
        """Iterate over all messages of the session, oldest first.

        Messages are fetched in pages. A page that is too large is requested again with a smaller
        limit.
        """
        position: int | None = None
        limit = PAGE_MESSAGES
        while True:
            try:
                page = await self.history(after_position=position, limit=limit)
            except TooLarge:
                if limit == 1:
                    raise
                # One long message may exceed an answer together with others, but not alone.
                limit = max(limit // 4, 1)
                continue
            for stored in page.messages:
                yield stored
            if page.next_position is None or not page.messages:
                return
            position = page.next_position

    async def search(self, q: str, *, limit: int | None = None) -> list[StoredMessage]:
        """Return the messages that match a query, best first, including evicted ones."""
        return [
            read(StoredMessage.of, hit)
            for hit in (await self.ask("history.search", {"q": q, "limit": limit}))["hits"]
        ]

    async def summaries(self) -> list[Summary]:
        """Return all versions of the summary."""
        return [read(Summary.of, entry) for entry in (await self.ask("summary.list"))["summaries"]]

    async def summary(self, version: int) -> Summary:
        """Return one version of the summary."""
        return read(Summary.of, await self.ask("summary.get", {"version": version}))

    async def expand(
        self, version: int, *, entry: int | None = None, line: int | None = None
    ) -> dict[str, Any]:
        """Return the source messages of a ledger entry or of a line of the summary.

        `entry` and `line` count from 0.
        """
        return await self.ask("summary.expand", {"version": version, "entry": entry, "line": line})

    async def audit(
        self, *, after: int | None = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Return audit rows in the order in which they were written, after the row `after`."""
        rows: list[dict[str, Any]] = (
            await self.ask("audit.list", {"after": after, "limit": limit})
        )["audit"]
        return rows

    async def audit_trail(self) -> AsyncIterator[dict[str, Any]]:
        """Iterate over all audit rows of the session, fetched in pages."""
        after: int | None = None
        while rows := await self.audit(after=after, limit=PAGE_MESSAGES):
            for row in rows:
                yield row
            after = rows[-1]["audit_id"]

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
        """Erase the session and everything derived from it; this cannot be undone."""
        return await self.ask("session.erase")

    async def ask(
        self, name: str, fields: Json | None = None, *, patience_seconds: float = 0.0
    ) -> dict[str, Any]:
        """Send any request of the contract about this session and return the answer unchanged.

        `name` is the request's name, such as `session.get`.
        """
        return await self._client.ask(
            session_subject(name, self.key), fields or {}, patience_seconds=patience_seconds
        )
