"""Ends a process that makes no progress any more, so that whoever supervises it starts another one."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from turnfold.observability.logs import stack_lines

log = structlog.get_logger()

STUCK_STATUS = 70
"""What such a process exits with."""
LOOKS = 30
"""How often it is looked at until time is up."""
TELL_SECONDS = 2.0

Mark = Callable[[], object | None]


@dataclass(slots=True)
class _Watched:
    """Something that has to go on: its mark, and for how many beats in a row that has been the same."""

    what: str
    read_progress: Mark
    most: int
    last: object | None = None
    beats: int = 0


class Watchdog:
    """Ends the process when its event loop stands still for so many seconds, or something that was to go on does not.

    It counts beats and looks, and reads no clock: while a whole process is stopped, neither happens, so one that
    goes on after SIGCONT, or on a machine that slept, is left alone.
    """

    def __init__(self, seconds: float, *, end: Callable[[int], object] = os._exit) -> None:
        self._every_seconds = seconds / LOOKS
        self._end = end
        self._beat = 0
        self._watched: list[_Watched] = []
        self._stopped = threading.Event()
        self._beating: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin, in the loop that is to be watched."""
        self._heart()
        threading.Thread(
            target=self._look, args=(threading.get_ident(),), name="watchdog", daemon=True
        ).start()

    def watch(self, what: str, mark: Mark, *, seconds: float) -> None:
        """End the process also when this mark stays the same for so long; None says that there is nothing to wait for."""
        self._watched.append(_Watched(what, mark, max(1, int(seconds / self._every_seconds))))

    def stop(self) -> None:
        """Watch no longer: the process is about to end by itself."""
        self._stopped.set()
        if self._beating is not None:
            self._beating.cancel()

    def _heart(self) -> None:
        self._beat += 1
        for one in self._watched:
            mark = one.read_progress()
            one.beats = one.beats + 1 if mark is not None and mark == one.last else 0
            one.last = mark
            if one.beats >= one.most:
                self._give_up(one.what, [])
        self._beating = asyncio.get_running_loop().call_later(self._every_seconds, self._heart)

    def _look(self, of_loop: int) -> None:
        seen, looks = 0, 0
        while not self._stopped.wait(self._every_seconds):
            looks = looks + 1 if seen == self._beat else 0
            seen = self._beat
            if looks >= LOOKS:
                self._give_up("the event loop", stack_lines(sys._current_frames().get(of_loop)))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # where it hangs
                return

    def _give_up(self, what: str, at: list[str]) -> None:
        """Say so, if that can be said, and end: nothing that could hang here may keep the process."""
        told = threading.Thread(
            target=lambda: log.critical("process.hung", what=what, at=at), daemon=True
        )
        told.start()
        told.join(TELL_SECONDS)
        self._end(STUCK_STATUS)
