"""Connections to the database: one that writes, several that read from a snapshot."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from turnfold.errors import StartError, Unavailable

BUSY_SECONDS = 30
READERS = 4


class Database:
    """One database, as the two kinds of transaction that the store makes.

    On SQLite there is one writing connection (WAL, `synchronous=FULL`, BEGIN IMMEDIATE), because two that write or
    checkpoint at once can corrupt the file before 3.51.3; readers open it read-only and see one snapshot each.
    """

    def __init__(self, url: str, *, writes: bool) -> None:
        self.url = make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        if not self.is_sqlite and self.url.get_backend_name() != "postgresql":
            raise StartError(f"TURNFOLD_DATABASE_URL names {self.url.get_backend_name()}; SQLite and PostgreSQL are supported")
        self._writer = self._engine(writes=True) if writes else None
        self._reader = self._engine(writes=False)

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that may write; committed at the end, rolled back on any error.

        Raises:
            Unavailable: the database cannot be reached or written now; nothing was changed.
        """
        if self._writer is None:
            raise StartError("this process was opened for reading only")
        with _Translated():
            async with self._writer.begin() as connection:
                yield connection

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that sees one snapshot and writes nothing.

        Raises:
            Unavailable: the database cannot be reached now.
        """
        with _Translated():
            async with self._reader.begin() as connection:
                yield connection

    async def close(self) -> None:
        """Give every connection back."""
        for engine in (self._writer, self._reader):
            if engine is not None:
                await engine.dispose()

    def _engine(self, *, writes: bool) -> AsyncEngine:
        if not self.is_sqlite:
            options = {} if writes else {"isolation_level": "REPEATABLE READ"}
            return create_async_engine(self.url, pool_size=READERS, max_overflow=0, pool_pre_ping=True, **options)
        path = self.url.database
        if not path or path == ":memory:":
            raise StartError("TURNFOLD_DATABASE_URL names no file; sqlite+aiosqlite:///path/to/turnfold.db does")
        url = self.url if writes else self.url.set(database=f"file:{_quoted(path)}", query={"mode": "ro", "uri": "true"})
        engine = create_async_engine(
            url, pool_size=1 if writes else READERS, max_overflow=0, pool_timeout=BUSY_SECONDS, connect_args={"timeout": BUSY_SECONDS}
        )
        _prepare_sqlite(engine, writes=writes)
        return engine


def insert_for(connection: AsyncConnection) -> Any:
    """The dialect's INSERT, which knows ON CONFLICT."""
    return sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert


class _Translated:
    """Turn errors of the driver that a later try may not meet into `Unavailable`."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        is_away = isinstance(error, OperationalError | InterfaceError) or (isinstance(error, DBAPIError) and error.connection_invalidated)
        if is_away or isinstance(error, TimeoutError | OSError):
            raise Unavailable(f"the database cannot be used now ({_first_line(error)}); try again later") from error


def _first_line(error: BaseException | None) -> str:
    cause = getattr(error, "orig", None) or error
    return str(cause).partition("\n")[0][:200]


def _quoted(path: str) -> str:
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _prepare_sqlite(engine: AsyncEngine, *, writes: bool) -> None:
    settings = ["journal_mode=WAL", "synchronous=FULL", "cache_size=-65536"] if writes else ["query_only=ON", "cache_size=-8192"]

    @event.listens_for(engine.sync_engine, "connect")
    def on_connect(connection: Any, _record: object) -> None:
        # The driver begins no transaction by itself; `on_begin` says which kind it is.
        connection.isolation_level = None
        cursor = connection.cursor()
        for setting in [f"busy_timeout={BUSY_SECONDS * 1000}", "foreign_keys=ON", *settings]:
            cursor.execute(f"PRAGMA {setting}")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def on_begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
