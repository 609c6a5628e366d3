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

from turnfold.errors import StartError

log = structlog.get_logger()

AHEAD = 1_000
"""Messages that may be asked for and not yet acknowledged: what one worker holds at most."""
AHEAD_BYTES = 64 * 1024 * 1024
EXPIRES_SECONDS = 30.0
HEARTBEAT_SECONDS = 2.0
SILENCE_SECONDS = 2.5 * HEARTBEAT_SECONDS
IN_PROGRESS_SECONDS = 2.0
GONE = ("consumer deleted", "consumer is push based", "no responders")


class Pull:
    """One worker's share of a consumer that it may share with others.

    Messages come as soon as the stream has them and wait here for `take`. Those not acknowledged yet are reported as in
    progress, so that slow work is not done twice. What a lost connection swallowed is asked for again.
    """

    def __init__(self, client: Client, *, stream: str, consumer: str, ahead: int = AHEAD) -> None:
        self._client = client
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._ahead = ahead
        self._asked = 0
        self._held: dict[int, Msg] = {}
        self._waiting: deque[Msg] = deque()
        self._arrived = asyncio.Event()
        self._heard = 0.0
        self._failure: StartError | None = None
        self._inbox = client.new_inbox()
        self._subscription: Subscription | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to receive."""
        self._subscription = await self._client.subscribe(self._inbox, cb=self._on_message, pending_msgs_limit=-1, pending_bytes_limit=-1)
        self._heard = asyncio.get_running_loop().time()
        self._keeper = asyncio.create_task(self._keep(), name="pull")
        await self._ask()

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
            self._held.pop(id(message), None)
        await self._ask()

    async def give_back(self, batch: Sequence[Msg], *, delay_seconds: float = 0.0) -> None:
        """These are to come again, to whoever is there then."""
        for message in batch:
            self._held.pop(id(message), None)
            if not self._client.is_closed:
                await message.nak(delay=delay_seconds or None)
        await self._ask()

    async def stop(self) -> None:
        """Receive no more, and give back what nobody took."""
        if self._keeper is not None:
            self._keeper.cancel()
        if self._subscription is not None and self._client.is_connected:
            await self._subscription.unsubscribe()
            await self.give_back(list(self._waiting))
        self._waiting.clear()

    async def _ask(self) -> None:
        """Ask for as many as there is room for, once half of the room is free."""
        room = self._ahead - self._asked - len(self._held)
        if room < self._ahead // 2 or not self._client.is_connected or self._subscription is None:
            return
        self._asked += room
        wanted = {
            "batch": room,
            "max_bytes": AHEAD_BYTES,
            "expires": int(EXPIRES_SECONDS * 1e9),
            "idle_heartbeat": int(HEARTBEAT_SECONDS * 1e9),
        }
        await self._client.publish(self._next, json.dumps(wanted).encode(), reply=self._inbox)

    async def _on_message(self, message: Msg) -> None:
        self._heard = asyncio.get_running_loop().time()
        if message.subject == self._inbox:
            await self._on_status(message)
            return
        self._asked = max(0, self._asked - 1)
        self._held[id(message)] = message
        self._waiting.append(message)
        self._arrived.set()

    async def _on_status(self, message: Msg) -> None:
        """A request ended, or the server says that it still waits."""
        headers = message.headers or {}
        status = headers.get("Status", "")
        if status == "100":
            return
        told = headers.get("Description", "").lower()
        if any(word in told for word in GONE):
            self._failure = StartError(f"the bus says: {told}; run `turnfold migrate` and start again")
            self._arrived.set()
            return
        self._asked = max(0, self._asked - int(headers.get("Nats-Pending-Messages", self._asked)))
        await self._ask()

    async def _keep(self) -> None:
        """Report what is held as in progress, and ask again when the server fell silent."""
        while True:
            await asyncio.sleep(IN_PROGRESS_SECONDS)
            if self._client.is_connected:
                # What cannot be said now is said the next time.
                with contextlib.suppress(nats.errors.Error):
                    await self._look_after()

    async def _look_after(self) -> None:
        for message in list(self._held.values()):
            await self._client.publish(message.reply, b"+WPI")
        now = asyncio.get_running_loop().time()
        if now - self._heard > SILENCE_SECONDS:
            # Requests die with the server or the connection that held them.
            log.info("pull.asked_again", silent_seconds=round(now - self._heard, 1))
            self._asked, self._heard = 0, now
        await self._ask()
