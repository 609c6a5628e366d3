"""What was of use lately, kept in bounds."""

from collections import OrderedDict
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class LRUCache(Generic[Key, Value]):
    """Values with a weight, as many as weigh no more than `most` together; the one not kept for longest goes first.

    A value that was taken belongs to who took it until it is kept again, so two never work on the same one.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._weight = 0
        self._kept: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._lock = Lock()

    def pop(self, key: Key) -> Value | None:
        """What was kept under a key last, if it is still there; it is not any more then."""
        with self._lock:
            return self._taken(key)

    def put(self, key: Key, value: Value, weight: int) -> None:
        """Keep this under a key; what alone weighs a quarter of all is not worth it."""
        with self._lock:
            self._taken(key)
            if weight > self._most // 4:
                return
            self._kept[key] = value, weight
            self._weight += weight
            while self._weight > self._most:
                self._taken(next(iter(self._kept)))

    def clear(self) -> None:
        """Forget all of it."""
        with self._lock:
            self._kept.clear()
            self._weight = 0

    def _taken(self, key: Key) -> Value | None:
        value, weight = self._kept.pop(key, (None, 0))
        self._weight -= weight
        return value
