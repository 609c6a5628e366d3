"""Find idle sessions by an index, and evict from them."""

from collections.abc import Sequence
from functools import partial

from sqlalchemy import Connection, Integer, bindparam, func, select

from turnfold.core.eviction.triggers import FiredTrigger, Trigger
from turnfold.ports.ingest import Installation
from turnfold.store.database.engine import SqlStore
from turnfold.store.database.schema import sessions
from turnfold.store.database.session_rows import SessionChange, SessionJournal, lock_by_sid
from turnfold.store.database.statements import Prepared
from turnfold.store.ingest.evict import evict_now

_IDLE = Prepared(
    select(sessions.c.sid)
    .where(sessions.c.idle_at_ms <= bindparam("now_ms"))
    .order_by(sessions.c.idle_at_ms)
    .limit(bindparam("most", type_=Integer)),
    ("now_ms", "most"),
)
_NEXT_IDLE = Prepared(
    select(func.min(sessions.c.idle_at_ms)).where(sessions.c.idle_at_ms.is_not(None)), ()
)


class SqlIdleStore(SqlStore):
    """Find idle sessions."""

    async def evict_idle(self, *, limit: int, installation: Installation, now_ms: int) -> int:
        """Evict from sessions that became idle; return how many were examined, at most `limit`."""
        most = limit + len(self._aside.keys)
        found = await self._database.snapshot(
            lambda connection: [sid for (sid,) in _IDLE.rows(connection, now_ms, most)]
        )
        idle = self._aside.others(found)[:limit]
        await self._aside.together(
            idle,
            lambda sids: self._database.write(
                partial(_evict_idle, idle=sids, installation=installation, now_ms=now_ms)
            ),
        )
        return len(idle)

    async def next_idle_ms(self) -> int | None:
        """Return when the next session becomes idle (ms since 1970); None if none will.

        None as well while a session is set aside: it is idle, and is passed over.
        """
        if self._aside.keys:
            return None
        ((at_ms,),) = await self._database.snapshot(_NEXT_IDLE.rows)
        return None if at_ms is None else int(at_ms)


def _evict_idle(
    connection: Connection, idle: Sequence[int], installation: Installation, now_ms: int
) -> None:
    locked = [
        session
        for session in lock_by_sid(connection, idle).values()
        # Another worker may have evicted between the snapshot and the lock.
        if session.idle_at_ms is not None
    ]
    journal = SessionJournal()
    for session in locked:
        # An event may have arrived, and the policy may have changed since the time was stored.
        session.renew_idle_time(installation)
        if session.idle_at_ms is not None and session.idle_at_ms <= now_ms:
            # Once until somebody speaks again.
            session.idle_at_ms = None
            change = SessionChange(connection, session, journal, now_ms)
            evict_now(change, FiredTrigger(Trigger.IDLE, 0), installation)
    journal.write(connection, locked)
