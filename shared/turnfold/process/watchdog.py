"""The watchdog: end a process without progress, so that its supervisor starts another one."""

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
"""The exit status of a hung process."""
CHECKS = 30
"""The number of checks within the time limit."""
LOG_SECONDS = 2.0

Progress = Callable[[], object | None]

_current_frames = sys._current_frames  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


@dataclass(slots=True)
class _WatchedPart:
    """A part that must make progress, and the number of checks without any."""

    name: str
    read_progress: Progress
    limit: int
    last: object | None = None
    unchanged: int = 0


class Watchdog:
    """End the process if its event loop, or a watched part, makes no progress for `seconds`.

    The watchdog counts checks and reads no clock. A process that continues after SIGCONT, or on a
    machine that slept, is therefore not ended.
    """

    def __init__(self, seconds: float) -> None:
        self._every_seconds = seconds / CHECKS
        self._beat = 0
        self._watched: list[_WatchedPart] = []
        self._stopped = threading.Event()
        self._beating: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Watch the running event loop from now on."""
        self._heart()
        threading.Thread(
            target=self._check_loop, args=(threading.get_ident(),), name="watchdog", daemon=True
        ).start()

    def watch(self, name: str, read_progress: Progress, *, seconds: float) -> None:
        """End the process even if `read_progress` returns the same value for `seconds`.

        None means that no progress is expected.
        """
        self._watched.append(
            _WatchedPart(name, read_progress, max(1, int(seconds / self._every_seconds)))
        )

    def stop(self) -> None:
        """Stop watching, because the process is about to exit."""
        self._stopped.set()
        if self._beating is not None:
            self._beating.cancel()

    def _heart(self) -> None:
        self._beat += 1
        for part in self._watched:
            progress = part.read_progress()
            is_unchanged = progress is not None and progress == part.last
            part.unchanged = part.unchanged + 1 if is_unchanged else 0
            part.last = progress
            if part.unchanged >= part.limit:
                self._end_process(part.name, [])
        self._beating = asyncio.get_running_loop().call_later(self._every_seconds, self._heart)

    def _check_loop(self, loop_thread: int) -> None:
        last_beat, checks = 0, 0
        while not self._stopped.wait(self._every_seconds):
            checks = checks + 1 if last_beat == self._beat else 0
            last_beat = self._beat
            if checks >= CHECKS:
                # The stack of the loop's thread says what blocks it.
                frames = _current_frames()
                self._end_process("the event loop", stack_lines(frames.get(loop_thread)))
                return

    def _end_process(self, name: str, stack: list[str]) -> None:
        """Log the reason and exit. The log is written in a thread, because writing may block."""
        logging = threading.Thread(
            target=lambda: log.critical("process.hung", what=name, at=stack), daemon=True
        )
        logging.start()
        # Not longer: a full disk or a closed pipe must not keep a hung process alive.
        logging.join(LOG_SECONDS)
        # Not `sys.exit`: it would end only the watchdog's thread, or run cleanup that may hang.
        os._exit(STUCK_STATUS)
