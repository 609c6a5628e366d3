"""How tasks are ended."""

import asyncio
from typing import Any

AGAIN_SECONDS = 0.5


async def cancel_and_wait(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel tasks until they are over, however they end.

    Once is not always enough: before Python 3.12 `asyncio.wait_for`, in which nats-py waits for every answer, forgets a
    cancellation that comes with the answer, and who waits in a loop goes on for ever.
    """
    while open_ := [task for task in tasks if not task.done()]:
        for task in open_:
            task.cancel()
        await asyncio.wait(open_, timeout=AGAIN_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)
