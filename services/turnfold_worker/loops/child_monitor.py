"""Restart of the summarizer process."""

from collections.abc import Callable

from turnfold.errors import SummarizerError, Unavailable
from turnfold.models import ChildSummarizer
from turnfold_worker.loops.polling import PollingLoop


class ChildMonitor(PollingLoop):
    """Restart the summarizer process after it has exited, and report its new id.

    The monitor does not start the process for the first time; `start` or the first job does.
    """

    def __init__(self, *, summarizer: ChildSummarizer, on_start: Callable[[int], object]) -> None:
        super().__init__()
        self._summarizer = summarizer
        self._on_start = on_start
        self._reported_pid = summarizer.pid

    async def work(self) -> float:
        """Restart the process if it has exited."""
        # Without a model there may never be a job that needs the process.
        if self._reported_pid is not None:
            try:
                await self._summarizer.start()
            except SummarizerError as error:
                raise Unavailable(str(error)) from error
        if (pid := self._summarizer.pid) is not None and pid != self._reported_pid:
            self._reported_pid = pid
            self._on_start(pid)
        return self.poll_seconds
