"""Files of SQLite: their permissions, whatever the umask is, and the driver's connections."""

import asyncio
import os
from pathlib import Path
from typing import Any

import aiosqlite
from sqlalchemy.engine import URL

from turnfold.errors import StartError

FILE_MODE = 0o600
COMPANIONS = ("-wal", "-shm", "-journal", ".writer.lock")
"""The files beside the database. SQLite creates three of them with the mode of the database."""


def make_private(url: URL) -> None:
    """Create the file of a SQLite database if needed, and remove the permissions of others.

    The same applies to its companions. The directory stays as it is, because it may contain other
    files.

    Raises:
        StartError: others may read the file, and it belongs to another user.
    """
    if (
        url.get_backend_name() != "sqlite"
        or not url.database
        or url.database.startswith((":memory:", "file:"))
    ):
        return
    file = Path(url.database)
    if file.parent.is_dir() and not file.exists():
        # Created here with its mode, not changed afterwards: in between, others could open it.
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
    for path in (file, *(Path(f"{file}{suffix}") for suffix in COMPANIONS)):
        try:
            if path.stat().st_mode & 0o077:
                path.chmod(FILE_MODE)
        except FileNotFoundError:
            continue
        except PermissionError as error:
            raise StartError(
                f"others may read {path}, and it belongs to somebody else; "
                "run `chmod 600` on it as its owner"
            ) from error


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
