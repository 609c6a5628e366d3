"""Return freed memory to the system, so that a peak does not last as long as the process.

glibc keeps what a program frees between two allocations that remain, in each of its arenas. Every
process of a service runs `return_freed_memory` beside its work, and every process of a worker
`forget_and_return_memory`.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from turnfold.core.text.caches import forget_texts

LOOK_SECONDS: Final = 5.0
GROWTH_BYTES: Final = 16 * 1024 * 1024
"""Memory is returned when a process has grown by so much. Less would cost time for little."""

_STATM = Path("/proc/self/statm")


async def forget_and_return_memory() -> None:
    """Empty the caches of texts every `LOOK_SECONDS`, and return freed memory, until cancelled.

    An erasure by one worker then reaches the processes of all. To fill the caches again takes some
    milliseconds.
    """

    async def forget() -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            forget_texts()

    await asyncio.gather(forget(), return_freed_memory())


async def return_freed_memory() -> None:
    """Return freed memory whenever this process has grown, until cancelled.

    On other systems than Linux with glibc, there is nothing to do.
    """
    trim = _trim_function()
    if trim is None:
        return
    settled = resident_bytes()
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        # The C library also returns memory by itself; growth counts from there.
        settled = min(settled, resident_bytes())
        if resident_bytes() > settled + GROWTH_BYTES:
            # In a thread: it takes some milliseconds per 10 MB.
            await asyncio.to_thread(trim)
            settled = resident_bytes()


def trim_memory() -> None:
    """Return all free pages of this process now, where the C library can."""
    trim = _trim_function()
    if trim is not None:
        trim()


def resident_bytes() -> int:
    """Return the resident memory of this process, on Linux."""
    pages = int(_STATM.read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _trim_function() -> Callable[[], object] | None:
    """Return a function that returns all free pages, or None if the C library has none."""
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    if not _STATM.exists():
        return None
    return lambda: malloc_trim(0)
