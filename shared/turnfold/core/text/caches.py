"""Caches of functions of texts, all of which can be emptied at once.

An erasure must leave no copy of a text behind, so a function whose arguments or results hold
texts of users is cached with `cached_text`, never with `lru_cache` alone.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, TypeVar, cast

Cached = TypeVar("Cached", bound=Callable[..., Any])

_clearing: Final[list[Callable[[], None]]] = []


def cached_text(maxsize: int) -> Callable[[Cached], Cached]:
    """Cache the last `maxsize` results of a pure function until `forget_texts`."""

    def decorate(function: Cached) -> Cached:
        cached: Any = lru_cache(maxsize=maxsize)(function)
        _clearing.append(cached.cache_clear)
        return cast("Cached", cached)

    return decorate


def forget_texts() -> None:
    """Empty the caches of all functions of texts. Results do not change."""
    for clear in _clearing:
        clear()
