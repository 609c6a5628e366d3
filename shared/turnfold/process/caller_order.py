"""Fair scheduling of requests: callers take turns, however many requests each has sent."""

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from typing import Final

from turnfold.errors import Unavailable

ASKER: Final[ContextVar[Hashable]] = ContextVar("asker", default=None)
"""The caller of the running request; None for work of the service itself."""

HAS_BEGUN: Final[ContextVar[bool]] = ContextVar("has_begun", default=False)
"""Whether the running request has had a slot of those for which long waits are refused."""
NOBODY: Final = object()
MEAN_OF_TURNS = 64
"""The number of turns that weigh in the mean time between them: one long turn changes it little."""
OUTDATED_SECONDS = 10.0
"""A mean time is forgotten if not all slots were taken for so long."""


class Rounds:
    """Start at most one request per caller in each iteration of the event loop."""

    def __init__(self) -> None:
        self._later: dict[Hashable, deque[asyncio.Future[None]]] = {}
        self._is_scheduled = False

    def behind(self, asker: Hashable) -> int:
        """Return the number of waiting requests of a caller."""
        return len(self._later.get(asker, ()))

    async def turn(self, asker: Hashable) -> None:
        """Return at once, or in a later round if the caller has started a request in this one."""
        later = self._later.get(asker)
        if later is None:
            self._later[asker] = deque()
            self._schedule()
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        later.append(waiter)
        await waiter

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Start the next round."""
        self._is_scheduled = False
        # A caller whose request is woken keeps its entry, and so has had its turn in this round.
        for asker, later in list(self._later.items()):
            if not _wake_first(later):
                del self._later[asker]
        if self._later:
            self._schedule()


class Turns:
    """A semaphore with a limit per caller. Waiting callers take turns, each in its own order.

    Work of the service itself (no caller) has only the total limit. With `longest_wait_seconds`, a
    caller that would probably wait for longer is refused at once, so that the time of a request is
    left for the request.
    """

    def __init__(
        self,
        most: int,
        most_each: int,
        *,
        longest_wait_seconds: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._free = most
        self._most_each = most_each
        self._longest_wait_seconds = longest_wait_seconds
        self._running: dict[Hashable, int] = {}
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()
        self._pace = Pace(clock)

    async def take(self) -> Hashable:
        """Wait for a slot, and return the caller for `release`.

        A request that has had a slot is never refused: its work would be lost.

        Raises:
            Unavailable: so many callers wait that this one would wait for too long.
        """
        asker = ASKER.get()
        # A caller does not overtake its own earlier requests.
        if self._free and self._may_run(asker) and asker not in self._waiting:
            self._begin(asker)
            self._note_begun()
            return asker
        if asker is not None and not HAS_BEGUN.get():
            self._refuse_long_wait()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(asker, deque()).append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            # Woken and cancelled at the same time: the slot was assigned already.
            if waiter.done() and not waiter.cancelled():
                self.release(asker)
            raise
        self._note_begun()
        return asker

    def release(self, asker: Hashable) -> None:
        """Release a slot, and start the next request."""
        if not self._free:
            self._pace.end_turn()
        self._free += 1
        self._running[asker] -= 1
        if not self._running[asker]:
            del self._running[asker]
        while self._free and self._let_in():
            pass

    def _may_run(self, asker: Hashable) -> bool:
        return asker is None or self._running.get(asker, 0) < self._most_each

    def _begin(self, asker: Hashable) -> None:
        self._free -= 1
        if not self._free:
            self._pace.begin()
        self._running[asker] = self._running.get(asker, 0) + 1

    def _note_begun(self) -> None:
        # Turns at anything else, such as the stream, do not justify letting a request wait.
        if self._longest_wait_seconds < math.inf:
            HAS_BEGUN.set(True)

    def _refuse_long_wait(self) -> None:
        # Each caller that waits goes before the next request of any other.
        seconds = len(self._waiting) * self._pace.mean_seconds
        if seconds > self._longest_wait_seconds:
            raise Unavailable(
                f"{len(self._waiting)} agents wait for the database; retry in {seconds:.1f} s",
                retry_after_ms=int(1000 * seconds),
            )

    def _let_in(self) -> bool:
        """Start the first request of the caller whose turn it is; return whether there was one."""
        # At most as many callers as there are slots have reached their limit.
        while (asker := next(filter(self._may_run, self._waiting), NOBODY)) is not NOBODY:
            waiting = self._waiting[asker]
            is_woken = _wake_first(waiting)
            if is_woken:
                self._begin(asker)
            if waiting:
                # The next free slot goes to another caller.
                self._waiting.move_to_end(asker)
            else:
                del self._waiting[asker]
            if is_woken:
                return True
        return False


class Pace:
    """The mean time between the ends of two turns while all slots are taken."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.mean_seconds = 0.0
        self._clock = clock
        self._at = -math.inf

    def begin(self) -> None:
        """Start measuring: the last free slot is taken."""
        now = self._clock()
        if now - self._at > OUTDATED_SECONDS:
            self.mean_seconds = 0.0
        self._at = now

    def end_turn(self) -> None:
        """Measure the time since the last turn ended, or since the last free slot was taken."""
        now = self._clock()
        self.mean_seconds += (now - self._at - self.mean_seconds) / MEAN_OF_TURNS
        self._at = now


def _wake_first(waiting: deque[asyncio.Future[None]]) -> bool:
    """Wake the first future that is not done; return whether there was one."""
    while waiting:
        first = waiting.popleft()
        # A cancelled request is done as well, and needs no slot.
        if not first.done():
            first.set_result(None)
            return True
    return False
