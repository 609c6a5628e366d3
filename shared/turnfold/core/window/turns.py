"""The sizes of a session's turns, which decide how deep a window is trimmed, and its reserve."""

from bisect import insort
from collections.abc import Sequence

from turnfold.messages import Message


class TurnSizes:
    """The tokens of the turns that have ended, and of the running one after its request.

    Mutable, because windows grow.
    """

    def __init__(self) -> None:
        self._whole: list[int] = []
        self._answers: list[int] = []
        self._request: int | None = None
        self.after_request = 0

    def add(self, message: Message) -> None:
        """Add the next message: a request ends the turn before it."""
        if message.is_request:
            if self._request is not None:
                insort(self._whole, self._request + self.after_request)
                insort(self._answers, self.after_request)
            self._request, self.after_request = message.tokens, 0
        else:
            self.after_request += message.tokens

    @property
    def median(self) -> int:
        """The median of whole turns, each from its request to the next; 0 without one."""
        return _median(self._whole)

    @property
    def median_after_request(self) -> int:
        """The median of the tokens that turns add after their request; 0 without one."""
        return _median(self._answers)


def _median(ordered: Sequence[int]) -> int:
    number = len(ordered)
    return (ordered[(number - 1) // 2] + ordered[number // 2]) // 2 if ordered else 0
