"""The sizes of a session's turns, which decide how deep a window is trimmed."""

from bisect import insort

from turnfold.messages import Message


class TurnSizes:
    """The tokens of turns, each from its request to the next. Mutable, because windows grow."""

    def __init__(self) -> None:
        self._sorted: list[int] = []
        self._newest: int | None = None

    def add(self, message: Message) -> None:
        """Add the next message."""
        if message.is_request:
            if self._newest is not None:
                insort(self._sorted, self._newest)
            self._newest = 0
        if self._newest is not None:
            self._newest += message.tokens

    @property
    def median(self) -> int:
        """The median of the turns that have ended; 0 without one."""
        return self._sorted[len(self._sorted) // 2] if self._sorted else 0
