"""The base class of the worker's background loops, and their deferral while ingest is busy."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

import structlog

from turnfold.errors import StartError, Unavailable
from turnfold.process.scheduling import backoff_seconds
from turnfold.process.tasks import at_most

log = structlog.get_logger()

RETRY_SECONDS = 1.0
YIELD_SECONDS = 5.0
YIELD_POLL_SECONDS = 0.25
SILENT_SECONDS = 60.0
"""A loop that keeps failing logs that once in this time: all of a worker's loops fail together."""


class BusyDeferral:
    """Defer background work while ingest is busy, for at most so many seconds in a row."""

    def __init__(self, is_busy: Callable[[], bool], seconds: float = YIELD_SECONDS) -> None:
        self._is_busy = is_busy
        self._seconds = seconds
        self._since: float | None = None

    @property
    def should_wait(self) -> bool:
        """Whether the caller should wait now; reading it starts or restarts the period."""
        now = time.monotonic()
        if not self._is_busy():
            self._since = None
            return False
        self._since = self._since or now
        if now - self._since < self._seconds:
            return True
        # One call may work. The next period of waiting begins here.
        self._since = now
        return False


class PollingLoop(ABC):
    """Run `work()` when woken and at least every `poll_seconds`.

    A lost wake-up therefore only delays work. `woken` wakes the loop; without it, only `wake`
    does.
    """

    poll_seconds = 1.0

    def __init__(self, *, woken: asyncio.Event | None = None) -> None:
        self._woken = asyncio.Event() if woken is None else woken

    def wake(self) -> None:
        """Run `work()` as soon as possible."""
        self._woken.set()

    async def run(self, *, on_failure: Callable[[str], object]) -> None:
        """Work until cancelled. After an unexpected error, retry with growing delays.

        `on_failure` receives the name of the class after each unexpected error.

        Raises:
            StartError: only a new process can continue.
        """
        failures = 0
        silent_until = 0.0
        while True:
            # Before the work: a wake-up during the work causes another round.
            self._woken.clear()
            try:
                wait_seconds = await self.work()
            except Unavailable as error:
                if time.monotonic() >= silent_until:
                    log.warning("loop.delayed", part=type(self).__name__, error=str(error))
                    silent_until = time.monotonic() + SILENT_SECONDS
                wait_seconds = RETRY_SECONDS
            except StartError:
                raise
            except Exception:
                on_failure(type(self).__name__)
                log.exception("work.failed", part=type(self).__name__, failures=failures + 1)
                await asyncio.sleep(backoff_seconds(failures))
                failures += 1
                continue
            else:
                silent_until = 0.0
            failures = 0
            await at_most(wait_seconds, self._woken.wait())

    @abstractmethod
    async def work(self) -> float:
        """Do the work that is due, and return the seconds until the next call."""
