"""The kinds of generated cases, each made from a seed and a number, so that a failure comes again."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.costs.measuring import Case, Growth, growth_of
from tests.costs.readers import text_case
from tests.costs.sessions import event_case, eviction_case, list_case, window_case

KINDS: Final[Mapping[str, Callable[[Random], Case]]] = {
    "text": text_case,
    "window": window_case,
    "list": list_case,
    "eviction": eviction_case,
    "event": event_case,
}


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of one case: its growth if it took long enough to be measured, and what is wrong with it if anything is."""

    name: str
    growth: Growth | None = None
    fault: str | None = None


def case(kind: str, seed: int, number: int) -> Case:
    """The case of this number."""
    return KINDS[kind](Random(f"{seed} {kind} {number}"))


def tried(kind: str, seed: int, number: int, *, least_seconds: float) -> Tried:
    """Measure the case of this number."""
    made = case(kind, seed, number)
    try:
        growth = growth_of(made, least_seconds=least_seconds)
    except TimeoutError as error:
        return Tried(made.name, fault=str(error))
    except Exception as error:  # noqa: BLE001 - whatever an input breaks is a fault to be told with its number
        return Tried(made.name, fault=repr(error))
    return Tried(
        made.name,
        growth,
        f"{growth.ratio:.1f} times the time: {growth}" if growth and growth.is_too_fast else None,
    )
