"""Process priorities on a machine with few cores, and the delays of retries."""

import gc
import os
import sys
from contextlib import suppress
from typing import Final

NICENESS: Final = 5
"""The niceness of background work, which then gets a quarter of a contended core.

Twice as much leaves a tenth.
"""

SWITCH_SECONDS: Final = 0.001
"""Longest time that a computing thread keeps others waiting; Python's default is 5 ms."""

BUSY_TASKS: Final = 2
"""The load per core, over one minute, above which idle priority rarely gets a core."""


LONGEST_BACKOFF_SECONDS: Final = 30.0


def backoff_seconds(failures: int) -> float:
    """Return the delay before the next attempt, given the number of earlier failures.

    >>> [backoff_seconds(failures) for failures in (0, 1, 2, 99)]
    [1.0, 2.0, 4.0, 30.0]
    """
    return min(2.0 ** min(failures, 10), LONGEST_BACKOFF_SECONDS)


def lower_priority(niceness: int = NICENESS) -> None:
    """Lower the priority of this thread and of the threads that it starts from now on."""
    with suppress(OSError):  # A sandbox may forbid it.
        os.nice(niceness)


def use_idle_priority() -> None:
    """Run this thread only on idle cores, on Linux. This cannot be undone.

    A thread with a mere lower priority still keeps a core for 10 ms at a time, which is long
    compared with the time to compute a window.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def is_load_low() -> bool:
    """Return whether a thread with idle priority will get a core soon."""
    try:
        return os.getloadavg()[0] <= BUSY_TASKS * (os.cpu_count() or 1)
    except OSError:
        return False


def tune_interpreter(*, has_batches: bool = False) -> None:
    """Look for garbage less often, not at the start's objects; have computing threads give way.

    A process that `has_batches` looks seldom, and each time at more objects.
    """
    # Imported objects stay, and hardly one of them is garbage: to look for it takes 0.1 s. Requests
    # and batches create many short-lived values and no cycles.
    gc.freeze()
    # To look at 50,000 objects takes 15 ms, which no request should wait for. But all objects of a
    # batch stay until it is stored: to look more often costs 5% of the intake.
    gc.set_threshold(*((50_000, 20, 50) if has_batches else (10_000, 100, 50)))
    sys.setswitchinterval(SWITCH_SECONDS)
