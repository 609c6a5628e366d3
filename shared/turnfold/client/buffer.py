"""Events that wait in memory while the bus is away, and go out in order when it is back."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from turnfold.client.events import OutgoingEvent, Receipt
from turnfold.errors import TurnfoldError, Unavailable
from turnfold.messages import SessionKey

log = logging.getLogger("turnfold.client")


@dataclass(frozen=True, slots=True)
class BufferOptions:
    """How much may wait. What does not fit is refused with `Unavailable`, and nothing that waits is given up for it.

    `wait_seconds` is how long publishing waits for the acknowledgement before it leaves the event to the buffer,
    `close_seconds` how long closing the client waits for what is left.
    """

    max_events: int = 10_000
    max_bytes: int = 64 * 1024 * 1024
    wait_seconds: float = 1.0
    close_seconds: float = 5.0


@dataclass(slots=True)
class _Waiting:
    event: OutgoingEvent
    receipt: asyncio.Future[Receipt]


class Buffer:
    """Publishes each session's events one after the other, each until it is acknowledged, and sessions side by side."""

    def __init__(
        self, publish: Callable[[OutgoingEvent], Awaitable[Receipt]], buffering: BufferOptions
    ) -> None:
        self._publish = publish
        self._buffering = buffering
        self._lanes: dict[SessionKey, deque[_Waiting]] = {}
        self._tasks: dict[SessionKey, asyncio.Task[None]] = {}
        self._events = 0
        self._bytes = 0

    @property
    def waiting(self) -> tuple[OutgoingEvent, ...]:
        """What was not acknowledged yet, each session's events in order."""
        return tuple(waiting.event for lane in self._lanes.values() for waiting in lane)

    def holds(self, key: SessionKey) -> bool:
        """Whether events of this session wait."""
        return key in self._lanes

    async def publish(self, event: OutgoingEvent) -> Receipt:
        """The receipt of the event, or one that says that it waits.

        Raises:
            Unavailable: there is no room; the event is not published unless it is given again.
            TurnfoldError: the event can never be published, as of `Connection.publish`.
        """
        room = self._buffering
        if self._events >= room.max_events or self._bytes + len(event.payload) > room.max_bytes:
            raise Unavailable(
                f"{self._events} events wait for the bus, and there is no room for event {event.event_id}: publish it later"
            )
        waiting = _Waiting(event, asyncio.get_running_loop().create_future())
        self._lanes.setdefault(event.key, deque()).append(waiting)
        self._events += 1
        self._bytes += len(event.payload)
        if event.key not in self._tasks:
            self._tasks[event.key] = asyncio.create_task(self._drain(event.key))
        done, _ = await asyncio.wait((waiting.receipt,), timeout=room.wait_seconds)
        return waiting.receipt.result() if done else Receipt(event.event_id, 0, is_waiting=True)

    async def close(self) -> None:
        """Wait a while for what is left, then stop; `waiting` still tells what was not acknowledged."""
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks, timeout=self._buffering.close_seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if left := len(self.waiting):
            log.error("events.unpublished", extra={"events": left})

    async def _drain(self, key: SessionKey) -> None:
        lane = self._lanes[key]
        try:
            while lane:
                waiting = lane[0]
                try:
                    receipt = await self._publish(waiting.event)
                except Unavailable:
                    await asyncio.sleep(0.2)
                    continue
                except TurnfoldError as error:
                    log.error(  # noqa: TRY400 - the text of the error names the subject
                        "event.refused",
                        extra={"event_id": waiting.event.event_id, "error": type(error).__name__},
                    )
                    waiting.receipt.set_exception(error)
                    waiting.receipt.exception()  # whoever left it to the buffer does not come back for it
                else:
                    waiting.receipt.set_result(receipt)
                lane.popleft()
                self._events -= 1
                self._bytes -= len(waiting.event.payload)
            del self._lanes[key]
        finally:
            del self._tasks[key]
