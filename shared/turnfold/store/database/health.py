"""Health of the database: queues, lateness and locks."""

import fcntl
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, and_, func, select, text
from sqlalchemy.engine import make_url

from turnfold.ports.compact import JobStatus
from turnfold.store.database.engine import Database
from turnfold.store.database.predicates import is_of_kept, is_open
from turnfold.store.database.schema import compactions, dead_letters, outbox


@dataclass(frozen=True, slots=True)
class DatabaseHealth:
    """Counts and times; `clock_ms` is the clock of a database server, None for SQLite.

    `overdue` jobs are due and unclaimed. `abandoned` jobs are claimed, and their lease ended long
    ago. `retried` jobs had more attempts than they should need. `outbox_first` is the number of the
    oldest unpublished notice.
    """

    clock_ms: int | None
    overdue: int
    oldest_due_ms: int | None
    abandoned: int
    retried: int
    outbox: int
    outbox_first: int | None
    dead_letters: int


async def database_health(
    database: Database, *, now_ms: int, patience_ms: int, most_attempts: int
) -> DatabaseHealth:
    """Read counts of what has waited for longer than `patience_ms`.

    Raises:
        Unavailable: the database cannot be reached now.
    """
    before = now_ms - patience_ms

    def read(connection: Connection) -> DatabaseHealth:
        is_due = and_(
            compactions.c.status == JobStatus.PENDING, compactions.c.next_attempt_at_ms < before
        )
        is_left = and_(
            compactions.c.status == JobStatus.RUNNING, compactions.c.lease_until_ms < before
        )
        jobs = connection.execute(
            select(
                func.count().filter(is_due),
                func.min(compactions.c.next_attempt_at_ms).filter(is_due),
                func.count().filter(is_left),
                func.count().filter(compactions.c.attempts > most_attempts),
            ).where(is_open, is_of_kept(compactions.c.sid))
        ).one()
        notices = connection.execute(select(func.count(), func.min(outbox.c.outbox_id))).one()
        letters = (
            select(func.count())
            .select_from(dead_letters)
            .where(dead_letters.c.replayed_at_ms.is_(None))
        )
        clock_ms = None
        if connection.dialect.name == "postgresql":
            clock_ms = int(
                connection.execute(
                    text("SELECT extract(epoch FROM clock_timestamp()) * 1000")
                ).scalar_one()
            )
        overdue, oldest_due_ms, abandoned, retried = jobs
        waiting, first = notices
        return DatabaseHealth(
            clock_ms,
            overdue,
            oldest_due_ms,
            abandoned,
            retried,
            waiting,
            first,
            connection.execute(letters).scalar_one(),
        )

    return await database.snapshot(read)


def file_of(database_url: str) -> Path | None:
    """Return the path of a SQLite database; None for any other."""
    url = make_url(database_url)
    return (
        Path(url.database).absolute()
        if url.get_backend_name() == "sqlite" and url.database
        else None
    )


def is_writer_there(database_url: str) -> bool:
    """Return whether a process holds the writer lock of a SQLite file."""
    path = Path(f"{file_of(database_url)}.writer.lock")
    if not path.exists():
        return False
    with path.open("rb") as file:
        try:
            # Shared, so that two commands that look at once do not take each other for a writer.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
