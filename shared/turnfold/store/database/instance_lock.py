"""The stream that a database belongs to, and the lock of the process that writes SQLite."""

import asyncio
import fcntl
import os
import re
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import IO

import structlog
from sqlalchemy import Connection, exists, func, literal_column, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from turnfold.contracts.subjects import EVENTS_STREAM
from turnfold.errors import StartError, Unavailable
from turnfold.store.database import sequence_ranges as ranges
from turnfold.store.database.engine import Database, insert_for
from turnfold.store.database.schema import (
    FIRST_REVISION,
    REVISION,
    erasures,
    ingested_ranges,
    stream,
)
from turnfold.store.database.sqlite_files import FILE_MODE
from turnfold.store.database.statements import Prepared, SupportsStatements

log = structlog.get_logger()

POLL_SECONDS = 0.1
REPORT_SECONDS = 3.0
FORM_OF_REVISION = re.compile(r"\d{4}", re.ASCII)


_STORING = int.from_bytes(sha256(b"turnfold.erasures").digest()[:7])
"""The number of a lock, under the name that it had in the first release."""
_BOUND = select(stream.c.created).where(stream.c.name == literal_column(f"'{EVENTS_STREAM}'"))
_STATE = Prepared(
    select(_BOUND.scalar_subquery(), exists(select(literal_column("1")).select_from(erasures))), ()
)


def lock_storing(connection: Connection, *, is_exclusive: bool = False) -> None:
    """Lock the database for storing, or, exclusively, for erasing and binding.

    Call it before locking sessions: one that does not exist yet has no row to lock. SQLite runs one
    writing transaction at a time.
    """
    if connection.dialect.name == "postgresql":
        kind = "" if is_exclusive else "_shared"
        connection.execute(text(f"SELECT pg_advisory_xact_lock{kind}({_STORING})"))


def confirm_stream(connection: SupportsStatements, created: str | None) -> bool:
    """Confirm that the database still belongs to the stream that events are stored from.

    Return whether anything was ever erased, which every batch asks as well. `lock_storing` excludes
    other bindings from then on.

    Raises:
        StartError: it belongs to another stream now, whose sequences stand for other events.
    """
    ((bound, has_erased),) = _STATE.rows(connection)
    if bound != created:
        raise _foreign(bound, created)
    return bool(has_erased)


def _foreign(bound: str | None, created: str | None) -> StartError:
    owner = f"the stream made at {bound}" if bound else "no stream yet"
    return StartError(
        f"the database belongs to {owner}, and the bus has the one made at {created}; "
        "point the worker at the right bus, or run `turnfold migrate` to go on with this stream"
    )


def _next_seq(connection: Connection) -> int:
    # An erasure may name sequences that are not ingested yet. New events must come after them.
    columns = (ingested_ranges.c.last_seq, erasures.c.last_seq)
    return max(connection.scalar(select(func.max(column))) or 0 for column in columns) + 1


async def next_seq(database: Database) -> int:
    """Return the first sequence for a new stream: above everything ever stored or erased."""
    return await database.snapshot(_next_seq)


async def refuse_older_stream(
    database: Database, last_sequence: Callable[[], Awaitable[int]], *, seconds: float = 60.0
) -> None:
    """Refuse a stream that was restored to before the newest events that the database has stored.

    Raises:
        StartError: it would give the numbers of stored events to new ones, which would be lost.
        Unavailable: the stream or the database did not answer for `seconds`.
    """
    clock = asyncio.get_running_loop().time
    began = clock()
    while True:
        try:
            # First: meanwhile, other workers store newer events, which are in the stream before.
            expected = await next_seq(database)
            last_seq = await last_sequence()
        except Unavailable:
            if clock() - began > seconds:
                raise
            await asyncio.sleep(POLL_SECONDS)
            continue
        if last_seq + 1 < expected:
            raise StartError(
                f"the stream of this bus ends at sequence {last_seq}, and the database holds "
                f"events up to {expected - 1}: it is an older copy of the stream, and would give "
                "their numbers to new events, which would be lost; restore a newer one, or remove "
                f"the stream {EVENTS_STREAM} from this bus, and run `turnfold migrate` again"
            )
        return


async def bind_to_stream(database: Database, *, created: str, first_seq: int) -> None:
    """Record the stream that this database belongs to from now on; it starts at `first_seq`.

    Sequences below `first_seq` count as ingested.

    Raises:
        StartError: events are stored under sequences of this stream, whose own would be taken for
            them.
    """

    def bind(connection: Connection) -> None:
        # Workers of the stream before may still store.
        lock_storing(connection, is_exclusive=True)
        next_seq = _next_seq(connection)
        if first_seq < next_seq:
            raise StartError(
                f"the stream of this bus starts at sequence {first_seq}, and the database holds "
                f"events of another stream up to {next_seq - 1}; end the workers of the other bus, "
                f"then use an empty database, or remove the stream {EVENTS_STREAM} from this bus "
                "if it holds nothing of value, and run `turnfold migrate` again"
            )
        made = insert_for(connection)(stream).values(name=EVENTS_STREAM, created=created)
        connection.execute(
            made.on_conflict_do_update(index_elements=["name"], set_={"created": created})
        )
        if first_seq > 1:
            ranges.add(connection, [(1, first_seq - 1)])

    await database.write(bind)


async def bound_stream(database: Database) -> str | None:
    """Return when the stream of this database was created; None if there is none yet."""
    return await database.snapshot(lambda connection: connection.execute(_BOUND).scalar())


async def wait_until_adopted(
    database: Database, *, created: str, seconds: float = 60.0, patience_seconds: float = 5.0
) -> None:
    """Wait until the database belongs to the stream created at `created`.

    A migration may be about to record it.

    Raises:
        StartError: it belongs to none after `seconds`, or to another one after
            `patience_seconds`.
        Unavailable: it could not be read for `seconds`.
    """
    clock = asyncio.get_running_loop().time
    began = clock()
    while True:
        recorded, trouble = None, None
        try:
            recorded = await bound_stream(database)
        except Unavailable as error:
            trouble = error
        if recorded == created:
            return
        # No stream yet: a migration is probably running. Another stream: more likely an error of
        # the operator, which should be reported soon.
        if clock() - began > (seconds if recorded is None else patience_seconds):
            raise trouble or _foreign(recorded, created)
        await asyncio.sleep(POLL_SECONDS)


async def wait_for_schema(database: Database, *, seconds: float = 60.0) -> None:
    """Wait until the tables are those of this code or newer.

    Migrations only add, so that older code works on newer tables. A log line says if the tables are
    not there after some seconds.

    Raises:
        StartError: the tables are still older after `seconds`, or an early release made them.
        Unavailable: the database cannot be reached after `seconds`.
    """
    began = asyncio.get_running_loop().time()
    has_reported = False
    while True:
        revision, trouble = None, None
        try:
            revision = await database.snapshot(
                lambda connection: connection.exec_driver_sql(
                    "SELECT version_num FROM alembic_version"
                ).scalar()
            )
        except (Unavailable, DBAPIError) as error:
            # A database without the table, or a file that is not there yet, is waited for silently.
            is_made = isinstance(error, Unavailable) and not database.is_sqlite
            trouble = error if is_made else None
        refuse_early_schema(revision)
        # Compared as text; revisions have four digits. A newer database is accepted, so that
        # services of two versions can run during an upgrade.
        if revision is not None and revision >= REVISION:
            return
        waited_seconds = asyncio.get_running_loop().time() - began
        if waited_seconds > min(seconds, REPORT_SECONDS) and not has_reported:
            has_reported = True
            reason = str(trouble or "the tables are not there; run `turnfold migrate`")
            log.info("tables.awaited", reason=reason)
        if waited_seconds > seconds:
            raise trouble or StartError(
                f"the tables are not there after {seconds:g} s; run `turnfold migrate` first"
            )
        await asyncio.sleep(POLL_SECONDS)


def refuse_early_schema(revision: str | None) -> None:
    """Refuse a database whose tables no migration of this code can upgrade.

    Raises:
        StartError: an early release made the database; the text says how to move its conversations.
            Or another application did.
    """
    if revision is not None and not FORM_OF_REVISION.fullmatch(revision):
        raise StartError(
            f"the tables of this database are another application's (schema {revision}); "
            "give Turnfold its own database"
        )
    if revision is not None and revision < FIRST_REVISION:
        raise StartError(
            f"this database was made by an early release (schema {revision}) and cannot be "
            "upgraded: start with an empty one. Its worker stores the events that the stream still "
            "holds; older messages: save those of `GET …/history` from the early release to a "
            "file, then publish it with `turnfold replay`"
        )


class WriterLock:
    """The lock file of the one worker that writes to a SQLite file; others stand by."""

    def __init__(self, database_url: str) -> None:
        url = make_url(database_url)
        self._path = f"{url.database}.writer.lock" if url.get_backend_name() == "sqlite" else None
        self._file: IO[str] | None = None

    def try_to_take(self) -> bool:
        """Return whether this process may write now."""
        if self._path is None or self._file is not None:
            return True
        # O_CLOEXEC: a child process that inherited the file would hold the lock after this process
        # ended.
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        file = open(descriptor, "w")  # noqa: PTH123, SIM115  # held until the process ends
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return False
        self._file = file
        return True

    async def take(self) -> None:
        """Wait until this process may write."""
        while not self.try_to_take():  # noqa: ASYNC110  # another process holds it and tells nobody
            await asyncio.sleep(POLL_SECONDS)
