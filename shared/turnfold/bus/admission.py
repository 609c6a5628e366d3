"""How many requests one process works on at a time: better a quick no than a late answer."""

from collections.abc import Generator
from contextlib import contextmanager

from turnfold.errors import Unavailable


class Admission:
    """So many at once; the rest are told to come back."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._admitted = 0

    @contextmanager
    def admitted(self) -> Generator[None]:
        """One more, for as long as the body runs.

        Raises:
            Unavailable: there is no room for it.
        """
        if self._admitted >= self._most:
            raise Unavailable(f"{self._most} requests at once are in hand here, and no more; try again shortly")
        self._admitted += 1
        try:
            yield
        finally:
            self._admitted -= 1
