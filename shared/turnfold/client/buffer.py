"""A buffer in memory for events that are published while NATS is unavailable.

The client uses it if `connect` receives `BufferOptions`. Events of one session stay in order.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from turnfold.client.events import OutgoingEvent, Receipt
from turnfold.errors import TurnfoldError, Unavailable
from turnfold.messages import SessionKey
from turnfold.process.tasks import cancel_and_wait

log = logging.getLogger("turnfold.client")


@dataclass(frozen=True, slots=True)
class BufferOptions:
    """Limits of the buffer.

    An event that exceeds the limits is rejected with `Unavailable`. Buffered events are never
    dropped. `publish` waits `wait_seconds` for the acknowledgement before it leaves the event in
    the buffer, and does not wait at all while earlier events wait for the bus. Closing the client
    waits `close_seconds` for the remaining events.
    """

    max_events: int = 10_000
    max_bytes: int = 64 * 1024 * 1024
    wait_seconds: float = 1.0
    close_seconds: float = 5.0


@dataclass(slots=True)
class _WaitingEvent:
    event: OutgoingEvent
    receipt: asyncio.Future[Receipt]


class Buffer:
    """A queue of events per session.

    Each event is retried until it is acknowledged. Sessions are published concurrently.
    """

    def __init__(
        self, publish: Callable[[OutgoingEvent], Awaitable[Receipt]], options: BufferOptions
    ) -> None:
        self._publish = publish
        self._options = options
        self._queues: dict[SessionKey, deque[_WaitingEvent]] = {}
        self._tasks: dict[SessionKey, asyncio.Task[None]] = {}
        self._events = 0
        self._bytes = 0
        self._is_away = False
        self._is_closed = False

    @property
    def waiting(self) -> tuple[OutgoingEvent, ...]:
        """Events that are not acknowledged yet, in order within each session."""
        return tuple(waiting.event for queue in self._queues.values() for waiting in queue)

    def holds(self, key: SessionKey) -> bool:
        """Return whether events of this session are in the buffer."""
        return key in self._queues

    async def flushed(self, key: SessionKey, *, seconds: float) -> bool:
        """Wait until the bus has what a session has in the buffer now; return whether it has.

        An event that can never be published is waited for no longer once it is refused.
        """
        queue = self._queues.get(key)
        if not queue:
            return True
        settled, _ = await asyncio.wait((queue[-1].receipt,), timeout=seconds)
        return bool(settled)

    async def publish(self, event: OutgoingEvent) -> Receipt:
        """Publish an event and return its receipt.

        The receipt has `is_waiting` set if no acknowledgement arrived in time.

        Raises:
            Unavailable: the buffer is full, or closed. The event was not accepted.
            TurnfoldError: the event can never be published; see `Connection.publish`.
        """
        if self._is_closed:
            raise Unavailable("the client is closed")
        options = self._options
        size_bytes = self._bytes + len(event.payload)
        if self._events >= options.max_events or size_bytes > options.max_bytes:
            raise Unavailable(
                f"the buffer is full ({self._events} events wait for the bus);"
                f" publish event {event.event_id} later"
            )
        waiting = _WaitingEvent(event, asyncio.get_running_loop().create_future())
        self._queues.setdefault(event.key, deque()).append(waiting)
        self._events += 1
        self._bytes += len(event.payload)
        # One task per session keeps its events in order.
        if event.key not in self._tasks:
            self._tasks[event.key] = asyncio.create_task(self._drain(event.key))
        # One event has waited for all: an agent must not wait a second for each while the bus is
        # away. The next acknowledgement ends that.
        patience = 0 if self._is_away else options.wait_seconds
        # Not `wait_for`, which would cancel the receipt that `_drain` still has to set.
        settled, _ = await asyncio.wait((waiting.receipt,), timeout=patience)
        if settled:
            return waiting.receipt.result()
        self._is_away = True
        return Receipt(event.event_id, 0, is_waiting=True)

    async def close(self) -> None:
        """Wait for the remaining events until the time limit, then stop publishing.

        `waiting` still returns the events that were not acknowledged.
        """
        self._is_closed = True
        # No event is accepted from here on, so no other task will be created.
        tasks = list(self._tasks.values())
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=self._options.close_seconds)
        finally:
            await cancel_and_wait(*tasks)
            if left := len(self.waiting):
                log.error("events.unpublished: lost unless published again (%d)", left)

    async def _drain(self, key: SessionKey) -> None:
        queue = self._queues[key]
        try:
            while queue:
                waiting = queue[0]
                try:
                    receipt = await self._publish(waiting.event)
                except Unavailable:
                    # Even if the stream is full: the event waits until an operator has made room.
                    await asyncio.sleep(0.2)
                    continue
                except TurnfoldError as error:
                    self._is_away = False
                    log.error(  # noqa: TRY400 - the text contains user ids
                        "event.refused: event %s is not published (%s)",
                        waiting.event.event_id,
                        type(error).__name__,
                    )
                    waiting.receipt.set_exception(error)
                    # The publisher may have returned already. Reading the exception here keeps
                    # asyncio from logging that it was never retrieved.
                    waiting.receipt.exception()
                else:
                    self._is_away = False
                    waiting.receipt.set_result(receipt)
                # Only after the acknowledgement: until then `waiting` returns the event.
                queue.popleft()
                self._events -= 1
                self._bytes -= len(waiting.event.payload)
            # Nothing was awaited since the queue was found empty, so the next event of the session
            # finds neither queue nor task, and creates both.
            del self._queues[key]
        finally:
            del self._tasks[key]
