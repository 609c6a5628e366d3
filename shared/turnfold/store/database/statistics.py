"""Count what waits in a database, by indexes of open rows."""

from typing import NamedTuple

from sqlalchemy import Connection, func, select

from turnfold.ports.compact import JobStatus
from turnfold.store.database.engine import SqlStore
from turnfold.store.database.predicates import is_of_kept, is_open
from turnfold.store.database.schema import compactions, outbox, sessions, stream
from turnfold.store.database.statements import Prepared

_OPEN = Prepared(
    select(
        compactions.c.status,
        func.count(),
        func.sum(compactions.c.messages_evicted),
        func.min(func.coalesce(compactions.c.lease_until_ms, compactions.c.next_attempt_at_ms)),
    )
    .where(is_open, is_of_kept(compactions.c.sid))
    .group_by(compactions.c.status),
    (),
)
_NOTICES = Prepared(select(func.count()).select_from(outbox), ())
_UNINDEXED = Prepared(select(func.count()).where(sessions.c.unindexed_from.is_not(None)), ())


class QueueDepths(NamedTuple):
    """Open jobs by status, their messages, the lateness of the latest, and other queues.

    A job is late from the time of its next attempt, or from the end of its lease.
    """

    pending: int
    running: int
    messages: int
    late_seconds: float
    notices: int
    unindexed_sessions: int


class SqlStatistics(SqlStore):
    """Statistics of a database. Each method may raise Unavailable."""

    async def waiting(self, *, now_ms: int) -> QueueDepths:
        """Return the depths of all queues."""

        def count(connection: Connection) -> QueueDepths:
            jobs = {row[0]: row[1:] for row in _OPEN.rows(connection)}
            due_ms = min([int(row[2]) for row in jobs.values()], default=now_ms)
            ((notices,),), ((unindexed,),) = _NOTICES.rows(connection), _UNINDEXED.rows(connection)
            return QueueDepths(
                pending=jobs.get(JobStatus.PENDING, (0,))[0],
                running=jobs.get(JobStatus.RUNNING, (0,))[0],
                messages=sum([int(row[1] or 0) for row in jobs.values()]),
                late_seconds=max(0.0, (now_ms - due_ms) / 1000),
                notices=notices,
                unindexed_sessions=unindexed,
            )

        return await self._database.snapshot(count)

    async def probe(self) -> None:
        """Begin a writing transaction, and write nothing."""
        await self._database.write(
            # BEGIN IMMEDIATE takes SQLite's writer lock; on PostgreSQL the locked row needs a
            # server that may write, which a standby after a failover does not.
            lambda connection: connection.execute(select(stream.c.name).with_for_update()).all()
        )
