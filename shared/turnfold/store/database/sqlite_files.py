"""SQLite: the permissions of its files, whatever the umask is, and its connections."""

import asyncio
import os
import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import aiosqlite
from sqlalchemy import Engine, event
from sqlalchemy.engine import URL

from turnfold.errors import StartError

# Longer than any transaction of this code: an error `database is locked` would only be retried.
BUSY_SECONDS = 30
VOCABULARY = "word_vocabulary"
"""The terms of SQLite's word index, in order: a temporary table of each connection that reads."""
FILE_MODE = 0o600
LOG_PAGES = 4_000
UNSYNCED_PAGES = 500
"""The pages (of 8 KB) of the log from which on a commit writes them into the database: one that
waits for the disk anyway, and one that does not."""
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
                f"other users can read {path}, which another user owns; "
                "run `chmod 600` on it as its owner"
            ) from error


def no_database(error: BaseException | None, url: URL) -> StartError | None:
    """Return what to do if SQLite cannot read a file because it is none of its own."""
    if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_NOTADB:
        return None
    # Readers name the file in a URL.
    file = unquote((url.database or "").removeprefix("file:"))
    return StartError(f"{file} is not a SQLite database; correct TURNFOLD_DATABASE_URL or move it")


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


# The driver binds these types as they are, but first searches for an adapter each time. That search
# takes longer than binding, and an entry ends it.
sqlite3.register_adapter(type(None), {None: None}.get)
sqlite3.register_adapter(bool, int)
sqlite3.register_adapter(bytes, bytes)


def prepare_sqlite(engine: Engine, *, writes: bool) -> None:
    """Set the pragmas of each connection, and how its transactions begin."""
    settings = (
        [
            "journal_mode=WAL",
            # An event is acknowledged after its commit, so the commit must survive a power cut.
            "synchronous=FULL",
            "cache_size=-16384",
            f"wal_autocheckpoint={LOG_PAGES}",
            # Erased text is overwritten in the file.
            "secure_delete=ON",
        ]
        if writes
        else ["query_only=ON", "cache_size=-4096"]
    )

    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: object) -> None:
        # The driver begins no transaction by itself; `begin` says which kind it is.
        connection.isolation_level = None
        cursor = connection.cursor()
        try:
            if not writes:
                # Before `query_only`, with which SQLite refuses to create this table as well.
                cursor.execute(
                    f"CREATE VIRTUAL TABLE temp.{VOCABULARY} "
                    "USING fts5vocab(main, word_index, 'instance')"
                )
            for setting in [f"busy_timeout={BUSY_SECONDS * 1000}", "foreign_keys=ON", *settings]:
                cursor.execute(f"PRAGMA {setting}")
        except sqlite3.DatabaseError as error:
            raise no_database(error, engine.url) or error from None
        cursor.close()

    def begin(connection: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
        cursor.close()

    # Not as a listener for the event `begin`: SQLAlchemy then looks for listeners per statement.
    engine.dialect.do_begin = begin  # type: ignore[assignment]  # the dialect is this engine's own
