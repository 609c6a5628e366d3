"""Reliable cancellation of tasks."""

import asyncio
from typing import Any

RETRY_SECONDS = 0.5


async def cancel_and_wait(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel tasks repeatedly until all have ended, and ignore their results.

    Cancelling once is not enough: before Python 3.12, `asyncio.wait_for` swallows a cancellation
    that arrives together with the result. nats-py waits for every reply in it, so a task that
    requests in a loop would never end.
    """
    while open_ := [task for task in tasks if not task.done()]:
        for task in open_:
            task.cancel()
        await asyncio.wait(open_, timeout=RETRY_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)
