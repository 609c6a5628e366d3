"""The client: one connection, its sessions, and the freshness token of each.

Agents call `connect`, and `Client.session` for each conversation.
"""

import asyncio
import os
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from turnfold.client.buffer import Buffer, BufferOptions
from turnfold.client.events import BATCH_EVENTS, OutgoingEvent, Receipt, batches, session_key
from turnfold.client.replies import read
from turnfold.client.session import Session
from turnfold.contracts.events import check_copy
from turnfold.contracts.subjects import agent_subject
from turnfold.errors import TooLarge, Unavailable
from turnfold.messages import Json, SessionKey
from turnfold.observability.tracing import begin, is_requested

if TYPE_CHECKING:
    from turnfold.client.connection import Connection
    from turnfold.client.erasures import ErasureSignals
    from turnfold.client.notices import Notices
    from turnfold.contracts.erasures import ErasedSessions

DEFAULT_URL = "nats://127.0.0.1:4222"
REMEMBERED_SESSIONS = 10_000
LISTED_AT_ONCE = 1_000


@asynccontextmanager
async def connect(
    url: str | None = None,
    *,
    timeout_seconds: float = 5.0,
    attempts: int = 5,
    inbox_prefix: str | None = None,
    buffering: BufferOptions | None = None,
    environ: Mapping[str, str] = os.environ,
) -> AsyncGenerator["Client", None]:
    """Connect to NATS and yield a client.

    `url` may list several servers, separated by commas. Without it, `TURNFOLD_NATS_URL` is used.
    `timeout_seconds` applies to the connection, to each request and to each of the `attempts` to
    publish.

    Credentials come from `TURNFOLD_NATS_NKEY` (a file of `turnfold keys new agent`), `_CREDS`, or
    `_USER` and `_PASSWORD`. `TURNFOLD_NATS_CA`, `_CERTIFICATE`, `_CERTIFICATE_KEY` and `_TLS_FIRST`
    configure encryption. Replies arrive at subjects that the permissions of `turnfold keys nats`
    allow. `inbox_prefix` sets another prefix.

    With `buffering`, publishing continues while NATS is unavailable: this function also returns if
    no server answers and connects later, and events without an acknowledgement wait in memory
    (`Client.publish`).

    With `TURNFOLD_TRACES=1`, events and requests are traced. Spans go to the OpenTelemetry provider
    of the program. Without one, the standard `OTEL_*` variables apply.

    ```python
    async with turnfold.connect("nats://127.0.0.1:4222") as client:
        session = client.session("support", "user-42")
        await session.turn_completed([{"role": "user", "content": "Where is order 7341?"}])
        window = await session.context(max_tokens=8_000)
    ```

    Raises:
        Unavailable: no server answered in time, and `buffering` is not set.
        NotAllowed: the credentials cannot be read, or the server rejects them.
        StartError: the URL is not a NATS address, or traces are enabled without their packages.
    """
    if is_requested(environ):
        begin("turnfold-agent")
    # Imported late, so that programs that only use the names of this package do not load nats-py.
    from turnfold.client.connection import Connection  # noqa: PLC0415

    chosen = url or environ.get("TURNFOLD_NATS_URL") or DEFAULT_URL
    connection = await Connection.open(
        chosen,
        environ,
        timeout_seconds=timeout_seconds,
        attempts=attempts,
        inbox_prefix=inbox_prefix,
        may_be_away=buffering is not None,
    )
    client = Client(connection, buffering=buffering)
    # Closing waits, and may be canceled; the stack goes on with the next.
    async with AsyncExitStack() as stack:
        # Callbacks run in reverse order: the client empties its buffer over the open connection.
        stack.push_async_callback(connection.close)
        stack.push_async_callback(client.close)
        yield client


class Client:
    """A client that publishes events and sends requests over one connection.

    `connect` creates and closes it.
    """

    def __init__(self, connection: "Connection", *, buffering: BufferOptions | None = None) -> None:
        self._connection = connection
        self._buffer = Buffer(self._publish_now, buffering) if buffering is not None else None
        self._newest: OrderedDict[SessionKey, int] = OrderedDict()
        self._newest_dropped = 0
        self._notices: WeakSet[Notices] = WeakSet()

    def session(self, agent_id: str, session_id: str) -> Session:
        """Return a session of an agent; it does not have to exist yet.

        Raises:
            BadRequest: an id is empty, longer than 256 bytes or contains control characters.
        """
        return Session(self, session_key(agent_id, session_id))

    def newest_seq(self, key: SessionKey) -> int:
        """Return the freshness token of the newest event published here for a session, or 0.

        The client remembers 10,000 sessions. For older ones, this is the newest token of all
        sessions that were dropped.
        """
        return self._newest.get(key, self._newest_dropped)

    async def flushed(self, key: SessionKey, *, seconds: float) -> bool:
        """Wait until no earlier event of a session is in the buffer; return whether none is."""
        return self._buffer is None or await self._buffer.flushed(key, seconds=seconds)

    @property
    def unpublished(self) -> tuple[OutgoingEvent, ...]:
        """Events in the buffer, in order within each session.

        After `close`, these are the events that could not be published.
        """
        return self._buffer.waiting if self._buffer is not None else ()

    async def publish(self, event: OutgoingEvent) -> Receipt:
        """Publish one event and wait for its acknowledgement; see `Connection.publish` for errors.

        With a buffer, the receipt has `is_waiting` set if no acknowledgement arrived in time. The
        event is published later with the same id, after the earlier events of its session. A full
        buffer rejects the event with `Unavailable`.
        """
        if self._buffer is None:
            return await self._publish_now(event)
        # Its buffer would accept the event, but could not publish it from another loop.
        self._connection.require_own_loop()
        return await self._buffer.publish(event)

    async def close(self) -> None:
        """Wait for buffered events until the time limit; `connect` calls this at its end."""
        try:
            for notices in list(self._notices):
                await notices.aclose()
        finally:
            if self._buffer is not None:
                await self._buffer.close()

    async def _publish_now(self, event: OutgoingEvent) -> Receipt:
        receipt = await self._connection.publish(event)
        self._note(event, receipt)
        return receipt

    def _note(self, event: OutgoingEvent, receipt: Receipt) -> None:
        # A copy has the sequence of its original, which must not replace a newer one. Taken
        # out first, the session moves to the end: the one longest without an event is dropped.
        self._newest[event.key] = max(
            receipt.seq, self._newest.pop(event.key, self._newest_dropped)
        )
        if len(self._newest) > REMEMBERED_SESSIONS:
            _, seq = self._newest.popitem(last=False)
            # A token that is too new only waits longer. One that is too old would hide the newest
            # message.
            self._newest_dropped = max(self._newest_dropped, seq)

    async def publish_batch(self, events: Iterable[OutgoingEvent]) -> list[Receipt]:
        """Publish at most 1,000 events, of one or many sessions, all or none, in this order.

        A batch is much faster than single events, because the server waits for its disk only once.
        An event that occurs twice in the list is published once. If the server does not support
        batches (before 2.12) or already has one of the events, the events are published singly. An
        error may then leave the first of them published. It is always safe to publish the same
        events again.

        The connection's `timeout_seconds` applies to the whole batch. Batches are not buffered:
        they fail with `Unavailable` while NATS is unavailable.

        Raises:
            TooLarge: more than 1,000 events, or an event exceeds the server's limit. Nothing
                was published.
            Conflict: one event id stands for two events.
            Unavailable: no acknowledgement arrived, or earlier events of one of the sessions
                are still in the buffer.
        """
        requested = list(events)
        if len(requested) > BATCH_EVENTS:
            raise TooLarge(f"{len(requested)} events; publish at most {BATCH_EVENTS} at once")
        if self._buffer is not None and any(self._buffer.holds(event.key) for event in requested):
            raise Unavailable(
                "earlier events of one of these sessions wait for the bus; publish the batch later"
            )
        unique: dict[tuple[str, str], OutgoingEvent] = {}
        for event in requested:
            # The stream would refuse a batch that names one message id twice.
            first = unique.setdefault(_identity(event), event)
            if first is not event:
                check_copy(event.kind, event.payload, first.payload)
        acknowledged = (
            await self._connection.publish_together(list(unique.values())) if unique else []
        )
        receipts = dict(zip(unique, acknowledged, strict=True))
        for identity, event in unique.items():
            self._note(event, receipts[identity])
        return [receipts[_identity(event)] for event in requested]

    async def publish_sessions(
        self,
        sessions: Iterable[Iterable[OutgoingEvent]],
        *,
        in_flight: int = 32,
        at_once: int = 1,
        published: Callable[[OutgoingEvent, Receipt], Awaitable[None]] | None = None,
    ) -> int:
        """Publish many sessions concurrently and return the number of events published.

        At most `in_flight` sessions are published at a time, each with its events in order. If
        `at_once` is above 1, the events of a session are published in batches of this size
        (`publish_batch`). The iterable of sessions is read only as sessions end. `published` is
        awaited after each event. The first error cancels the rest.
        """
        slots = asyncio.Semaphore(in_flight)
        published_events = 0

        async def publish_session(events: Iterable[OutgoingEvent]) -> None:
            nonlocal published_events
            try:
                for batch in batches(events, most=at_once):
                    receipts = (
                        await self.publish_batch(batch)
                        if at_once > 1
                        else [await self.publish(batch[0])]
                    )
                    published_events += len(receipts)
                    if published is not None:
                        for event, receipt in zip(batch, receipts, strict=True):
                            await published(event, receipt)
            finally:
                slots.release()

        try:
            async with asyncio.TaskGroup() as group:
                for events in sessions:
                    await slots.acquire()
                    group.create_task(publish_session(events))
        except BaseExceptionGroup as failures:
            # Callers handle the errors of `publish`, not groups of them.
            raise failures.exceptions[0] from failures
        return published_events

    async def ask(
        self, subject: str, request: Json, *, patience_seconds: float = 0.0
    ) -> dict[str, Any]:
        """Send any request of the contract by its full subject; omit fields that are None."""
        fields = {name: value for name, value in request.items() if value is not None}
        return await self._connection.ask(subject, fields, patience_seconds=patience_seconds)

    async def agent_policy(
        self,
        agent_id: str,
        *,
        mode: str | None = None,
        preset: str | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Set the compaction policy of an agent; a session's own policy takes precedence."""
        return await self.ask(
            agent_subject("agent.policy", agent_id),
            {"mode": mode, "preset": preset, "overrides": overrides},
        )

    async def erase_agent(self, agent_id: str, *, prefix: str | None = None) -> dict[str, Any]:
        """Erase the sessions of an agent, all or those with a prefix; this cannot be undone.

        Raises:
            Unavailable: events of these are still in the buffer; they would be stored later.
        """
        for key in {event.key for event in self.unpublished}:
            if key.agent_id == agent_id and key.session_id.startswith(prefix or ""):
                await Session(self, key).flush()
        return await self.ask(agent_subject("agent.erase", agent_id), {"prefix": prefix})

    async def sessions(self, agent_id: str, *, prefix: str = "") -> AsyncIterator[str]:
        """Iterate over the ids of an agent's sessions that begin with a prefix, in order."""
        async for row in self.session_rows(agent_id, prefix=prefix):
            yield read(itemgetter("session_id"), row)

    async def session_rows(
        self, agent_id: str, *, prefix: str = ""
    ) -> AsyncIterator[dict[str, Any]]:
        """Iterate over an agent's sessions as `session.list` tells them, in order of their ids.

        Each has `session_id`, `messages_total`, `tokens_total` and `last_event_at`.
        """
        after: str | None = None
        while True:
            page = await self.ask(
                agent_subject("session.list", agent_id),
                {"prefix": prefix, "after": after, "limit": LISTED_AT_ONCE},
            )
            for row in page["sessions"]:
                yield row
            after = page.get("next_after")
            if after is None:
                return

    def notices(
        self, agent_id: str, session_id: str | None = None, *, after: int | None = None
    ) -> "Notices":
        """Iterate over notices of an agent, or of one of its sessions, as they are stored.

        Only messages of the stream whose ids agree with their subject are notices. Without
        `after`, the iterator begins with the first notice that is stored after the first request
        for one. `after` is `StoredNotice.seq` of the newest notice known, or 0 for all that the
        stream has; for all sessions, an agent's key reads after a signal only. The iterator goes on
        after a reconnection, and ends with `Unavailable` when it or the client is closed.

        Raises:
            BadRequest: an id is empty, longer than 256 bytes or contains control characters.
        """
        from turnfold.client.notices import Notices  # noqa: PLC0415  # loads nats-py

        session_key(agent_id, agent_id if session_id is None else session_id)
        notices = Notices(self._connection.bus, agent_id, session_id, after=after)
        self._notices.add(notices)
        return notices

    def erasures(
        self, agent_id: str, on_erased: "Callable[[ErasedSessions], object]"
    ) -> "ErasureSignals":
        """Return what calls a function for each erasure of an agent, from its `begin` on.

        For a program that keeps texts of windows. Signals may be lost: keep nothing for long.

        Raises:
            BadRequest: the id is empty, longer than 256 bytes or contains control characters.
        """
        from turnfold.client.erasures import ErasureSignals  # noqa: PLC0415  # loads nats-py

        return ErasureSignals(
            self._connection.bus, session_key(agent_id, agent_id).agent_id, on_erased
        )

    async def known_events(self, agent_id: str, event_ids: Iterable[str]) -> set[str]:
        """Return the ones of these event ids that are stored."""
        wanted, known = list(event_ids), set[str]()
        for start in range(0, len(wanted), LISTED_AT_ONCE):
            part = wanted[start : start + LISTED_AT_ONCE]
            answer = await self.ask(agent_subject("events.known", agent_id), {"event_ids": part})
            known |= read(lambda fields: set(fields["known"]), answer)
        return known


def _identity(event: OutgoingEvent) -> tuple[str, str]:
    return event.key.agent_id, event.event_id
