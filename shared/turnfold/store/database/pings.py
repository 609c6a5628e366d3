"""Checks of pooled connections to PostgreSQL."""

import math
import time
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy.ext.asyncio import AsyncEngine

PING_SECONDS = 1.0


def ping_rarely(engine: AsyncEngine) -> None:
    """Ask the server at most once a second on each connection whether it still works.

    SQLAlchemy asks before each transaction, in a transaction of its own. These three round trips
    are as many as those of a transaction with one statement. A connection that the server has
    closed is known without asking.
    """
    dialect = engine.sync_engine.dialect
    ask = dialect.do_ping
    asked_at: WeakKeyDictionary[Any, float] = WeakKeyDictionary()

    def ping(connection: Any) -> bool:
        driver = connection.driver_connection
        if driver.is_closed():
            return False
        if time.monotonic() - asked_at.get(driver, -math.inf) < PING_SECONDS:
            return True
        is_working = ask(connection)
        asked_at[driver] = time.monotonic()
        return is_working

    dialect.do_ping = ping  # type: ignore[method-assign]  # the dialect is this engine's own
