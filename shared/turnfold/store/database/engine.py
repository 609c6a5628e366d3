"""Connections to the database: one that writes, and several that read from snapshots."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from sqlalchemy import URL, Connection, Engine, QueuePool, create_engine, event, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from turnfold.errors import StartError
from turnfold.process.caller_order import HAS_BEGUN, Turns
from turnfold.process.set_aside import SetAside
from turnfold.store.database.inline_reader import InlineReader, RawConnection, WouldBlock
from turnfold.store.database.postgres.lost_servers import give_up_lost_servers
from turnfold.store.database.postgres.url import split_ssl_options
from turnfold.store.database.sqlite_files import (
    BUSY_SECONDS,
    make_private,
    prepare_sqlite,
)
from turnfold.store.database.transactions import (
    AwaitedTransactions,
    Result,
    ThreadTransactions,
    TranslatedErrors,
    ping_rarely,
)

LOG_WAIT_MS = 200  # Short: the writer's thread stores nothing meanwhile.
READERS = 4
READERS_EACH = 2
"""The most reading transactions at once: of all agents, and of one."""
LONGEST_WAIT_SECONDS = 2.0
"""A request that would wait longer for its first reading transaction is refused.

It may need five of them, and its time ends after ten seconds.
"""
INTAKE_WRITERS = 4
"""The most writing transactions of the intake at once: three batches, and one of missing events."""
WRITERS = 4
WRITERS_EACH = 2
"""The most other writing transactions at once, on PostgreSQL: of all agents, and of one."""
HELD_CONNECTIONS = 3
"""The connections of a worker that stay in use for longer: of its two locks, and of a vacuum."""
TURN_SECONDS = 10
ABANDONED_SECONDS = 8
"""PostgreSQL ends a writing transaction whose process has been silent for so long.

Its locks would otherwise keep other workers from its session for as long as a stopped process, or
the machine under it, keeps the connection.
"""
SILENT_SECONDS = 60
"""A silent process keeps a lock of background work for so long."""
SERVER_IDENTITY = """
    SELECT pg_postmaster_start_time(), oid FROM pg_database WHERE datname = current_database()"""
"""Identify the server by the time of its start, and the database by its number."""
LONGEST_REQUEST_SECONDS = 15.0
"""A request that began before a change of the server has ended after so long."""
LOCK_NOT_AVAILABLE = "55P03"
MANY_DEAD_ROWS = """
    SELECT relname FROM pg_stat_user_tables
     WHERE schemaname = current_schema()
       AND relname IN ('messages', 'sessions', 'compactions', 'word_index_segments')
       AND n_dead_tup > 500 + 0.05 * n_live_tup AND pg_table_size(relid) < 256000000"""
"""The tables to vacuum. Larger ones are left to the autovacuum: its minute is short for them."""


class Database:
    """One database, as transactions of plain code that writes or reads.

    On SQLite one connection writes (WAL, `synchronous=FULL`, BEGIN IMMEDIATE), because two that
    write or checkpoint at once can corrupt the file before 3.51.3. Readers open the file read-only
    and see one snapshot each.
    """

    def __init__(self, url: str, *, writes: bool, readers_each: int = READERS_EACH) -> None:
        self.url = make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        if not self.is_sqlite and self.url.get_backend_name() != "postgresql":
            raise StartError(
                f"TURNFOLD_DATABASE_URL names {self.url.get_backend_name()}; "
                "SQLite and PostgreSQL are supported"
            )
        if writes:
            # Before any connection: SQLite would create the file with the permissions of the umask.
            make_private(self.url)
        self._reader: ThreadTransactions | AwaitedTransactions
        self._writer: ThreadTransactions | AwaitedTransactions | None = None
        self._inline: InlineReader | None = None
        self._server: AsyncEngine | None = None
        if self.is_sqlite:
            self._reader = ThreadTransactions(self._thread_engine(writes=False), READERS)
            self._inline = InlineReader(self._thread_engine(writes=False))
            if writes:
                self._writer = ThreadTransactions(self._thread_engine(writes=True), 1)
        else:
            # As large as the turns allow: waits for a pool are not in turn, and fail after 30 s.
            self._server = self._engine(READERS + HELD_CONNECTIONS if writes else READERS)
            self._reader = AwaitedTransactions(self._server)
            if writes:
                writer = self._engine(INTAKE_WRITERS + WRITERS, writes=True)
                self._writer = AwaitedTransactions(writer)
        self._reader_turns = Turns(READERS, readers_each, longest_wait_seconds=LONGEST_WAIT_SECONDS)
        # SQLite has one thread that writes. It gets one at a time: the intake waits for no other.
        self._writer_turns = Turns(1 if self.is_sqlite else WRITERS, WRITERS_EACH)
        self._intake_turns = Turns(INTAKE_WRITERS, INTAKE_WRITERS)

    def on_new_server(self, forget: Callable[[], object]) -> None:
        """Call a function when another server or database answers reads from now on.

        A replica that has taken over may lack commits, and number later ones as those it lacks. It
        cannot be reached without a new connection. SQLite has no server.
        """
        if self._server is None:
            return
        known: object = None

        def on_connect(connection: Any, _record: object) -> None:
            nonlocal known
            cursor = connection.cursor()
            cursor.execute(SERVER_IDENTITY)
            server = cursor.fetchone()
            cursor.close()
            connection.rollback()
            # A cancelled statement ends its connection as well. Caches are worth most when many
            # requests are cancelled.
            if server != known:
                known = server
                forget()
                # Again: a request that was running may cache what it read from the old server.
                asyncio.get_running_loop().call_later(LONGEST_REQUEST_SECONDS, forget)

        event.listen(self._server.sync_engine, "connect", on_connect)

    async def write(
        self, work: Callable[[Connection], Result], *, is_repeatable: bool = False
    ) -> Result:
        """Run `work` in one transaction: commit at its end, roll back on any error.

        On SQLite it runs in the writer's thread and never waits for the event loop. If the caller
        is cancelled, it may or may not be committed. Where many wait, callers take turns, however
        long that takes. SQLite does not wait for the disk if work `is_repeatable`: a power cut may
        undo it, with all that came after it, and then it is done again.

        Raises:
            Unavailable: the database cannot be reached or written now; nothing was changed.
        """
        return await self._write(work, self._writer_turns, is_repeatable=is_repeatable)

    async def write_first(self, work: Callable[[Connection], Result]) -> Result:
        """Run `work` of the intake as `write` does, but wait for no connection of other work.

        On SQLite it waits for one other transaction at most.
        """
        return await self._write(work, self._intake_turns, is_repeatable=False)

    async def _write(
        self, work: Callable[[Connection], Result], turns: Turns, *, is_repeatable: bool
    ) -> Result:
        if self._writer is None:
            raise StartError("this process was opened for reading only")
        asker = await turns.take()
        try:
            return await self._writer.run(work, is_repeatable=is_repeatable)
        finally:
            turns.release(asker)

    async def truncate_wal(self) -> bool:
        """Checkpoint SQLite's WAL and truncate it, because it may still contain deleted text.

        Returns False if a reader prevented it.
        """
        return not isinstance(self._writer, ThreadTransactions) or await self._writer.apart(
            _emptied
        )

    async def vacuum(self) -> list[str]:
        """Vacuum PostgreSQL's small tables with many dead rows; return their names.

        Another worker, or the autovacuum, may be at one of them: then it is passed over. Nobody
        waits for a vacuum. No-op on SQLite.

        Raises:
            Unavailable: the database cannot be reached now.
        """
        if self._server is None:
            return []
        with TranslatedErrors():
            async with self._server.connect() as plain:
                # A vacuum runs in no transaction.
                connection = await plain.execution_options(isolation_level="AUTOCOMMIT")
                due = (await connection.execute(text(MANY_DEAD_ROWS))).scalars().all()
                for name in due:
                    # Cutting off the end of a table would lock it against everybody.
                    await connection.execute(text(f"VACUUM (SKIP_LOCKED, TRUNCATE FALSE) {name}"))
        return list(due)

    async def snapshot(self, work: Callable[[Connection], Result]) -> Result:
        """Run `work` in one reading snapshot; on SQLite in a thread, as `write` does.

        Raises:
            Unavailable: the database cannot be reached now.
        """
        asker = await self._reader_turns.take()
        return await self._reader.run(work, on_end=partial(self._reader_turns.release, asker))

    async def settled(self) -> None:
        """Return when no snapshot is read for this asker any more."""
        HAS_BEGUN.set(True)
        self._reader_turns.release(await self._reader_turns.take())

    @asynccontextmanager
    async def advisory_lock(self, lock: int) -> AsyncGenerator[None]:
        """Hold an advisory lock. Continue without it after a timeout. No-op on SQLite.

        Raises:
            Unavailable: the database cannot be reached now.
        """
        if self._server is None:
            yield
            return
        with TranslatedErrors():
            async with self._server.connect() as connection:
                await connection.execute(text(f"SET LOCAL lock_timeout = '{TURN_SECONDS}s'"))
                try:
                    await connection.execute(text(f"SELECT pg_advisory_xact_lock({lock})"))
                except DBAPIError as error:
                    if getattr(error.orig, "sqlstate", None) != LOCK_NOT_AVAILABLE:
                        raise
                yield

    @asynccontextmanager
    async def try_lock(self, lock: int) -> AsyncGenerator[bool]:
        """Hold an advisory lock if no other process does, and yield whether it is held.

        A process that is silent for `SILENT_SECONDS` loses it. SQLite has one worker: always true.

        Raises:
            Unavailable: the database cannot be reached now.
        """
        if self._server is None:
            yield True
            return
        limit = f"set_config('idle_in_transaction_session_timeout', '{SILENT_SECONDS}s', true)"
        with TranslatedErrors():
            async with self._server.connect() as connection:
                taking = text(f"SELECT pg_try_advisory_xact_lock({lock}), {limit}")
                is_held, _ = (await connection.execute(taking)).one()
                yield is_held

    def read_inline(self, work: Callable[[RawConnection], Result]) -> Result:
        """Read a few rows in one snapshot in this thread; see `inline_reader`.

        Raises:
            WouldBlock: use `snapshot`, which blocks no other request.
        """
        if self._inline is None:
            raise WouldBlock
        return self._inline.read(work)

    async def read_at_once(self, work: Callable[[RawConnection], Result]) -> Result:
        """Read a few rows: on SQLite as `read_inline`, on PostgreSQL without a transaction.

        There, each statement has a snapshot of its own.

        Raises:
            Unavailable: the database cannot be read now.
            WouldBlock: use `snapshot`.
        """
        if not isinstance(self._reader, AwaitedTransactions):
            return self.read_inline(work)
        asker = await self._reader_turns.take()
        return await self._reader.run_alone(work, on_end=partial(self._reader_turns.release, asker))

    async def read_small(self, work: Callable[[Any], Result]) -> Result:
        """Read a few rows of an index as `read_at_once`, or else as `snapshot`.

        Raises:
            Unavailable: the database cannot be read now.
        """
        try:
            return await self.read_at_once(work)
        except WouldBlock:
            return await self.snapshot(work)

    async def close(self) -> None:
        """Close all connections."""
        if self._inline is not None:
            self._inline.close()
        await self._reader.close()
        if self._writer is not None:
            await self._writer.close()

    def _engine(self, connections: int, *, writes: bool = False) -> AsyncEngine:
        """Create the engine for awaited statements, on PostgreSQL."""
        url, arguments = split_ssl_options(self.url)
        engine = create_async_engine(
            url,
            connect_args=arguments,
            # Whatever the database's default: one snapshot for a transaction that reads, and none
            # from before its locks for one that writes.
            isolation_level="READ COMMITTED" if writes else "REPEATABLE READ",
            pool_size=connections,
            max_overflow=0,
            # A server that restarted has closed the connections of the pool.
            pool_pre_ping=True,
        )
        if writes:
            event.listen(engine.sync_engine, "connect", _end_if_abandoned)
        give_up_lost_servers(engine)
        ping_rarely(engine)
        return engine

    def _thread_engine(self, *, writes: bool) -> Engine:
        """Create the engine for our own threads, on SQLite."""
        url = (self.url if writes else self._read_only()).set(drivername="sqlite+pysqlite")
        # More than the driver's 128: lists make one statement per length.
        arguments = {"timeout": BUSY_SECONDS, "check_same_thread": False, "cached_statements": 256}
        engine = create_engine(
            url,
            poolclass=QueuePool,
            pool_size=1 if writes else READERS,
            max_overflow=0,
            connect_args=arguments,
        )
        prepare_sqlite(engine, writes=writes)
        return engine

    def _read_only(self) -> URL:
        path = self.url.database
        if not path or path == ":memory:":
            raise StartError(
                "TURNFOLD_DATABASE_URL names no file; sqlite+aiosqlite:///path/to/turnfold.db does"
            )
        return self.url.set(database=f"file:{_quoted(path)}", query={"mode": "ro", "uri": "true"})


class SqlStore:
    """Part of a database; its rows whose work fails are set `aside`."""

    def __init__(self, database: Database, *, aside: SetAside[Any] | None = None) -> None:
        self._database = database
        self._aside = SetAside() if aside is None else aside


def _end_if_abandoned(connection: Any, _record: object) -> None:
    """Limit the silence within transactions. Poolers refuse such a parameter of a connection."""
    cursor = connection.cursor()
    cursor.execute(f"SET idle_in_transaction_session_timeout = '{ABANDONED_SECONDS}s'")
    cursor.close()
    connection.commit()


def _emptied(connection: Any) -> bool:
    """Wait briefly for readers, because writers wait behind this."""
    connection.execute(f"PRAGMA busy_timeout={LOG_WAIT_MS}")
    try:
        ((is_busy, *_),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        connection.execute(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000}")
    return not is_busy


def insert_for(connection: Connection) -> Any:
    """Return the dialect's INSERT, which supports ON CONFLICT."""
    return sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert


def _quoted(path: str) -> str:
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
