"""The connection to NATS: requests and publishes that end with a value or a `TurnfoldError`."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, overload

import nats.errors

from turnfold.client.copies import check_duplicate
from turnfold.client.credentials import identity_options, servers_of, without_password
from turnfold.client.events import OutgoingEvent, Receipt, encoded
from turnfold.client.replies import error_from_json
from turnfold.contracts.answers.reading import read_answer, request_name
from turnfold.contracts.publish_errors import NO_BATCH, publish_error
from turnfold.contracts.subjects import EVENTS_STREAM, event_headers
from turnfold.errors import NotAllowed, StreamFull, TooLarge, Unavailable
from turnfold.nats_client.acknowledgements import (
    READ_SECONDS,
    AckBatch,
    Acknowledgement,
    Publisher,
    Rejection,
)
from turnfold.nats_client.connection import Denied
from turnfold.nats_client.connection import NatsClient as Bus
from turnfold.observability.tracing import span
from turnfold.process.tasks import cancel_and_wait

_PENDING_BYTES = 32 * 1024 * 1024
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0

Result = TypeVar("Result")
Send = Callable[[], Coroutine[Any, Any, Acknowledgement | Rejection]]

log = logging.getLogger("turnfold.client")


class Connection:
    """A connection that reconnects without limit; operations that time out raise `Unavailable`."""

    def __init__(self, bus: Bus, *, timeout_seconds: float, attempts: int) -> None:
        self.bus = bus
        self._timeout_seconds = timeout_seconds
        self._attempts = attempts
        self._loop = asyncio.get_running_loop()
        self._opening: asyncio.Future[None] | None = None
        self._publisher = Publisher(bus, EVENTS_STREAM, read=self._read)
        # The key of the ids by which the broker finds duplicates, see `unique_headers`.
        self._secret = secrets.token_bytes(16)

    @classmethod
    async def open(
        cls,
        url: str,
        environ: Mapping[str, str],
        *,
        timeout_seconds: float,
        attempts: int,
        inbox_prefix: str | None,
        may_be_away: bool = False,
    ) -> "Connection":
        """Connect, with the credentials of the URL or of `TURNFOLD_NATS_*` (see `Identity`).

        With `may_be_away`, the connection is returned even if no server answers in time, and it
        continues to connect in the background. Until then every request fails as unanswered.

        Raises:
            NotAllowed: the credentials cannot be read, or the server rejects them.
            StartError: the URL is not a NATS address.
            Unavailable: no server answered in time.
        """
        options = identity_options(environ, inbox_prefix)
        connection = cls(Bus(), timeout_seconds=timeout_seconds, attempts=attempts)
        servers = servers_of(url)
        shown = ", ".join(without_password(server) for server in servers)
        opening = asyncio.ensure_future(
            connection.bus.connect(
                servers,
                name="turnfold",
                max_reconnect_attempts=-1,
                reconnect_time_wait=1,
                pending_size=_PENDING_BYTES,
                error_cb=_log_error,
                **options,
            )
        )
        try:
            async with asyncio.timeout(timeout_seconds):
                # Shielded, because with `may_be_away` the attempt goes on after the timeout.
                await asyncio.shield(opening)
        except (TimeoutError, OSError, nats.errors.Error, ValueError) as error:
            last = connection.bus.last_error or error
            # nats-py has no class for this error.
            is_refused = "authorization" in str(last).lower()
            if may_be_away and not opening.done() and not is_refused:
                connection._opening = opening
                return connection
            await _stop_connecting(opening, connection.bus)
            if is_refused:
                raise NotAllowed(
                    f"{shown} refuses these credentials;"
                    " set TURNFOLD_NATS_CREDS, _NKEY, or _USER and _PASSWORD"
                ) from error
            raise Unavailable(
                f"no server answers at {shown};"
                " start one with `turnfold up`, or set TURNFOLD_NATS_URL"
            ) from error
        except asyncio.CancelledError:
            await _stop_connecting(opening, connection.bus)
            raise
        return connection

    async def close(self) -> None:
        """Flush outgoing data, then close the connection."""
        if self._opening is not None and not self._opening.done():
            await _stop_connecting(self._opening, self.bus)
            return
        try:
            with contextlib.suppress(nats.errors.Error, OSError):
                if self.bus.is_connected:
                    await self.bus.flush(timeout=2)
        finally:
            with contextlib.suppress(nats.errors.Error, OSError):
                await self.bus.close()

    def require_own_loop(self) -> None:
        """Raise `Unavailable` in an event loop other than that of the connection."""
        if asyncio.get_running_loop() is not self._loop:
            # Its replies would arrive in the other loop, and this one would wait for ever.
            raise Unavailable("the client belongs to another event loop; use a PortalClient")

    async def ask(
        self, subject: str, request: Mapping[str, Any], *, patience_seconds: float = 0.0
    ) -> dict[str, Any]:
        """Send a request and return its answer.

        The time limit is that of the connection plus `patience_seconds`, the time for which the
        request allows the service to wait.

        Raises:
            RequestError: the answer is an error, or no answer arrived. The class follows the
                error code.
        """
        name, seconds = request_name(subject), self._timeout_seconds + patience_seconds
        try:
            with span(name, kind="client") as asking:
                answer = await self._raise_if_denied(
                    {subject},
                    lambda: self.bus.reply(
                        subject,
                        encoded(request),
                        seconds=seconds,
                        headers=dict(asking.headers) or None,
                        read=lambda reply: read_answer(name, reply.data),
                    ),
                    timeout_seconds=seconds,
                )
        except nats.errors.NoRespondersError as error:
            raise Unavailable(
                "no service answers this request; `turnfold doctor` says which one is missing"
            ) from error
        except nats.errors.TimeoutError as error:
            raise Unavailable(f"no answer within {seconds:g} seconds; try again") from error
        except nats.errors.MaxPayloadError as error:
            raise TooLarge(
                "the request is larger than the NATS server accepts; send less at once"
            ) from error
        except nats.errors.ConnectionClosedError as error:
            raise Unavailable("the client is closed") from error
        except nats.errors.Error as error:
            raise Unavailable(f"the bus cannot be reached: {error}") from error
        if (error_json := answer.get("error")) is not None:
            raise error_from_json(error_json)
        return answer

    async def publish(self, event: OutgoingEvent) -> Receipt:
        """Publish an event until the stream acknowledges it.

        All attempts carry the same id, so that the broker recognizes copies.

        Raises:
            NotAllowed: these credentials may not publish to this session.
            TooLarge: the event exceeds the server's limit.
            StreamFull: the stream is full. The event was not stored.
            Conflict: the event id stands for another event. This one was not stored.
            Unavailable: no acknowledgement arrived. The event may be stored or not. It may be
                published again as it is.
        """
        with span("publish", kind="producer", event=event.kind) as publishing:
            send = partial(
                self._publisher.publish,
                event.subject,
                event.payload,
                headers=self._headers(event) | dict(publishing.headers),
                seconds=self._timeout_seconds,
            )
            acknowledgement = await self._acknowledged(
                {event.subject}, send, f"event {event.event_id}"
            )
            publishing.set_attributes(stream_seq=acknowledgement.seq)
            return await self._receipt(event, acknowledgement)

    async def _receipt(self, event: OutgoingEvent, acknowledgement: Acknowledgement) -> Receipt:
        # The broker compares ids alone, so the event that it stores may have other content.
        if acknowledgement.is_duplicate:
            await check_duplicate(event, acknowledgement, self.ask)
        return Receipt(event.event_id, acknowledgement.seq, acknowledgement.is_duplicate)

    async def publish_together(self, events: Sequence[OutgoingEvent]) -> list[Receipt]:
        """Publish different events, all or none, in this order.

        If the server does not support that, or already has one of the events, they are published
        singly. An error may then leave the first of them published.

        Raises:
            NotAllowed: these credentials may not publish to one of the sessions.
            TooLarge: an event or the batch exceeds the server's limit.
            StreamFull: the stream is full. None of the events was stored.
            Conflict: an event id stands for another event. That one was not stored.
            Unavailable: no acknowledgement arrived. The events may be stored or not. They may
                be published again as they are.
        """
        if len(events) == 1:
            # The server waits for its disk before it acknowledges a batch, also one of one event.
            return [await self.publish(events[0])]
        subjects = {event.subject for event in events}
        with span("publish", kind="producer", events=len(events)) as publishing:
            send = partial(self._batch, events, dict(publishing.headers))
            acknowledgement = await self._acknowledged(
                subjects, send, f"the batch of event {events[0].event_id}", takes_no_batch=True
            )
            if acknowledgement is not None and acknowledgement.is_batch:
                publishing.set_attributes(stream_seq=acknowledgement.seq)
                # A batch has consecutive sequences, and its acknowledgement has the last of them.
                return [
                    Receipt(event.event_id, seq)
                    for seq, event in enumerate(events, acknowledgement.seq - len(events) + 1)
                ]
        # A server without batches has stored the first event as a single message.
        receipts = (
            [] if acknowledgement is None else [await self._receipt(events[0], acknowledgement)]
        )
        # With the same ids, so that nothing is stored twice.
        return receipts + [await self.publish(event) for event in events[len(receipts) :]]

    async def _batch(
        self, events: Sequence[OutgoingEvent], tracing: dict[str, str]
    ) -> Acknowledgement | Rejection:
        """Return the reply to the last event, or to the first if the stream opens no batch."""
        batch_id = secrets.token_hex(16)

        def headers_of(number: int) -> dict[str, str]:
            return (
                self._headers(events[number - 1])
                | tracing
                | {"Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(number)}
            )

        first, *middle, last = events
        reply = await self._publisher.open_batch(
            first.subject, first.payload, headers=headers_of(1), seconds=self._timeout_seconds
        )
        if reply is not None:
            return reply
        # No reply is requested for these: the last event commits all of the batch or nothing.
        for number, event in enumerate(middle, 2):
            await self.bus.publish(event.subject, event.payload, headers=headers_of(number))
        headers = headers_of(len(events)) | {"Nats-Batch-Commit": "1"}
        batch = AckBatch(batch_id, len(events))
        return await self._publisher.publish(
            last.subject, last.payload, headers=headers, seconds=self._timeout_seconds, batch=batch
        )

    def _headers(self, event: OutgoingEvent) -> dict[str, str]:
        return event_headers(event.key.agent_id, event.event_id, self._secret)

    @overload
    async def _acknowledged(
        self, subjects: Collection[str], send: Send, what: str
    ) -> Acknowledgement: ...

    @overload
    async def _acknowledged(
        self, subjects: Collection[str], send: Send, what: str, *, takes_no_batch: bool
    ) -> Acknowledgement | None: ...

    async def _acknowledged(
        self, subjects: Collection[str], send: Send, what: str, *, takes_no_batch: bool = False
    ) -> Acknowledgement | None:
        """Return the acknowledgement; None with `takes_no_batch` if the server has no batches."""
        cause: Exception | None = None
        for attempt in range(self._attempts):
            if attempt:
                await asyncio.sleep(min(_FIRST_PAUSE_SECONDS * 2**attempt, _LONGEST_PAUSE_SECONDS))
            try:
                reply = await self._raise_if_denied(
                    subjects, send, timeout_seconds=self._timeout_seconds
                )
            except nats.errors.MaxPayloadError as error:
                raise TooLarge(f"{what} is larger than the NATS server accepts") from error
            except nats.errors.ConnectionClosedError as error:
                raise Unavailable("the client is closed") from error
            except nats.errors.Error as error:
                cause = error
                continue
            if isinstance(reply, Acknowledgement):
                return reply
            if takes_no_batch and reply.code in NO_BATCH:
                return None
            cause = publish_error(reply.code, reply.description)
            # Retries do not help before an operator makes room.
            if isinstance(cause, StreamFull):
                raise cause
        raise Unavailable(
            f"{what} was not acknowledged ({cause}); publish it again with the same event_id"
        ) from cause

    async def _read(self, subject: str, body: bytes) -> bytes:
        """Return the answer of the JetStream API."""

        async def ask() -> bytes:
            return (await self.bus.request(subject, body, timeout=READ_SECONDS)).data

        return await self._raise_if_denied({subject}, ask, timeout_seconds=READ_SECONDS)

    async def _raise_if_denied(
        self,
        subjects: Collection[str],
        ask: Callable[[], Coroutine[Any, Any, Result]],
        *,
        timeout_seconds: float,
    ) -> Result:
        """Run `ask`, and raise `NotAllowed` if the server reports a subject as forbidden."""
        self.require_own_loop()
        if self._opening is not None:
            await self._opened(timeout_seconds)
        try:
            return await (ask() if len(subjects) == 1 else self._unless_denied(subjects, ask))
        except Denied as error:
            raise NotAllowed(f"these credentials may not use {', '.join(subjects)}") from error

    async def _unless_denied(
        self, subjects: Collection[str], work: Callable[[], Coroutine[Any, Any, Result]]
    ) -> Result:
        """Run work that publishes to several subjects and awaits one reply."""
        denied: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def deny(subject: str) -> None:
            if not denied.done():
                denied.set_result(subject)

        watches = [(subject, partial(deny, subject)) for subject in subjects]
        for watch in watches:
            self.bus.watch_denials(*watch)
        working = asyncio.ensure_future(work())
        try:
            await asyncio.wait((working, denied), return_when=asyncio.FIRST_COMPLETED)
            if denied.done():
                raise NotAllowed(f"these credentials may not use {denied.result()}")
            return await working
        finally:
            # `asyncio.wait` leaves its tasks running, also when it is canceled itself.
            working.cancel()
            for watch in watches:
                self.bus.end_watch(*watch)

    async def _opened(self, timeout_seconds: float) -> None:
        """Wait for the first connection."""
        assert self._opening is not None
        # Not `wait_for`, which would cancel the attempt for every other caller, too.
        await asyncio.wait((self._opening,), timeout=timeout_seconds)
        if not self._opening.done():
            raise nats.errors.TimeoutError
        if self._opening.cancelled():
            raise Unavailable("the client is closed")
        if error := self._opening.exception():
            raise Unavailable(f"the bus cannot be reached: {type(error).__name__}") from error


async def _log_error(error: Exception) -> None:
    log.debug("bus.failed", exc_info=error)


async def _stop_connecting(opening: asyncio.Future[None], bus: Bus) -> None:
    """Cancel the connection attempt and close the client."""
    await cancel_and_wait(opening)
    with contextlib.suppress(Exception):
        await bus.close()
