"""Denials of the server, for work that publishes to several subjects and awaits one reply."""

import asyncio
import re
from collections.abc import Callable, Collection, Coroutine
from typing import Any, TypeVar

from turnfold.errors import NotAllowed

_DENIED = re.compile(r'permissions violation for publish to "([^"]+)"', re.IGNORECASE)

Result = TypeVar("Result")


class DenialWatch:
    """Ends work when the server reports one of its subjects as forbidden.

    The server sends that report as an error of the connection, not as a reply. For work with one
    subject, `NatsClient` does the same, without a task.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Future[str]]] = {}

    async def run(
        self, subjects: Collection[str], work: Callable[[], Coroutine[Any, Any, Result]]
    ) -> Result:
        """Run `work`, and raise `NotAllowed` at the first report about one of the subjects."""
        denied: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        for subject in subjects:
            self._waiting.setdefault(subject.lower(), set()).add(denied)
        working = asyncio.ensure_future(work())
        try:
            await asyncio.wait((working, denied), return_when=asyncio.FIRST_COMPLETED)
            if denied.done():
                raise NotAllowed(f"these credentials may not use {denied.result()}")
            return await working
        finally:
            # `asyncio.wait` leaves its tasks running, also when it is canceled itself.
            working.cancel()
            for subject in subjects:
                waiting = self._waiting[subject.lower()]
                waiting.discard(denied)
                if not waiting:
                    del self._waiting[subject.lower()]

    def report(self, error: Exception) -> None:
        """End the work that an error of the connection is about."""
        if denial := _DENIED.search(str(error)):
            # nats-py converts the server's error text to lower case.
            for waiting in self._waiting.get(denial[1].lower(), ()):
                if not waiting.done():
                    waiting.set_result(denial[1])
