"""Report what model calls reveal about a model's window, without delaying the calls."""

import asyncio
import logging
from typing import Any, Final

from turnfold.client.provider import Provider, UsageReporter, WindowReport
from turnfold.core.recovery.overflow import Overflow, prompt_tokens_of
from turnfold.errors import RequestError

REPORT_SECONDS: Final = 0.5
"""How long a call waits until the service has accepted a report of an overflow."""

log = logging.getLogger("turnfold.client")


class WindowReports:
    """The reports of one conversation; ignored if its provider does not accept any."""

    def __init__(self, provider: Provider | None) -> None:
        self._reporter = provider if isinstance(provider, UsageReporter) else None
        self._largest: dict[str | None, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def overflowed(self, model: str | None, overflow: Overflow) -> None:
        """Report an overflow, and wait a moment so that the service can compact at once."""
        self._largest.setdefault(model, 0)
        report = WindowReport(
            limit_tokens=overflow.limit_tokens, prompt_tokens=overflow.tokens, is_overflow=True
        )
        task = self._send(model, report)
        if task is not None:
            await asyncio.wait({task}, timeout=REPORT_SECONDS)

    def succeeded(self, model: str | None, answer: Any) -> None:
        """After an overflow, report the size of a call that the model accepted.

        A call is reported only if it is a tenth larger than the one reported before.
        """
        tokens = prompt_tokens_of(answer)
        if model in self._largest and tokens * 10 > self._largest[model] * 11:
            self._largest[model] = tokens
            self._send(model, WindowReport(prompt_tokens=tokens))

    def _send(self, model: str | None, report: WindowReport) -> asyncio.Task[None] | None:
        if model is None or self._reporter is None:
            return None
        # In the background, because the model's answer must not wait for a report. The set keeps
        # the task from being collected.
        task = asyncio.get_running_loop().create_task(_send(self._reporter, model, report))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _send(reporter: UsageReporter, model: str, report: WindowReport) -> None:
    """Send a report; a failure is logged and changes nothing."""
    try:
        await reporter.report(model, report)
    except (RequestError, TimeoutError, OSError) as error:
        log.warning("usage.unreported: the report is lost (%s)", type(error).__name__)
