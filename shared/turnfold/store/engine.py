"""Connections to the database: one that writes, several that read from a snapshot."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, QueuePool, create_engine, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoFreeConnection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from turnfold.errors import StartError, Unavailable
from turnfold.store.near import Bare, Near, NotAtHand

BUSY_SECONDS = 30
READERS = 4

Found = TypeVar("Found")


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
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="snapshot") if self.is_sqlite else None
        self._quick = self._sqlite_in_threads() if self.is_sqlite else None
        self._near = Near(self._quick) if self._quick is not None else None

    @asynccontextmanager
    async def write(self) -> AsyncGenerator[AsyncConnection]:
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
    async def read(self) -> AsyncGenerator[AsyncConnection]:
        """A transaction that sees one snapshot and writes nothing.

        Raises:
            Unavailable: the database cannot be reached now.
        """
        with _Translated():
            async with self._reader.begin() as connection:
                yield connection

    async def snapshot(self, work: Callable[[Connection], Found]) -> Found:
        """Do some reading in one snapshot, written as plain code.

        On SQLite all of it runs in one thread, and costs one way there and back however many statements it makes; each
        awaited statement would cost several. On PostgreSQL the statements are awaited as ever.

        Raises:
            Unavailable: the database cannot be reached now.
        """
        if self._quick is None:
            async with self.read() as connection:
                return await connection.run_sync(work)
        quick = self._quick

        def in_thread() -> Found:
            with _Translated(), quick.begin() as connection:
                return work(connection)

        return await asyncio.get_running_loop().run_in_executor(self._threads, in_thread)

    def at_hand(self, work: Callable[[Bare], Found]) -> Found:
        """Do a little reading in one snapshot here and now; see `turnfold.store.near`.

        Raises:
            NotAtHand: use `snapshot`, which keeps nobody else waiting.
        """
        if self._near is None:
            raise NotAtHand
        return self._near.read(work)

    async def close(self) -> None:
        """Give every connection back."""
        if self._quick is not None and self._threads is not None and self._near is not None:
            self._threads.shutdown()
            self._near.close()
            self._quick.dispose()
        for engine in (self._writer, self._reader):
            if engine is not None:
                await engine.dispose()

    def _engine(self, *, writes: bool) -> AsyncEngine:
        if not self.is_sqlite:
            options = {} if writes else {"isolation_level": "REPEATABLE READ"}
            return create_async_engine(self.url, pool_size=READERS, max_overflow=0, pool_pre_ping=True, **options)
        url = self.url if writes else self._read_only()
        engine = create_async_engine(
            url, pool_size=1 if writes else READERS, max_overflow=0, pool_timeout=BUSY_SECONDS, connect_args={"timeout": BUSY_SECONDS}
        )
        _prepare_sqlite(engine.sync_engine, writes=writes)
        return engine

    def _sqlite_in_threads(self) -> Engine:
        url = self._read_only().set(drivername="sqlite+pysqlite")
        arguments = {"timeout": BUSY_SECONDS, "check_same_thread": False, "cached_statements": 256}
        engine = create_engine(url, poolclass=QueuePool, pool_size=READERS + 1, max_overflow=0, connect_args=arguments)
        _prepare_sqlite(engine, writes=False)
        return engine

    def _read_only(self) -> URL:
        path = self.url.database
        if not path or path == ":memory:":
            raise StartError("TURNFOLD_DATABASE_URL names no file; sqlite+aiosqlite:///path/to/turnfold.db does")
        return self.url.set(database=f"file:{_quoted(path)}", query={"mode": "ro", "uri": "true"})


def insert_for(connection: AsyncConnection) -> Any:
    """The dialect's INSERT, which knows ON CONFLICT."""
    return sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert


class _Translated:
    """Turn errors of the driver that a later try may not meet into `Unavailable`."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TimeoutError | NoFreeConnection | OSError) or (
            isinstance(error, DBAPIError) and (error.connection_invalidated or may_pass(error.orig))
        ):
            raise Unavailable(f"the database cannot be used now ({_first_line(error)}); try again later") from error


_PASSING = ("08", "40", "53", "55", "57", "58")
"""Classes of SQLSTATE that say nothing against the statement: connections, deadlocks, resources, locks, operators, the system."""


def may_pass(error: BaseException | None) -> bool:
    """Whether a later try of what made the driver raise this may succeed."""
    sqlstate = getattr(error, "sqlstate", None) or ""
    return sqlstate[:2] in _PASSING or type(error).__name__ in ("OperationalError", "InterfaceError")


def _first_line(error: BaseException | None) -> str:
    cause = getattr(error, "orig", None) or error
    return str(cause).partition("\n")[0][:200]


def _quoted(path: str) -> str:
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _prepare_sqlite(engine: Engine, *, writes: bool) -> None:
    settings = ["journal_mode=WAL", "synchronous=FULL", "cache_size=-65536"] if writes else ["query_only=ON", "cache_size=-4096"]

    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: object) -> None:
        # The driver begins no transaction by itself; `on_begin` says which kind it is.
        connection.isolation_level = None
        cursor = connection.cursor()
        for setting in [f"busy_timeout={BUSY_SECONDS * 1000}", "foreign_keys=ON", *settings]:
            cursor.execute(f"PRAGMA {setting}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def on_begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
