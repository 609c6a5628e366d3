"""A pull consumer that prefetches messages, and reports unfinished ones as in progress."""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Sequence

import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.errors import Error as JetStreamError
from nats.js.errors import NotFoundError

from turnfold.bus.repeated import RepeatedMessages, is_repeated, number_of, oldest_of
from turnfold.errors import StartError
from turnfold.nats_client.responses import UNREADABLE
from turnfold.process.tasks import at_most

log = structlog.get_logger()

AHEAD = 8_000
"""The maximum number of messages requested or unacknowledged per worker."""
AHEAD_BYTES = 32 * 1024 * 1024
"""The same in bytes. A server closes a connection with 64 MB of pending messages."""
EXPIRES_SECONDS = 30.0
HEARTBEAT_SECONDS = 2.0
SILENCE_SECONDS = 2.5 * HEARTBEAT_SECONDS
IN_PROGRESS_SECONDS = 2.0
FRESH_SECONDS = 1.0
"""Newer messages are reported as in progress the next time.

The sum of this and two intervals is well below the 5 seconds of `ack_wait`.
"""
AWAY_SECONDS = 10.0
"""The time after which a message comes again for which there was no room."""
LOOK_SECONDS = 0.5
DRAIN_SECONDS = 2.0
MISSING_SECONDS = 30.0
"""After so long without a responder, the consumer counts as deleted."""
INFO_SECONDS = 2.0
STATUS_SECONDS = 0.1
"""The shortest interval between two requests that follow a status message."""
STATUSES = ("100", "404", "408", "409", "503")
ACK = "$JS.ACK."
GONE = ("consumer deleted", "consumer is push based")


class PullConsumer:
    """The messages that one worker receives from a durable consumer, which workers share.

    Messages arrive as soon as the stream has them, and wait for `take`. Unacknowledged messages are
    reported as in progress, so that slow work is not repeated. Requests that were lost with a
    connection are sent again.
    """

    def __init__(self, client: Client, *, stream: str, consumer: str, ahead: int = AHEAD) -> None:
        self._client = client
        self._stream, self._consumer = stream, consumer
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._ahead = ahead
        self._asked = 0
        self._asked_bytes = 0
        # By identity: an event that is redelivered is a second message, acknowledged on its own.
        self._held: dict[int, tuple[Msg, float]] = {}
        self._held_bytes = 0
        self._waiting: deque[Msg] = deque()
        self._repeated = RepeatedMessages()
        self._arrived = asyncio.Event()
        self._heard = 0.0
        self._activity = 0
        self._served_at = 0.0
        self._missing_since: float | None = None
        self._connections = client.stats["reconnects"]
        self._failure: StartError | None = None
        self._suspicion = ""
        self._delivered = f".{stream}.{consumer}."
        self._requested_at = 0.0
        self._inbox = client.new_inbox()
        self._subscription: Subscription | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Subscribe and request messages."""
        self._subscription = await self._client.subscribe(
            # Without limits, because nats-py drops what exceeds them. `_ask` limits what the server
            # sends.
            self._inbox,
            cb=self._on_message,
            pending_msgs_limit=-1,
            pending_bytes_limit=-1,
        )
        self._heard = self._served_at = asyncio.get_running_loop().time()
        self._keeping = asyncio.create_task(self._keep(), name="pull")
        await self._ask()

    @property
    def in_flight(self) -> int:
        """The number of received messages that are not acknowledged."""
        return len(self._held)

    @property
    def activity(self) -> int | None:
        """A counter of signs of life of the consumer.

        None means that none is expected: there is no connection, or no room for messages.
        """
        is_full = self._asked == 0 and not self._has_room()
        return None if is_full or not self._client.is_connected else self._activity

    @property
    def idle_seconds(self) -> float:
        """The time since the last sign of life, while there was room for messages."""
        return asyncio.get_running_loop().time() - self._served_at

    async def take(self, most: int, *, most_bytes: int = AHEAD_BYTES) -> list[Msg]:
        """Wait for messages, and return the oldest ones, at most `most`.

        Their bodies have at most `most_bytes` together, except for a single message. Messages that
        were delivered often come apart, a few at a time.

        Raises:
            StartError: the consumer was deleted.
        """
        loop = asyncio.get_running_loop()
        while (seconds := self._repeated.due_in(loop.time())) != 0 and not self._waiting:
            if self._failure is not None:
                raise self._failure
            self._arrived.clear()
            await at_most(seconds, self._arrived.wait())
        if seconds == 0:
            return self._repeated.take(most, most_bytes)
        return oldest_of(self._waiting, most, most_bytes)

    async def acknowledge(self, batch: Sequence[Msg]) -> None:
        """Acknowledge messages."""
        for message in batch:
            await self._client.publish(message.reply, b"+ACK")
            self._let_go(message)
        self._settle(batch, is_stored=True)
        await self._ask()

    async def nack(self, batch: Sequence[Msg], *, delay_seconds: float = 0.0) -> None:
        """Have messages redelivered to any worker after a delay."""
        for message in batch:
            self._let_go(message)
            # Without a connection the server redelivers by itself, after `ack_wait`.
            if not self._client.is_closed:
                await message.nak(delay=delay_seconds or None)
        self._settle(batch, is_stored=False)
        await self._ask()

    async def stop(self) -> None:
        """Receive no more, and return the messages that were not taken.

        Messages that were taken can still be acknowledged or returned.
        """
        if self._keeping is not None:
            self._keeping.cancel()
        if self._subscription is not None and self._client.is_connected:
            subscription, self._subscription = self._subscription, None
            # Messages that the server has already sent arrive during the drain.
            with contextlib.suppress(nats.errors.Error, TimeoutError):
                async with asyncio.timeout(DRAIN_SECONDS):
                    await subscription.drain()  # type: ignore[no-untyped-call]
            await self.nack([*self._waiting, *self._repeated.clear()])
        self._waiting.clear()

    def drop(self, messages: Sequence[Msg]) -> None:
        """Drop messages that the stream did not deliver."""
        for message in messages:
            self._let_go(message)
            self._repeated.drop(message)

    def _settle(self, batch: Sequence[Msg], *, is_stored: bool) -> None:
        now = asyncio.get_running_loop().time()
        for message in batch:
            self._repeated.settle(message, now, is_stored=is_stored)
        # `take` may wait for the end of this batch.
        self._arrived.set()

    def _let_go(self, message: Msg) -> None:
        if self._held.pop(id(message), None):
            self._held_bytes -= len(message.data)

    async def _ask(self) -> None:
        """Request as many messages as there is room for, once a quarter of it is free."""
        room = self._ahead - self._asked - len(self._held)
        room_bytes = AHEAD_BYTES - self._asked_bytes - self._held_bytes
        if not self._has_room() or not self._client.is_connected or self._subscription is None:
            return
        # Before it is sent: another task may get here while `publish` waits.
        self._asked += room
        self._asked_bytes += room_bytes
        wanted = {
            "batch": room,
            "max_bytes": room_bytes,
            "expires": int(EXPIRES_SECONDS * 1e9),
            "idle_heartbeat": int(HEARTBEAT_SECONDS * 1e9),
        }
        await self._client.publish(self._next, json.dumps(wanted).encode(), reply=self._inbox)

    def _has_room(self) -> bool:
        """Return whether at least a quarter of the room is neither used nor requested."""
        room = self._ahead - self._asked - len(self._held)
        return (
            room >= self._ahead // 4
            and AHEAD_BYTES - self._asked_bytes - self._held_bytes >= AHEAD_BYTES // 4
        )

    def _asked_for(self, messages: int, size: int) -> None:
        """Set how much of the requested messages may still arrive."""
        self._asked = max(0, messages)
        self._asked_bytes = max(0, size) if self._asked else 0

    async def _on_message(self, message: Msg) -> None:
        if message.subject == self._inbox:
            await self._on_status(message)
            return
        # Any client may publish here. Only the server can acknowledge what such a message names.
        if not message.reply.startswith(ACK) or self._delivered not in message.reply:
            return
        self._heard = asyncio.get_running_loop().time()
        self._missing_since = None
        self._is_served()
        self._asked_for(self._asked - 1, self._asked_bytes - len(message.data))
        self._held[id(message)] = (message, self._heard)
        self._held_bytes += len(message.data)
        if not is_repeated(message):
            self._waiting.append(message)
        elif not self._repeated.add(message, self._heard):
            await self.nack([message], delay_seconds=AWAY_SECONDS)
        self._arrived.set()

    async def _on_status(self, message: Msg) -> None:
        """Handle the end of a request or a heartbeat of the server.

        Any client may publish here, so a status only causes a check or another request.
        """
        headers = message.headers or {}
        status = headers.get("Status", "")
        if message.data or status not in STATUSES:
            return
        self._heard = asyncio.get_running_loop().time()
        if status == "503":
            # No responder: the server recovers its streams, or they were deleted. `_keep` retries.
            self._missing_since = self._missing_since or self._heard
            self._asked_for(0, 0)
            return
        self._missing_since = None
        self._is_served()
        if status == "100":
            return
        description = headers.get("Description", "").lower()
        if any(text in description for text in GONE):
            self._suspicion = f"the bus says: {description}"
            return
        left = number_of(headers.get("Nats-Pending-Messages", ""))
        left_bytes = number_of(headers.get("Nats-Pending-Bytes", ""))
        self._asked_for(
            self._asked - (self._asked if left is None else left),
            self._asked_bytes - (self._asked_bytes if left_bytes is None else left_bytes),
        )
        # A client that floods this subject must not cause as many requests. `_keep` retries.
        if self._heard - self._requested_at > STATUS_SECONDS:
            self._requested_at = self._heard
            await self._ask()

    def _is_served(self) -> None:
        self._activity += 1
        self._served_at = self._heard

    def _fail(self, reason: str) -> None:
        self._failure = StartError(f"{reason}; run `turnfold migrate` and start again")
        self._arrived.set()

    async def _keep(self) -> None:
        """Report unfinished messages, and repeat requests if the server is silent."""
        loop = asyncio.get_running_loop()
        reported = loop.time()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not self._client.is_connected:
                continue
            # After an error, the next iteration retries.
            try:
                if loop.time() - reported > IN_PROGRESS_SECONDS:
                    reported = loop.time()
                    await self._report(loop.time() - FRESH_SECONDS)
                await self._look_after(loop.time())
            except nats.errors.Error:
                continue
            except Exception:
                # This task must not end: unfinished messages would be redelivered.
                log.exception("pull.failed")

    async def _report(self, before: float) -> None:
        """Report messages that arrived before this time as in progress. Most end long before."""
        for message, at in list(self._held.values()):
            # In the order of arrival: all further messages are newer.
            if at > before:
                break
            await self._client.publish(message.reply, b"+WPI")

    async def _look_after(self, now: float) -> None:
        """Repeat requests that were lost with a server or a connection, and detect deletion."""
        connections = self._client.stats["reconnects"]
        is_new, self._connections = connections != self._connections, connections
        # While a request is open, the server sends a heartbeat every two seconds.
        is_silent = self._asked > 0 and now - self._heard > SILENCE_SECONDS
        if is_new or is_silent:
            log.info("pull.retried", silent_seconds=round(now - self._heard, 1))
            self._asked_for(0, 0)
            self._heard = now
        # Nothing is expected now, so the time does not count as silence.
        if self.activity is None:
            self._served_at = now
        if self._suspicion and await self._is_gone():
            self._fail(self._suspicion)
        self._suspicion = ""
        if self._missing_since is not None and now - self._missing_since > MISSING_SECONDS:
            self._missing_since = None
            if await self._is_gone(or_silent=True):
                self._fail(f"the bus has had no such consumer for {MISSING_SECONDS:g} seconds")
        await self._ask()

    async def _is_gone(self, *, or_silent: bool = False) -> bool:
        """Return whether JetStream confirms that the consumer was deleted or changed.

        With `or_silent`, a missing reply counts as a confirmation.
        """
        try:
            info = await self._client.jetstream(timeout=INFO_SECONDS).consumer_info(
                self._stream, self._consumer
            )
        except NotFoundError:
            return True
        except (nats.errors.Error, JetStreamError, TimeoutError, *UNREADABLE):
            return or_silent
        return info.config.deliver_subject is not None
