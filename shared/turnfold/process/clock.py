"""The wall clock, by which leases, signatures and audit rows are dated."""

import time


def now_ms() -> int:
    """Return the time (ms since 1970)."""
    return time.time_ns() // 1_000_000
