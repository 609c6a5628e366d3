"""One conversation as an agent uses it: publish, ask, and look back."""

from collections.abc import AsyncIterator, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal

from turnfold.client.events import Receipt, new_event_id, result_event, turn_event
from turnfold.client.replies import HistoryPage, StoredMessage, Summary, Window, read
from turnfold.contracts.subjects import session_subject
from turnfold.errors import TooLarge
from turnfold.messages import Json, SessionId, SessionKey

if TYPE_CHECKING:
    from turnfold.client.client import Client

CONTEXT_WAIT_MS = 250
PAGE = 200
MOST_ID_BYTES = 256


class Session:
    """A conversation of an agent. What was published through this client is in the windows it asks for.

    Every method raises the errors of `turnfold.errors.RequestError`; `Unavailable` when nobody answers.
    """

    def __init__(self, client: "Client", key: SessionKey) -> None:
        self._client = client
        self.key = key

    def __repr__(self) -> str:
        return f"Session({self.key.agent_id!r}, {self.key.session_id!r})"

    def subsession(self, name: str | None = None) -> "Session":
        """The session of a sub-agent of this one: another conversation of the same agent, by default a new one each time.

        Its id is this session's, a slash and the name; where that is too long for an id, this session's is digested.

        Raises:
            BadRequest: the name is no part of an id.
        """
        own, name = self.key.session_id, name if name is not None else new_event_id()
        if len(f"{own}/{name}".encode()) > MOST_ID_BYTES:
            own = SessionId(blake2b(own.encode(), digest_size=16).hexdigest())
        return self._client.session(self.key.agent_id, f"{own}/{name}")

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
        """Publish the OpenAI chat messages of a turn; returns when the stream has them.

        `usage` is what the provider reported, `is_meta` says that the user messages were made by a machine. The event
        id is made here; give one of your own to publish the same event again after an error.
        """
        given: dict[str, Any] = {
            "model": model,
            "usage": usage,
            "is_meta": is_meta,
            "metadata": metadata,
            "event_id": event_id,
        }
        return await self._client.publish(turn_event(self.key, messages, **given))

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
        """Publish what a tool returned as soon as it did; the call itself may be published later."""
        given: dict[str, Any] = {
            "name": name,
            "is_error": is_error,
            "metadata": metadata,
            "event_id": event_id,
        }
        return await self._client.publish(result_event(self.key, tool_call_id, content, **given))

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
        as_of: str | int | None = None,
        after: int | None = None,
        wait_ms: int | None = None,
        known: Window | None = None,
    ) -> Window:
        """What the model should see next: the summary, and the messages after it.

        Sizes are tokens. `after` is a freshness token; without it, it is that of the newest event published for this
        session through this client, and the answer waits up to `wait_ms` (at most 5,000) until that event is stored.
        `known` is a window asked for in the same way before: it comes back itself when nothing has changed.
        `format` "anthropic" puts the messages into the shape of that interface and the system text into `Window.system`.
        `as_of` shows the window as it was: a version of the summary, a message id, or a time of RFC 3339.

        Raises:
            CannotFit: nothing sendable is as small as that; ask again with its `needed_tokens` or `needed_messages`.
        """
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
        """The counters of the session: its messages by state, tokens, policy and the version in force."""
        return await self.ask("session.get")

    # --- look back

    async def history(
        self,
        *,
        after_position: int | None = None,
        limit: int | None = None,
        message_ids: Sequence[str] | None = None,
    ) -> HistoryPage:
        """A page of the originals, or the ones with these ids, whatever their state."""
        wanted = list(message_ids) if message_ids is not None else None
        return read(
            HistoryPage.of,
            await self.ask(
                "history.get",
                {"after_position": after_position, "limit": limit, "message_ids": wanted},
            ),
        )

    async def originals(self) -> AsyncIterator[StoredMessage]:
        """Every message of the session, oldest first, a page at a time; pages shrink where messages are large."""
        position: int | None = None
        limit = PAGE
        while True:
            try:
                page = await self.history(after_position=position, limit=limit)
            except TooLarge:
                if limit == 1:
                    raise
                limit = max(limit // 4, 1)
                continue
            for stored in page.messages:
                yield stored
            if page.next_position is None or not page.messages:
                return
            position = page.next_position

    async def search(self, q: str, *, limit: int | None = None) -> list[StoredMessage]:
        """The messages that speak of this, best first, evicted ones included."""
        return [
            read(StoredMessage.of, hit)
            for hit in (await self.ask("history.search", {"q": q, "limit": limit}))["hits"]
        ]

    async def summaries(self) -> list[Summary]:
        """All versions of the summary."""
        return [read(Summary.of, entry) for entry in (await self.ask("summary.list"))["summaries"]]

    async def summary(self, version: int) -> Summary:
        """One version of the summary."""
        return read(Summary.of, await self.ask("summary.get", {"version": version}))

    async def expand(
        self, version: int, *, entry: int | None = None, line: int | None = None
    ) -> dict[str, Any]:
        """The messages that an entry of a version's ledger, or a line of its text, came from; both count from 0."""
        return await self.ask("summary.expand", {"version": version, "entry": entry, "line": line})

    async def audit(
        self, *, after: int | None = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Audit rows in the order in which they were written, from behind the row `after`."""
        rows: list[dict[str, Any]] = (
            await self.ask("audit.list", {"after": after, "limit": limit})
        )["audit"]
        return rows

    async def audit_trail(self) -> AsyncIterator[dict[str, Any]]:
        """Every audit row of the session, a page at a time."""
        after: int | None = None
        while rows := await self.audit(after=after, limit=PAGE):
            for row in rows:
                yield row
            after = rows[-1]["audit_id"]

    # --- steer

    async def compact(self) -> str | int | None:
        """Ask for a compaction now; its id, or None when there is nothing to evict."""
        compaction_id: str | int | None = (await self.ask("compaction.request"))["compaction_id"]
        return compaction_id

    async def restore(self, compaction_id: str | int) -> dict[str, Any]:
        """Undo a compaction: its messages are live again.

        Raises:
            Conflict: a newer version covers part of it; restore that one first.
        """
        return await self.ask("compaction.restore", {"compaction_id": compaction_id})

    async def regenerate(
        self, *, model: str | None = None, style: str | None = None, from_version: int | None = None
    ) -> dict[str, Any]:
        """Have the summary written anew in the background; the old version stays in force until the new is promoted."""
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
        """Set how this session is compacted: `mode` off, manual or auto; a preset by name; numbers that differ from it."""
        return await self.ask(
            "session.policy", {"mode": mode, "preset": preset, "overrides": overrides}
        )

    async def erase(self) -> dict[str, Any]:
        """Erase the session with all that was derived from it; there is no way back."""
        return await self.ask("session.erase")

    async def ask(
        self, name: str, fields: Json | None = None, *, patience_seconds: float = 0.0
    ) -> dict[str, Any]:
        """Ask any request of the contract about this session, such as `session.get`; the answer as it came."""
        return await self._client.ask(
            session_subject(name, self.key), fields or {}, patience_seconds=patience_seconds
        )
