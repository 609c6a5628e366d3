"""Who stands back for whom on a machine with few cores, and by how much."""

import os
import sys
from contextlib import suppress
from typing import Final

NICENESS: Final = 5
"""Somebody waits for each window. Where others want the same core, who stands back gets a quarter of it."""

BUSY_TASKS: Final = 2
"""So many tasks a core over the last minute, and who waits for an idle core waits for long."""


LONGEST_BACKOFF_SECONDS: Final = 30.0


def backoff_seconds(failures: int) -> float:
    """How long to wait before the next attempt, after so many failures before this one.

    >>> [backoff_seconds(failures) for failures in (0, 1, 2, 99)]
    [1.0, 2.0, 4.0, 30.0]
    """
    return min(2.0 ** min(failures, 10), LONGEST_BACKOFF_SECONDS)


def lower_priority() -> None:
    """Let this thread, and those it starts from now on, come after others who want the same core."""
    with suppress(OSError):  # A sandbox may forbid it; then nobody comes first.
        os.nice(NICENESS)


def step_aside() -> None:
    """Let this process come after all others: a tenth of a core, where others want the whole."""
    with suppress(OSError):
        os.nice(2 * NICENESS)


def use_idle_priority() -> None:
    """Let this thread compute when nobody else wants the core, where the system knows of such a thing. There is no way back.

    Ten milliseconds at a stretch are long beside a window, and standing back alone lets others begin no sooner.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def is_load_low() -> bool:
    """Whether who gives way gets its turn soon."""
    try:
        return os.getloadavg()[0] <= BUSY_TASKS * (os.cpu_count() or 1)
    except OSError:
        return False
