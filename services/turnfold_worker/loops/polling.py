"""The base class of the worker's background loops, and the deferral of loops that yield to ingest."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

import structlog

from turnfold.errors import StartError, Unavailable
from turnfold.process.scheduling import backoff_seconds

log = structlog.get_logger()

RETRY_SECONDS = 1.0
YIELD_SECONDS = 5.0
YIELDS_AGAIN_SECONDS = 0.25


class BusyDeferral:
    """Events go first: a summary or a notice may wait a little, an agent's next window should not. But no backlog stops them for good."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        self._is_busy = is_busy
        self._since: float | None = None

    @property
    def go_first(self) -> bool:
        """Whether to wait; not for longer than `YIELD_SECONDS` in a row."""
        now = time.monotonic()
        if not self._is_busy():
            self._since = None
            return False
        self._since = self._since or now
        if now - self._since < YIELD_SECONDS:
            return True
        self._since = now
        return False


class PollingLoop(ABC):
    """A loop that works when woken, and looks by itself now and then: a lost wake-up costs time, never work."""

    poll_seconds = 1.0

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self.on_failure: Callable[[str], object] = lambda _: None
        """Called with the name of a part that goes on after an error."""

    def wake(self) -> None:
        """There is work."""
        self._woken.set()

    async def run(self) -> None:
        """Work until cancelled, whatever goes wrong: the next look comes later and later, until one goes well.

        Raises:
            StartError: only a new process would do better.
        """
        failures = 0
        while True:
            self._woken.clear()
            try:
                wait = await self.work()
            except Unavailable as error:
                log.warning("loop.delayed", part=type(self).__name__, error=str(error))
                wait = RETRY_SECONDS
            except StartError:
                raise
            except Exception:
                self.on_failure(type(self).__name__)
                log.exception("work.failed", part=type(self).__name__, failures=failures + 1)
                await asyncio.sleep(backoff_seconds(failures))
                failures += 1
                continue
            failures = 0
            try:
                async with asyncio.timeout(wait):
                    await self._woken.wait()
            except TimeoutError:
                continue

    @abstractmethod
    async def work(self) -> float:
        """Do what is there to do; seconds until the next look."""
