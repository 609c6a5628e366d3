"""A bounded cache that several threads may use."""

from operator import itemgetter
from threading import Lock
from typing import Generic, TypeVar

import cachetools

Key = TypeVar("Key")
Value = TypeVar("Value")


class LRUCache(Generic[Key, Value]):
    """Entries with a weight, of which the least recently put leave first.

    `pop` removes the entry that it returns: a value belongs to one request until that puts it
    back. An entry that weighs more than a quarter of `max_weight` is not kept.
    """

    def __init__(self, max_weight: int) -> None:
        self._max_weight = max_weight
        self._entries: cachetools.LRUCache[Key, tuple[Value, int]] = cachetools.LRUCache(
            max_weight, getsizeof=itemgetter(1)
        )
        self._lock = Lock()

    def pop(self, key: Key) -> Value | None:
        """Remove and return an entry; None if there is none."""
        with self._lock:
            entry = self._entries.pop(key, None)
        return None if entry is None else entry[0]

    def put(self, key: Key, value: Value, weight: int) -> None:
        """Add or replace an entry."""
        with self._lock:
            self._entries.pop(key, None)
            if weight <= self._max_weight // 4:
                self._entries[key] = value, weight

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._entries.clear()
