"""A periodic test that the database accepts writes."""

import time
from collections.abc import Awaitable, Callable

import structlog

from turnfold_worker.loops.polling import PollingLoop

log = structlog.get_logger()


class WriteProbe(PollingLoop):
    """Sees that the database can be written, and remembers when it could."""

    poll_seconds = 5.0

    def __init__(self, *, probe: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._probe = probe
        self._written_at = time.monotonic()

    @property
    def age_seconds(self) -> float:
        """How long ago it could be written."""
        return time.monotonic() - self._written_at

    async def work(self) -> float:
        """Look."""
        await self._probe()
        self._written_at = time.monotonic()
        return self.poll_seconds
