"""A periodic test that the database accepts writes."""

import time
from collections.abc import Awaitable, Callable

from turnfold_worker.loops.polling import PollingLoop


class WriteProbe(PollingLoop):
    """Write to the database periodically, and record when that last succeeded."""

    poll_seconds = 5.0

    def __init__(self, *, probe: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._probe = probe
        self._written_at = time.monotonic()

    @property
    def age_seconds(self) -> float:
        """The time since the last successful write."""
        return time.monotonic() - self._written_at

    async def work(self) -> float:
        """Write once."""
        await self._probe()
        self._written_at = time.monotonic()
        return self.poll_seconds
