"""Run transactions in threads or awaited, interrupt them, and translate errors of the drivers."""

import asyncio
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as NoFreeConnection
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import greenlet_spawn

from turnfold.errors import Unavailable
from turnfold.process.tasks import at_most
from turnfold.store.database.inline_reader import RawConnection
from turnfold.store.database.sqlite_files import LOG_PAGES, UNSYNCED_PAGES

CLOSE_SECONDS = 2
UNIQUE_VIOLATION = "23505"
PING_SECONDS = 1.0

Result = TypeVar("Result")
_Within = Callable[[Connection], AbstractContextManager[object]]
"""Returns the context in which a transaction runs."""


@contextmanager
def savepoint(connection: Connection) -> Generator[None]:
    """Undo the statements of the body if one of them violates a key; the transaction goes on.

    SQLAlchemy compiles the statements of its own savepoints each time, which takes as long as the
    insert of an event.
    """
    connection.exec_driver_sql("SAVEPOINT undone")
    try:
        yield
    except IntegrityError:
        # ROLLBACK TO keeps the savepoint itself, which RELEASE ends.
        connection.exec_driver_sql("ROLLBACK TO SAVEPOINT undone")
        connection.exec_driver_sql("RELEASE SAVEPOINT undone")
        raise
    connection.exec_driver_sql("RELEASE SAVEPOINT undone")


class ThreadTransactions:
    """Transactions in our own threads, each with its own connection.

    Taking a connection from a pool costs more than beginning a transaction.
    """

    def __init__(self, engine: Engine, threads: int) -> None:
        self._engine = engine
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="database")
        self._own = threading.local()
        self._opened: list[Connection] = []

    async def run(
        self,
        work: Callable[[Connection], Result],
        *,
        on_end: Callable[[], object] | None = None,
        is_repeatable: bool = False,
    ) -> Result:
        """Run work in one of the threads. With `on_end`, cancelling interrupts the statement.

        `on_end` is called in the event loop once the thread is free again. The commit of
        `is_repeatable` work does not wait for the disk.
        """
        if on_end is None:
            within: _Within = _unsynced if is_repeatable else nullcontext
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, self._transact, work, within
            )
        interrupting = _Interrupting()
        running = self._threads.submit(self._transact, work, interrupting.of)
        try:
            result = await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            # The thread is free only when its statement has ended, so the turn is given back by the
            # thread.
            interrupting.end()
            running.add_done_callback(partial(_call_in_loop, asyncio.get_running_loop(), on_end))
            raise
        except BaseException:
            on_end()
            raise
        finally:
            # Otherwise a cycle: it holds its error, whose traceback holds this frame.
            del running
        on_end()
        return result

    def _transact(self, work: Callable[[Connection], Result], within: _Within) -> Result:
        with (
            TranslatedErrors(),
            self._connection() as connection,
            within(connection),
            connection.begin(),
        ):
            return work(connection)

    @contextmanager
    def _connection(self) -> Generator[Connection]:
        """Return the connection of this thread; after an error, the pool resets it."""
        connection: Connection | None = getattr(self._own, "connection", None)
        if connection is None:
            self._own.connection = connection = self._engine.connect()
            self._opened.append(connection)
        try:
            yield connection
        except BaseException:
            # It may be interrupted, or in a transaction that could not be ended.
            self._own.connection = None
            self._opened.remove(connection)
            connection.close()
            raise

    async def apart(self, work: Callable[[Any], Result]) -> Result:
        """Run work outside of any transaction, with the driver's connection."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._apart, work)

    def _apart(self, work: Callable[[Any], Result]) -> Result:
        with TranslatedErrors(), self._connection() as connection:
            return work(connection.connection.driver_connection)

    async def close(self) -> None:
        """Stop the threads and close their connections."""
        # In a thread, because it waits for the transactions that still run.
        await asyncio.to_thread(self._threads.shutdown)
        for connection in self._opened:
            connection.close()
        self._engine.dispose()


@contextmanager
def _unsynced(connection: Connection) -> Generator[None]:
    """Let a commit within the body not wait for the disk, unless it copies the log."""
    driver: Any = connection.connection.driver_connection
    # Before the transaction: SQLite refuses to change it within one.
    driver.execute("PRAGMA synchronous=NORMAL")
    # A copy of the log syncs all that such commits left, and ingest waits for that.
    driver.execute(f"PRAGMA wal_autocheckpoint={UNSYNCED_PAGES}")
    try:
        yield
    finally:
        driver.execute("PRAGMA synchronous=FULL")
        driver.execute(f"PRAGMA wal_autocheckpoint={LOG_PAGES}")


def _call_in_loop(loop: asyncio.AbstractEventLoop, on_end: Callable[[], object], _: object) -> None:
    with suppress(RuntimeError):  # the loop may be closed by now
        loop.call_soon_threadsafe(on_end)


class _Interrupting:
    """Interrupts a statement of SQLite from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: Any = None
        self._is_over = False

    @contextmanager
    def of(self, connection: Connection) -> Generator[None]:
        """Allow statements of this connection to be interrupted while the body runs."""
        with self._lock:
            # Cancelled before a thread was free: there is no statement yet that could be
            # interrupted.
            if self._is_over:
                raise Unavailable("the caller no longer waits for this")
            self._connection = connection.connection.driver_connection
        try:
            yield
        finally:
            with self._lock:
                self._connection = None

    def end(self) -> None:
        """Interrupt the statement now, or as soon as it begins."""
        with self._lock:
            # Under the lock, because interrupting a connection that has begun the next transaction
            # would end the work of somebody else.
            self._is_over = True
            if self._connection is not None:
                self._connection.interrupt()


class AwaitedTransactions:
    """Transactions whose statements are awaited by SQLAlchemy."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def run(
        self,
        work: Callable[[Connection], Result],
        *,
        on_end: Callable[[], object] = lambda: None,
        is_repeatable: bool = False,  # noqa: ARG002  # nobody waits for such a commit
    ) -> Result:
        """Run work; if the caller is cancelled, the server cancels the statement."""

        def transact() -> Result:
            with self._engine.sync_engine.begin() as connection:
                return work(connection)

        return await self._spawned(transact, on_end)

    async def run_alone(
        self, work: Callable[[RawConnection], Result], *, on_end: Callable[[], object]
    ) -> Result:
        """Run work in no transaction: each statement has a snapshot of its own.

        A transaction of one statement takes three round trips, and SQLAlchemy's as long as one.
        """
        engine = self._engine.sync_engine

        def read() -> Result:
            pooled = engine.raw_connection()
            driver: Any = pooled.dbapi_connection
            driver.autocommit = True
            try:
                return work(RawConnection(engine.dialect, pooled))
            finally:
                driver.autocommit = False
                pooled.close()

        return await self._spawned(read, on_end)

    async def _spawned(self, work: Callable[[], Result], on_end: Callable[[], object]) -> Result:
        try:
            with TranslatedErrors():
                # In one greenlet: `AsyncConnection` has one for each step, and tasks for some,
                # which take as long as several statements.
                return await greenlet_spawn(work)
        finally:
            on_end()

    async def close(self) -> None:
        """Close connections, but do not wait for a server that hangs."""
        await at_most(CLOSE_SECONDS, self._engine.dispose())


def ping_rarely(engine: AsyncEngine) -> None:
    """Ask the server at most once a second on each connection whether it still works.

    SQLAlchemy asks before each transaction, in a transaction of its own. These three round trips
    are as many as those of a transaction with one statement. A connection that the server has
    closed is known without asking.
    """
    dialect = engine.sync_engine.dialect
    ask = dialect.do_ping
    asked_at: WeakKeyDictionary[Any, float] = WeakKeyDictionary()

    def ping(dbapi_connection: Any) -> bool:
        driver = dbapi_connection.driver_connection
        if driver.is_closed():
            return False
        if time.monotonic() - asked_at.get(driver, -math.inf) < PING_SECONDS:
            return True
        is_working = ask(dbapi_connection)
        asked_at[driver] = time.monotonic()
        return is_working

    dialect.do_ping = ping  # type: ignore[method-assign]  # the dialect is this engine's own


class TranslatedErrors:
    """Translate transient errors of the driver to `Unavailable`, also of its own connection."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        is_lost = isinstance(error, DBAPIError) and error.connection_invalidated
        origin = error.orig if isinstance(error, DBAPIError) else error
        is_refused = isinstance(error, TimeoutError | NoFreeConnection | OSError)
        if is_lost or is_refused or is_transient_error(origin):
            raise Unavailable(
                f"the database cannot be used now ({_first_line(error)}); try again later"
            ) from error


_TRANSIENT_STATES = (
    "08", "25", "26", "28", "3D", "40", "42501", "42P05", "53", "55", "57", "58", "XX",
)  # fmt: skip
"""Beginnings of SQLSTATEs that do not blame the statement.

These are connections, transactions (after a failover a server may only read), a pooler that mixes
prepared statements, logins and rights, a database that is being replaced, deadlocks, resources,
locks, operators, the system, and damage.
"""
_TRANSIENT_CLASSES = (
    "OperationalError",
    "InterfaceError",
    "InternalClientError",
    "InvalidCachedStatementError",
)
"""Error classes without a SQLSTATE of that kind.

asyncpg raises the last two for a connection that the server just closed, and for tables that were
migrated after a statement was prepared.
"""


def is_transient_error(error: BaseException | None) -> bool:
    """Return whether the same statement may succeed later."""
    sqlstate = getattr(error, "sqlstate", None) or ""
    return sqlstate.startswith(_TRANSIENT_STATES) or type(error).__name__ in _TRANSIENT_CLASSES


def is_key_taken(error: IntegrityError) -> bool:
    """Return whether a row with the same key is stored, as another process may have done."""
    codes = (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE)
    is_of_sqlite = getattr(error.orig, "sqlite_errorcode", None) in codes
    return is_of_sqlite or getattr(error.orig, "sqlstate", None) == UNIQUE_VIOLATION


def _first_line(error: BaseException | None) -> str:
    cause = getattr(error, "orig", None) or error
    # A timeout has no text.
    return str(cause).partition("\n")[0][:200] or type(cause).__name__
