"""A bounded cache that several threads may use."""

from collections import OrderedDict
from collections.abc import Collection
from threading import Lock
from typing import Any, Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class LRUCache(Generic[Key, Value]):
    """Entries with a weight, of which the least recently used leave first.

    `pop` removes the entry that it returns: a value belongs to one request until that puts it
    back. An entry that weighs more than `max_entry_weight`, by default a quarter of `max_weight`,
    is not kept.
    """

    def __init__(self, max_weight: int, max_entry_weight: int | None = None) -> None:
        self.max_entry_weight = max_entry_weight or max_weight // 4
        self._max_weight = max_weight
        self._weight = 0
        # A library would hash each key several times, and some are long tuples.
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Key) -> Value | None:
        """Return an entry that requests may share, and mark it as used; None if there is none."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
        return entry[0]

    def pop(self, key: Key) -> Value | None:
        """Remove and return an entry; None if there is none."""
        with self._lock:
            return self._removed(key)

    def put(self, key: Key, value: Value, weight: int) -> None:
        """Add or replace an entry."""
        with self._lock:
            self._removed(key)
            if weight > self.max_entry_weight:
                return
            self._entries[key] = value, weight
            self._weight += weight
            while self._weight > self._max_weight:
                _, (_, left) = self._entries.popitem(last=False)
                self._weight -= left

    def _removed(self, key: Key) -> Value | None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._weight -= entry[1]
        return entry[0]

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._entries.clear()
            self._weight = 0

    def sessions(self) -> set[int]:
        """Return the session numbers with which keys begin."""
        with self._lock:
            return {_session_of(key) for key in self._entries}

    def remove_sessions(self, gone: Collection[int]) -> None:
        """Remove the entries whose keys begin with one of these session numbers."""
        with self._lock:
            for key in [key for key in self._entries if _session_of(key) in gone]:
                self._removed(key)


def _session_of(key: Any) -> int:
    """Return the session number of a key: the number itself, or the first of a tuple."""
    number: int = key[0] if isinstance(key, tuple) else key
    return number


class SessionCaches:
    """The caches of one process in which every key is a session number, or begins with one."""

    def __init__(self, *caches: LRUCache[Any, Any]) -> None:
        self._caches = caches

    def sessions(self) -> set[int]:
        """Return the numbers of all sessions that something is cached of."""
        return set().union(*(held.sessions() for held in self._caches))

    def remove(self, gone: Collection[int]) -> None:
        """Remove everything that is cached of these sessions."""
        for held in self._caches:
            held.remove_sessions(gone)

    def clear(self) -> None:
        """Remove all entries."""
        for held in self._caches:
            held.clear()
