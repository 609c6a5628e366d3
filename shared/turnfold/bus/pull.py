"""A steady flow of messages from a durable pull consumer: asked for ahead, taken in batches, kept alive while in hand."""

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

from turnfold.errors import StartError

log = structlog.get_logger()

AHEAD = 8_000
"""Messages that may be asked for and not yet acknowledged: what one worker holds at most."""
AHEAD_BYTES = 32 * 1024 * 1024
"""And so many bytes; a server gives up a connection that it has 64 MB for."""
EXPIRES_SECONDS = 30.0
HEARTBEAT_SECONDS = 2.0
SILENCE_SECONDS = 2.5 * HEARTBEAT_SECONDS
IN_PROGRESS_SECONDS = 2.0
FRESH_SECONDS = 1.0
"""What came since then is reported the next time: twice that and this are well within the 5 seconds that the consumer waits."""
LOOK_SECONDS = 0.5
DRAIN_SECONDS = 2.0
MISSING_SECONDS = 30.0
"""After so long without anybody to ask, the consumer is taken for gone."""
INFO_SECONDS = 2.0
STATUS_SECONDS = 0.1
"""The end of a request is answered with another one, but no more often than this."""
STATUSES = ("100", "404", "408", "409", "503")
MOST_DIGITS = 19
ACK = "$JS.ACK."
GONE = ("consumer deleted", "consumer is push based")


class PullConsumer:
    """One worker's share of a consumer that it may share with others.

    Messages come as soon as the stream has them and wait here for `take`. Those not acknowledged yet are reported as in
    progress, so that slow work is not done twice. What a lost connection swallowed is asked for again.
    """

    def __init__(self, client: Client, *, stream: str, consumer: str, ahead: int = AHEAD) -> None:
        self._client = client
        self._stream, self._consumer = stream, consumer
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._ahead = ahead
        self._asked = 0
        self._asked_bytes = 0
        self._held: dict[int, tuple[Msg, float]] = {}
        self._held_bytes = 0
        self._waiting: deque[Msg] = deque()
        self._arrived = asyncio.Event()
        self._heard = 0.0
        self._words = 0
        self._served_at = 0.0
        self._missing_since: float | None = None
        self._connections = client.stats["reconnects"]
        self._failure: StartError | None = None
        self._suspicion = ""
        self._delivered = f".{stream}.{consumer}."
        self._told_at = 0.0
        self._inbox = client.new_inbox()
        self._subscription: Subscription | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to receive."""
        self._subscription = await self._client.subscribe(
            self._inbox, cb=self._on_message, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        self._heard = self._served_at = asyncio.get_running_loop().time()
        self._keeper = asyncio.create_task(self._keep(), name="pull")
        await self._ask()

    @property
    def in_flight(self) -> int:
        """How many messages are here and not acknowledged; more may wait in the stream."""
        return len(self._held)

    @property
    def activity(self) -> int | None:
        """How often the consumer was heard; None while there is nothing to hear: no connection, or no room for more messages."""
        is_full = self._asked == 0 and not self._has_room()
        return None if is_full or not self._client.is_connected else self._words

    @property
    def idle_seconds(self) -> float:
        """How long ago it was heard last, though there was room for more."""
        return asyncio.get_running_loop().time() - self._served_at

    async def take(self, most: int) -> list[Msg]:
        """The oldest messages that wait, at least one and at most so many.

        Raises:
            StartError: the consumer is gone.
        """
        while not self._waiting:
            if self._failure is not None:
                raise self._failure
            self._arrived.clear()
            await self._arrived.wait()
        return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]

    async def acknowledge(self, batch: Sequence[Msg]) -> None:
        """These are done."""
        for message in batch:
            await self._client.publish(message.reply, b"+ACK")
            self._let_go(message)
        await self._ask()

    async def nack(self, batch: Sequence[Msg], *, delay_seconds: float = 0.0) -> None:
        """These are to come again, to whoever is there then."""
        for message in batch:
            self._let_go(message)
            if not self._client.is_closed:
                await message.nak(delay=delay_seconds or None)
        await self._ask()

    async def stop(self) -> None:
        """Receive no more, and give back what nobody took; what was taken may still be acknowledged or given back."""
        if self._keeper is not None:
            self._keeper.cancel()
        if self._subscription is not None and self._client.is_connected:
            subscription, self._subscription = self._subscription, None
            # What has been sent to us already comes first; all of it waits then.
            with contextlib.suppress(nats.errors.Error, TimeoutError):
                async with asyncio.timeout(DRAIN_SECONDS):
                    await subscription.drain()  # type: ignore[no-untyped-call]
            await self.nack(list(self._waiting))
        self._waiting.clear()

    def drop(self, messages: Sequence[Msg]) -> None:
        """These are nothing that the stream delivered."""
        for message in messages:
            self._let_go(message)

    def _let_go(self, message: Msg) -> None:
        if self._held.pop(id(message), None):
            self._held_bytes -= len(message.data)

    async def _ask(self) -> None:
        """Ask for as many as there is room for, once a quarter of the room is free."""
        room = self._ahead - self._asked - len(self._held)
        room_bytes = AHEAD_BYTES - self._asked_bytes - self._held_bytes
        if not self._has_room() or not self._client.is_connected or self._subscription is None:
            return
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
        """Whether at least a quarter of the room is neither taken nor promised."""
        room = self._ahead - self._asked - len(self._held)
        return (
            room >= self._ahead // 4
            and AHEAD_BYTES - self._asked_bytes - self._held_bytes >= AHEAD_BYTES // 4
        )

    def _asked_for(self, messages: int, size: int) -> None:
        """How much of what was asked for may still come; a request that was met in full says nothing of what it left over."""
        self._asked = max(0, messages)
        self._asked_bytes = max(0, size) if self._asked else 0

    async def _on_message(self, message: Msg) -> None:
        if message.subject == self._inbox:
            await self._on_status(message)
            return
        if not message.reply.startswith(ACK) or self._delivered not in message.reply:
            return
        self._heard = asyncio.get_running_loop().time()
        self._missing_since = None
        self._is_served()
        self._asked_for(self._asked - 1, self._asked_bytes - len(message.data))
        self._held[id(message)] = (message, self._heard)
        self._held_bytes += len(message.data)
        self._waiting.append(message)
        self._arrived.set()

    async def _on_status(self, message: Msg) -> None:
        """A request ended, or the server says that it still waits. Anybody may write here, so nothing is done for it but to look."""
        headers = message.headers or {}
        status = headers.get("Status", "")
        if message.data or status not in STATUSES:
            return
        self._heard = asyncio.get_running_loop().time()
        if status == "503":
            # Nobody is there to ask: streams are being opened again, or are gone. The next look asks again.
            self._missing_since = self._missing_since or self._heard
            self._asked_for(0, 0)
            return
        self._missing_since = None
        self._is_served()
        if status == "100":
            return
        told = headers.get("Description", "").lower()
        if any(word in told for word in GONE):
            self._suspicion = f"the bus says: {told}"
            return
        left, left_bytes = (
            _number(headers.get("Nats-Pending-Messages")),
            _number(headers.get("Nats-Pending-Bytes")),
        )
        self._asked_for(
            self._asked - (self._asked if left is None else left),
            self._asked_bytes - (self._asked_bytes if left_bytes is None else left_bytes),
        )
        # Whoever sends such words in a row does not have us ask as often; the next look asks.
        if self._heard - self._told_at > STATUS_SECONDS:
            self._told_at = self._heard
            await self._ask()

    def _is_served(self) -> None:
        self._words += 1
        self._served_at = self._heard

    def _fail(self, told: str) -> None:
        self._failure = StartError(f"{told}; run `turnfold migrate` and start again")
        self._arrived.set()

    async def _keep(self) -> None:
        """Report what is held as in progress, and ask again when the server fell silent."""
        loop = asyncio.get_running_loop()
        reported = loop.time()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not self._client.is_connected:
                continue
            # What cannot be said now is said the next time.
            try:
                if loop.time() - reported > IN_PROGRESS_SECONDS:
                    reported = loop.time()
                    await self._report(loop.time() - FRESH_SECONDS)
                await self._look_after(loop.time())
            except nats.errors.Error:
                continue
            except Exception:
                log.exception("pull.failed")

    async def _report(self, before: float) -> None:
        """Those that came before this moment are still in hand; most are done with long before anybody asks."""
        for message, at in list(self._held.values()):
            if at > before:
                break
            await self._client.publish(message.reply, b"+WPI")

    async def _look_after(self, now: float) -> None:
        """Requests die with the server or the connection that held them."""
        connections = self._client.stats["reconnects"]
        is_new, self._connections = connections != self._connections, connections
        is_silent = self._asked > 0 and now - self._heard > SILENCE_SECONDS
        if is_new or is_silent:
            log.info("pull.retried", silent_seconds=round(now - self._heard, 1))
            self._asked_for(0, 0)
            self._heard = now
        if self.activity is None:
            self._served_at = now
        if self._suspicion and await self._is_gone():
            self._fail(self._suspicion)
        self._suspicion = ""
        if self._missing_since is not None and now - self._missing_since > MISSING_SECONDS:
            self._missing_since = None
            if await self._is_gone(or_silent=True):
                self._fail(f"nobody on the bus knows this consumer for {MISSING_SECONDS:g} seconds")
        await self._ask()

    async def _is_gone(self, *, or_silent: bool = False) -> bool:
        """Whether the stream itself says that there is no such consumer, or that nobody can be asked."""
        try:
            info = await self._client.jetstream(timeout=INFO_SECONDS).consumer_info(
                self._stream, self._consumer
            )
        except NotFoundError:
            return True
        except (
            nats.errors.Error,
            JetStreamError,
            TimeoutError,
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
        ):
            return or_silent
        return info.config.deliver_subject is not None


def _number(told: str | None) -> int | None:
    """A number of a header; None where it is none."""
    return (
        int(told)
        if told is not None and told.isascii() and told.isdigit() and len(told) < MOST_DIGITS
        else None
    )
