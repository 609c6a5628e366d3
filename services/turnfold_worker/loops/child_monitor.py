"""Restart of the summarizer process."""

from collections.abc import Callable
from typing import Protocol

import structlog

from turnfold.errors import SummarizerError, Unavailable
from turnfold_worker.loops.polling import PollingLoop

log = structlog.get_logger()


class RestartableChild(Protocol):
    """A process that writes summaries."""

    @property
    def pid(self) -> int | None:
        """The process, while it lives."""
        ...

    async def start(self) -> None:
        """Start the process unless it lives."""
        ...


class ChildMonitor(PollingLoop):
    """Starts the summariser's process again when it died, and tells which one it is now; its first start is others' work."""

    def __init__(self, *, summarizer: RestartableChild, on_change: Callable[[], object]) -> None:
        super().__init__()
        self._summarizer = summarizer
        self._on_change = on_change
        self._told = summarizer.pid

    async def work(self) -> float:
        """See that it lives."""
        if self._told is not None:
            try:
                await self._summarizer.start()
            except SummarizerError as error:
                raise Unavailable(str(error)) from error
        if (pid := self._summarizer.pid) is not None and pid != self._told:
            self._told = pid
            self._on_change()
        return self.poll_seconds
