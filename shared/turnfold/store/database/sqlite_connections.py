"""Connections of the asynchronous SQLite driver."""

import asyncio
from typing import Any

import aiosqlite


async def connect_sqlite(*arguments: Any, **options: Any) -> aiosqlite.Connection:
    """Connect, and leave no thread behind if that fails.

    The driver ends its thread without waiting for it. A thread that ends after the event loop
    prints a traceback, because it reports its end to that loop.
    """
    connecting = aiosqlite.connect(*arguments, **options)
    thread = connecting._thread  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    # As SQLAlchemy does: a process may end while a connection is open.
    thread.daemon = True
    try:
        return await connecting
    except BaseException:
        await asyncio.to_thread(thread.join)
        raise
