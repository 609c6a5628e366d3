"""Reliable cancellation of tasks, and waits that end."""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, TypeVar

RETRY_SECONDS = 0.5

Result = TypeVar("Result")


async def cancel_and_wait(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel tasks repeatedly until all have ended, and ignore their results.

    Cancelling once is not enough: before Python 3.12, `asyncio.wait_for` swallows a cancellation
    that arrives together with the result. nats-py waits for every reply in it, so a task that
    requests in a loop would never end. So a task must not wait for anything that has to be
    completed once it is cancelled: the next cancellation would reach that, too.
    """
    while open_ := [task for task in tasks if not task.done()]:
        for task in open_:
            task.cancel()
        await asyncio.wait(open_, timeout=RETRY_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)


async def at_most(seconds: float | None, waiting: Awaitable[object]) -> None:
    """Wait for something, and cancel it if it has not ended after so many seconds, if any."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await waiting


def stop_signals() -> Sequence[signal.Signals]:
    """Return the signals that stop a system or a service. `nohup` has SIGHUP ignored."""
    # SIGINT even if it is ignored, as it is in jobs that a script starts with `&`.
    always = (signal.SIGTERM, signal.SIGINT)
    is_hangup_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return always if is_hangup_ignored else (*always, signal.SIGHUP)


def stop_event() -> asyncio.Event:
    """Return an event that the stop signals set from now on."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in stop_signals():
        loop.add_signal_handler(number, stop.set)
    return stop


async def unless(stop: asyncio.Event, waiting: Coroutine[Any, Any, Result]) -> Result | None:
    """Wait for a coroutine, and return its result; cancel it and return None if stopped."""
    task = asyncio.create_task(waiting)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        if not task.done():
            await cancel_and_wait(task)
    return None if task.cancelled() else task.result()
