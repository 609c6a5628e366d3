"""Hints to the workers: the budgets of windows, sent after the windows and never awaited."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Final

import nats.errors

from turnfold.bus.hints import PendingHints
from turnfold.contracts.hints import BudgetHint, write_hint
from turnfold.messages import SessionKey

PAUSE_SECONDS: Final = 0.05
"""The pause before hints are sent, so that the windows they tell of go first."""
SESSIONS_AT_ONCE: Final = 50
REPEAT_SECONDS: Final = 1.0
"""The same hint is sent at most once in this time; until a worker has acted, windows repeat it."""


class HintSender:
    """Send hints in the background, each at most once per `REPEAT_SECONDS`."""

    def __init__(self, publish: Callable[[str, bytes], Awaitable[None]]) -> None:
        self._publish = publish
        self._pending = PendingHints()
        self._sent: set[tuple[SessionKey, int, bool]] = set()
        self._sent_since = time.monotonic()
        self._woken = asyncio.Event()

    def add(self, key: SessionKey, hint: BudgetHint) -> None:
        """Have a hint sent, unless the same one was sent a moment ago or too many wait."""
        now = time.monotonic()
        if now - self._sent_since >= REPEAT_SECONDS:
            self._sent.clear()
            self._sent_since = now
        same = (key, hint.tokens, hint.folded > 0)
        if same not in self._sent and self._pending.add(key, hint):
            self._sent.add(same)
            self._woken.set()

    async def run(self) -> None:
        """Send hints until cancelled. Those that the bus does not take now are lost."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            await asyncio.sleep(PAUSE_SECONDS)
            for key, hints in self._pending.take(SESSIONS_AT_ONCE).items():
                for hint in hints:
                    with contextlib.suppress(nats.errors.Error):
                        await self._publish(*write_hint(key, hint))
            if len(self._pending):
                self._woken.set()
