"""Whose turn it is: askers that want the same thing at once get it one after another, not the one who asked most often."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Hashable
from contextvars import ContextVar
from typing import Final

ASKER: Final[ContextVar[Hashable]] = ContextVar("asker", default=None)
"""For whom the running request works; None for work of our own."""


class Rounds:
    """One request of each asker in every turn of the event loop: a burst of one asker holds up nobody else."""

    def __init__(self) -> None:
        self._later: dict[Hashable, deque[asyncio.Future[None]]] = {}
        self._is_scheduled = False

    def behind(self, asker: Hashable) -> int:
        """How many requests of this asker wait for a round."""
        return len(self._later.get(asker, ()))

    async def turn(self, asker: Hashable) -> None:
        """Return at once, or in a later round when this asker has begun something in this one."""
        later = self._later.get(asker)
        if later is None:
            self._later[asker] = deque()
            self._schedule()
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        later.append(mine)
        await mine

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Begin the next round."""
        self._is_scheduled = False
        for asker, later in list(self._later.items()):
            if not _wake_first(later):
                del self._later[asker]
        if self._later:
            self._schedule()


class Turns:
    """So many at once, an asker at most some of them. Who waits is let in by turns of askers, and each asker's in order.

    Work of our own (no asker) is bounded by the whole alone.
    """

    def __init__(self, most: int, most_each: int) -> None:
        self._free = most
        self._most_each = most_each
        self._running: dict[Hashable, int] = {}
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()

    async def take(self) -> Hashable:
        """Begin when it is this asker's turn; the asker, for `give_back`."""
        asker = ASKER.get()
        if self._free and self._may_run(asker) and asker not in self._waiting:
            self._begin(asker)
            return asker
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(asker, deque()).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self.give_back(asker)
            raise
        return asker

    def give_back(self, asker: Hashable) -> None:
        """End, and let the next one begin."""
        self._free += 1
        left = self._running[asker] - 1
        if left:
            self._running[asker] = left
        else:
            del self._running[asker]
        while self._free and self._let_in():
            pass

    def _may_run(self, asker: Hashable) -> bool:
        return asker is None or self._running.get(asker, 0) < self._most_each

    def _begin(self, asker: Hashable) -> None:
        self._free -= 1
        self._running[asker] = self._running.get(asker, 0) + 1

    def _let_in(self) -> bool:
        """Let in the first of the asker whose turn it is; False when nobody waits who may begin."""
        for asker, waiting in list(self._waiting.items()):
            if not self._may_run(asker):
                continue
            is_woken = _wake_first(waiting)
            if is_woken:
                self._begin(asker)
            if waiting:
                self._waiting.move_to_end(asker)
            else:
                del self._waiting[asker]
            if is_woken:
                return True
        return False


def _wake_first(waiting: deque[asyncio.Future[None]]) -> bool:
    """Wake the first that still waits; False when none does."""
    while waiting:
        first = waiting.popleft()
        if not first.done():
            first.set_result(None)
            return True
    return False
