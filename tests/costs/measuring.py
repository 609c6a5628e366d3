"""How the processor time of a piece of work grows with its input: measured at sizes that double.

Nothing is compared with a clock: a case fails when four times the input takes more than `MOST_GROWTH` times the time, which
n log n never does and n * n always does. Caches of the code are emptied before each measurement.
"""

import gc
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

MOST_GROWTH: Final = 8.8
"""Four times the size takes 4 times the time when the work is linear, 5.4 when it is n log n, and 16 when it is n * n."""
REPEATS: Final = 3
CONFIRMATIONS: Final = 3
"""A case that grew too fast is measured again this often; it fails only if it did so each time."""

Work = Callable[[], object]
Build = Callable[[int], Work]
"""Makes the work for an input of a size; making it is not measured."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The processor time of one case at a size and at four times that size."""

    size: int
    seconds: float
    seconds_at_four_times: float

    @property
    def ratio(self) -> float:
        """By which factor four times the size takes longer."""
        return self.seconds_at_four_times / max(self.seconds, 1e-9)

    @property
    def is_too_fast(self) -> bool:
        """Whether the time grows faster than n log n."""
        return self.ratio > MOST_GROWTH


class Case(NamedTuple):
    """Generated work: its name tells how it is made, its sizes double up to `last`."""

    name: str
    build: Build
    last: int
    first: int = 64
    has_thresholds: bool = False
    """Whether more is done from some size on: then the time must grow too fast again at twice the sizes to be a fault."""


def growth_of(
    case: Case,
    *,
    least_seconds: float,
    most_seconds: float = 3.0,
    clock: Callable[[], float] = time.thread_time,
) -> Growth | None:
    """Measure a case at the first size that takes `least_seconds`, and at four times that size; None if none takes that long.

    A size that takes `most_seconds` is the largest that is tried. `clock` gives the seconds that work has taken so far.
    """
    sizes: list[int] = []
    seconds: list[float] = []
    size = case.first
    while size <= case.last:
        sizes.append(size)
        seconds.append(_seconds(case.build, size, clock))
        is_long = seconds[-1] > most_seconds
        if len(sizes) > 2 and (seconds[-3] >= least_seconds or is_long):
            break
        # Slow machines take longer; what counts is how the time grows.
        if seconds[-1] > 4 * most_seconds:
            raise TimeoutError(f"an input of size {size} took {seconds[-1]:.1f} s")
        size *= 2
    else:
        return None
    found = Growth(sizes[-3], seconds[-3], seconds[-1])
    for _ in range(CONFIRMATIONS):
        if not found.is_too_fast:
            break
        small = 2 * found.size if case.has_thresholds and found.size == sizes[-3] else found.size
        found = Growth(
            small,
            _seconds(case.build, small, clock),
            _seconds(case.build, 4 * small, clock),
        )
    return found


def _seconds(build: Build, size: int, clock: Callable[[], float]) -> float:
    """The least processor time of a few runs; one run if that takes long."""
    best = float("inf")
    was_enabled = gc.isenabled()
    for _ in range(REPEATS):
        work = build(size)
        for clear in _cache_clears():
            clear()
        gc.collect(0)
        gc.disable()
        try:
            began = clock()
            work()
            best = min(best, clock() - began)
        finally:
            if was_enabled:
                gc.enable()
        if best > 0.5:
            break
    return best


def _cache_clears() -> Iterator[Callable[[], Any]]:
    """The calls that empty the caches of our functions, those of services too."""
    for name, module in list(sys.modules.items()):
        if name.startswith("turnfold"):
            for value in list(vars(module).values()):
                clear = getattr(value, "cache_clear", None)
                if clear is not None and callable(clear):
                    yield clear
