"""The way in: a connection, the sessions behind it, and what was acknowledged for each."""

import asyncio
import os
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from turnfold.client.buffer import Buffer, BufferOptions
from turnfold.client.events import BATCH_EVENTS, OutgoingEvent, Receipt, batches, session_key
from turnfold.client.session import Session
from turnfold.contracts.subjects import token_of
from turnfold.errors import TooLarge, Unavailable
from turnfold.messages import Json, SessionKey
from turnfold.observability.tracing import begin, is_requested

if TYPE_CHECKING:
    from turnfold.client.connection import Connection

DEFAULT_URL = "nats://127.0.0.1:4222"
REMEMBERED_SESSIONS = 10_000


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
    """Connect to the bus; several servers are separated by commas, and without any it is `TURNFOLD_NATS_URL`.

    `timeout_seconds` bounds the connecting, each request and each of the `attempts` to publish. Who we are stands in
    `TURNFOLD_NATS_NKEY` (a file of `turnfold keys new agent`), `_CREDS`, or `_USER` and `_PASSWORD`; `TURNFOLD_NATS_CA`,
    `_CERTIFICATE`, `_CERTIFICATE_KEY` and `_TLS_FIRST` say how the connection is encrypted. Answers arrive where the
    permissions of `turnfold keys nats` let this key listen; `inbox_prefix` names another place.

    With `buffering` no agent waits for a bus that is away: this returns also while no server answers and connects as
    soon as one does, and events that are not acknowledged in time wait in memory (`Client.publish`).

    With `TURNFOLD_TRACES=1` what is published and asked is traced, through the OpenTelemetry that the program has set up, else
    to where the standard `OTEL_*` variables say.

    ```python
    async with turnfold.connect("nats://127.0.0.1:4222") as client:
        session = client.session("support", "user-42")
        await session.turn_completed([{"role": "user", "content": "Where is order 7341?"}])
        window = await session.context(max_tokens=8_000)
    ```

    Raises:
        Unavailable: no server answered in time, and nothing is buffered.
        NotAllowed: the credentials cannot be read, or the server does not accept them.
        StartError: traces are asked for, and their packages are not installed.
    """
    if is_requested(environ):
        begin("turnfold-agent")
    from turnfold.client.connection import Connection  # noqa: PLC0415  # a service that only reads our names need not load nats

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
    try:
        yield client
    finally:
        await client.close()
        await connection.close()


class Client:
    """Publishes events and asks requests over one connection; made by `connect`."""

    def __init__(self, connection: "Connection", *, buffering: BufferOptions | None = None) -> None:
        self._connection = connection
        self._buffer = Buffer(self._publish_now, buffering) if buffering is not None else None
        self._newest: OrderedDict[SessionKey, int] = OrderedDict()
        self._forgotten = 0

    def session(self, agent_id: str, session_id: str) -> Session:
        """A conversation of an agent, whether anything was published there yet or not.

        Raises:
            BadRequest: an id is empty, longer than 256 bytes or holds control characters.
        """
        return Session(self, session_key(agent_id, session_id))

    def newest_seq(self, key: SessionKey) -> int:
        """The freshness token of the newest event published here for a session; 0 when there is none.

        For sessions that were forgotten because so many others followed, it is the newest of all those.
        """
        return self._newest.get(key, self._forgotten)

    @property
    def unpublished(self) -> tuple[OutgoingEvent, ...]:
        """The events that wait for the bus, each session's in order; after the client is closed, those it could not publish."""
        return self._buffer.waiting if self._buffer is not None else ()

    async def publish(self, event: OutgoingEvent) -> Receipt:
        """Publish one event until the stream has it (see `Connection.publish` for the errors).

        With a buffer the receipt of an event that is not acknowledged in time says `is_waiting`; it goes out later, after
        the events of its session that came before it, and with the same event id. A full buffer refuses the event with
        `Unavailable`.
        """
        return await (
            self._publish_now(event) if self._buffer is None else self._buffer.publish(event)
        )

    async def close(self) -> None:
        """Give what is buffered a last while to go out; `connect` does this at its end."""
        if self._buffer is not None:
            await self._buffer.close()

    async def _publish_now(self, event: OutgoingEvent) -> Receipt:
        receipt = await self._connection.publish(event)
        self._note(event, receipt)
        return receipt

    def _note(self, event: OutgoingEvent, receipt: Receipt) -> None:
        self._newest[event.key] = max(receipt.seq, self._newest.pop(event.key, 0))
        if len(self._newest) > REMEMBERED_SESSIONS:
            _, seq = self._newest.popitem(last=False)
            self._forgotten = max(self._forgotten, seq)

    async def publish_batch(self, events: Iterable[OutgoingEvent]) -> list[Receipt]:
        """Publish up to 1,000 events, of one session or of many, at once: the stream takes all of them or none, in this order.

        Much faster than one by one, for the bus waits for its disk once. An event that stands here twice is published
        once. A bus that takes no such batches (older than 2.12), or has one of the events already, gets them one by one;
        an error may then leave the first of them published. To publish the same again is right after every error.

        The connection's `timeout_seconds` has to do for the whole batch. Batches are not buffered; while the bus is away they
        end as `Unavailable`.

        Raises:
            TooLarge: more than 1,000 events, or one of them is more than the server carries; nothing was published.
            Unavailable: no acknowledgement came, or earlier events of one of the sessions still wait in the buffer.
        """
        given = list(events)
        if len(given) > BATCH_EVENTS:
            raise TooLarge(f"{len(given)} events; publish at most {BATCH_EVENTS} at once")
        if self._buffer is not None and any(self._buffer.holds(event.key) for event in given):
            raise Unavailable(
                "earlier events of one of these sessions wait for the bus: publish the batch later"
            )
        once: dict[tuple[str, str], OutgoingEvent] = {}
        for event in given:
            once.setdefault(_identity(event), event)
        told = await self._connection.publish_together(list(once.values())) if once else []
        receipts = dict(zip(once, told, strict=True))
        for identity, event in once.items():
            self._note(event, receipts[identity])
        return [receipts[_identity(event)] for event in given]

    async def publish_sessions(
        self,
        sessions: Iterable[Iterable[OutgoingEvent]],
        *,
        in_flight: int = 32,
        at_once: int = 1,
        published: Callable[[OutgoingEvent, Receipt], Awaitable[None]] | None = None,
    ) -> int:
        """Publish many sessions side by side, each one's events in order, at most `in_flight` at a time.

        With `at_once` a session's events go in batches of so many (`publish_batch`). Sessions are taken from the iterable
        only as others end. `published` is awaited after each event. Returns how many events were published; the first error
        ends all.
        """
        slots = asyncio.Semaphore(in_flight)
        counted = 0

        async def one(events: Iterable[OutgoingEvent]) -> None:
            nonlocal counted
            try:
                for batch in batches(events, most=at_once):
                    receipts = (
                        await self.publish_batch(batch)
                        if at_once > 1
                        else [await self.publish(batch[0])]
                    )
                    counted += len(receipts)
                    if published is not None:
                        for event, receipt in zip(batch, receipts, strict=True):
                            await published(event, receipt)
            finally:
                slots.release()

        try:
            async with asyncio.TaskGroup() as group:
                for events in sessions:
                    await slots.acquire()
                    group.create_task(one(events))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        return counted

    async def ask(
        self, subject: str, request: Json, *, patience_seconds: float = 0.0
    ) -> dict[str, Any]:
        """Ask any request of the contract by its whole subject; fields that are None are left out."""
        given = {name: value for name, value in request.items() if value is not None}
        return await self._connection.ask(subject, given, patience_seconds=patience_seconds)

    async def agent_policy(
        self,
        agent_id: str,
        *,
        mode: str | None = None,
        preset: str | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Set how all sessions of an agent are compacted where they set nothing else."""
        return await self.ask(
            f"agent.policy.{token_of(agent_id)}",
            {"mode": mode, "preset": preset, "overrides": overrides},
        )

    async def erase_agent(self, agent_id: str) -> dict[str, Any]:
        """Erase every session of an agent; there is no way back."""
        return await self.ask(f"agent.erase.{token_of(agent_id)}", {})


def _identity(event: OutgoingEvent) -> tuple[str, str]:
    return event.key.agent_id, event.event_id
