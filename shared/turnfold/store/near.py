"""Reading without leaving the thread that asks: on SQLite the way to another thread and back costs more than a window does."""

import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection, Engine

from turnfold.errors import Unavailable

SLOW_SECONDS = 0.05
FAR_SECONDS = 10.0

Found = TypeVar("Found")


class NotAtHand(Exception):
    """This cannot be read without keeping others waiting; a thread may."""


class Near:
    """One connection that reads where it is asked.

    A reader waits for no writer, and what windows are made of is nearly always in memory. Should the file be busy all the
    same, nothing is waited for; and after a read that took long, nothing is at hand for a while.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Connection | None = None
        self._far_until = 0.0

    def read(self, work: Callable[[Connection], Found]) -> Found:
        """Do a little reading in one snapshot; `work` sends its statements straight to the driver.

        Raises:
            NotAtHand: read in a thread instead.
        """
        began = time.monotonic()
        if began < self._far_until:
            raise NotAtHand
        try:
            connection = self._connection or self._opened()
            _tell(connection, "BEGIN")
            try:
                return work(connection)
            finally:
                _tell(connection, "ROLLBACK")
        except Unavailable as error:
            raise NotAtHand from error
        except self._engine.dialect.loaded_dbapi.Error as error:
            raise NotAtHand from error
        finally:
            ended = time.monotonic()
            if ended - began > SLOW_SECONDS:
                self._far_until = ended + FAR_SECONDS

    def close(self) -> None:
        """Give the connection back."""
        if self._connection is not None:
            self._connection.close()

    def _opened(self) -> Connection:
        self._connection = self._engine.connect()
        _tell(self._connection, "PRAGMA busy_timeout=0")
        return self._connection


def _tell(connection: Connection, sql: str) -> None:
    """Straight to the driver: SQLAlchemy's own transaction would cost as much as a statement."""
    cursor = connection.connection.cursor()
    try:
        cursor.execute(sql)
    finally:
        cursor.close()
