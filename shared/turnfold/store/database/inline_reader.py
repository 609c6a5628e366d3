"""Read from SQLite in the event loop's thread: changing threads costs more than a window does."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Engine, PoolProxiedConnection
from sqlalchemy.engine import Dialect

from turnfold.errors import Unavailable

SLOW_SECONDS = 0.05
PAUSE_SECONDS = 1.0
"""The time for which reads are refused after one that took longer than `SLOW_SECONDS`."""
INLINE_CHARACTERS = 200_000
"""The most characters that a statement reads here, in about a millisecond."""
ROWS_AT_ONCE = 8
"""The rows that are read before their length is looked at."""

Result = TypeVar("Result")


class WouldBlock(Exception):
    """This read would block other requests; use a thread."""


class RawConnection(NamedTuple):
    """The driver's connection. SQLAlchemy around it would cost as much as the statement itself."""

    dialect: Dialect
    connection: Any


class InlineReader:
    """One connection that reads in the calling thread.

    A reader of a WAL file waits for no writer, and the pages of windows are nearly always in
    memory. If the file is busy, the read is refused at once. After a slow read, reads are refused
    for a while.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._held: PoolProxiedConnection | None = None
        self._raw: RawConnection | None = None
        self._refused_until = 0.0

    def read(self, work: Callable[[RawConnection], Result]) -> Result:
        """Read a few rows in one snapshot; `work` sends its statements to the driver directly.

        Raises:
            WouldBlock: read in a thread instead.
        """
        began = time.monotonic()
        if began < self._refused_until:
            raise WouldBlock
        try:
            raw = self._raw or self._opened()
            raw.connection.execute("BEGIN")
            try:
                return work(raw)
            finally:
                # At once: the log cannot be truncated while a snapshot of it is open.
                raw.connection.execute("ROLLBACK")
        except Unavailable as error:
            raise WouldBlock from error
        except self._engine.dialect.loaded_dbapi.Error as error:
            raise WouldBlock from error
        finally:
            ended = time.monotonic()
            if ended - began > SLOW_SECONDS:
                # One slow read means that pages are read from the disk. The next ones would block
                # the loop, too.
                self._refused_until = ended + PAUSE_SECONDS

    def close(self) -> None:
        """Close the connection."""
        if self._held is not None:
            self._held.close()
        self._engine.dispose()

    def _opened(self) -> RawConnection:
        self._held = self._engine.raw_connection()
        self._raw = RawConnection(self._engine.dialect, self._held.driver_connection)
        # The event loop must not wait for a lock. A thread takes over instead.
        self._raw.connection.execute("PRAGMA busy_timeout=0")
        return self._raw


def fetch_small(cursor: Any, length: Callable[[Sequence[Any]], int]) -> list[Sequence[Any]]:
    """Fetch all rows of a statement, a few at a time. `length` counts the characters of a row.

    Raises:
        WouldBlock: they have more than `INLINE_CHARACTERS`.
    """
    rows: list[Sequence[Any]] = []
    left = INLINE_CHARACTERS
    while few := cursor.fetchmany(ROWS_AT_ONCE):
        left -= sum(map(length, few))
        if left < 0:
            raise WouldBlock
        rows += few
    return rows
