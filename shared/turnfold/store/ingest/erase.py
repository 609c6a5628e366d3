"""Erase sessions: one short transaction hides them from all queries, and others delete their rows.

An erased session loses its name: its row goes to the agent `ERASED_AGENT`, which no request can
name, and keeps nothing but its number and a time. The same transaction seals the audit row `erased`
and leaves a tombstone without text.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    DefaultClause,
    Integer,
    Text,
    bindparam,
    case,
    cast,
    delete,
    func,
    null,
    select,
    update,
)

from turnfold.core.history.audit_chain import WORKER
from turnfold.core.policy.overrides import PolicyOverrides
from turnfold.core.policy.retention import DAY_MS, is_over
from turnfold.errors import StartError, Unavailable
from turnfold.messages import AgentId, SessionKey
from turnfold.ports.ingest import Installation
from turnfold.process.set_aside import SetAside
from turnfold.store.database.engine import Database, SqlStore
from turnfold.store.database.instance_lock import confirm_stream, lock_storing
from turnfold.store.database.predicates import (
    ERASED_AGENT,
    is_erased,
    is_kept,
    is_running,
    is_uncovered,
)
from turnfold.store.database.schema import (
    agents,
    campaigns,
    compactions,
    session_counts,
    sessions,
    stream_purges,
    summary_token_usage,
)
from turnfold.store.database.sequence_ranges import whole_to
from turnfold.store.database.session_rows import (
    ANY_NUMBER,
    OVERRIDES,
    SessionJournal,
    SessionRow,
    lock_by_key,
    lock_by_sid,
    lock_session_counts,
)
from turnfold.store.database.statements import Bulk, Prepared
from turnfold.store.ingest.erased_letters import (
    ErasureScope,
    erase_letters,
    erase_letters_after,
    expire_letters,
)
from turnfold.store.ingest.erased_rows import ROWS_AT_ONCE, delete_portion
from turnfold.store.ingest.tombstones import (
    ALL_SESSIONS,
    CLOCKS_MS,
    RETENTION,
    Tombstone,
    add_tombstones,
    any_rows_left,
)
from turnfold.store.ingest.word_index.removal import remove_indexed, remove_retracted

SESSIONS_AT_ONCE = 100
"""Sessions that one transaction erases."""

_PURGES = Prepared(
    select(stream_purges.c.stream_seq, stream_purges.c.until_ms)
    .order_by(stream_purges.c.stream_seq)
    .limit(bindparam("most", type_=Integer)),
    ("most",),
)
_PURGED = Bulk(
    delete(stream_purges).where(stream_purges.c.stream_seq == bindparam("seq")), ("seq",)
)
_BEHIND = Prepared(
    select(
        sessions.c.sid,
        sessions.c.agent_id,
        sessions.c.session_id,
        sessions.c.last_event_at_ms,
        *OVERRIDES,
    )
    .outerjoin(agents, agents.c.agent_id == sessions.c.agent_id)
    .where(sessions.c.sid > bindparam("after"), is_kept)
    .order_by(sessions.c.sid)
    .limit(bindparam("most", type_=Integer)),
    ("after", "most"),
)
_NAMES = {"agent_id": ERASED_AGENT, "session_id": cast(sessions.c.sid, Text)}
_CLEARED = {
    column.name: default.arg
    if isinstance(default := column.server_default, DefaultClause)
    else null()
    for column in sessions.c
    if column is not sessions.c.sid and column.name not in _NAMES
}
"""The values of a session that has nothing."""


class Erasure(NamedTuple):
    """An erasure as the audit records it; no event up to `last_seq` comes back."""

    last_seq: int
    at_ms: int
    reason: str
    actor: str


class EraseResult(NamedTuple):
    """Counts of one erasure."""

    sessions: int = 0
    messages: int = 0
    policies: int = 0
    dead_letters: int = 0


class SqlErasureStore(SqlStore):
    """Complete erasures, and erase sessions whose retention time is over.

    `stream_created` is the creation time of the stream that erased events are removed from; None
    if the database belongs to none.
    """

    def __init__(
        self,
        database: Database,
        *,
        stream_created: str | None = None,
        rows_at_once: int = ROWS_AT_ONCE,
        aside: SetAside[int] | None = None,
    ) -> None:
        """Delete `rows_at_once` rows of erased sessions in one transaction."""
        super().__init__(database, aside=aside)
        self._stream_created = stream_created
        self._rows_at_once = rows_at_once

    async def erase_expired(
        self, *, after: int, limit: int, installation: Installation, now_ms: int
    ) -> int | None:
        """Examine sessions with numbers above `after`, and erase those with expired retention.

        Return the number of the last examined session; None if there was none.
        """
        rows = await self._database.snapshot(
            lambda connection: _BEHIND.rows(connection, after, limit)
        )
        by_sid = {row[0]: row[1:] for row in rows}
        # One transaction each, so that ingest waits for one session only.
        await self._aside.each(
            by_sid, lambda sid: self._expire(sid, by_sid[sid], installation, now_ms)
        )
        return rows[-1][0] if rows else None

    async def expire_letters(self, *, installation: Installation, now_ms: int) -> int:
        """Erase expired dead letters of sessions without events; return how many."""
        return await expire_letters(self._database, installation, self._aside, now_ms=now_ms)

    async def _expire(
        self, sid: int, row: Sequence[Any], installation: Installation, now_ms: int
    ) -> None:
        agent_id, session_id, at_ms, *wishes = row
        policy = installation.policy(PolicyOverrides(*wishes[3:]), PolicyOverrides(*wishes[:3]))
        if not is_over(at_ms, policy, now_ms=now_ms):
            return
        scope = ErasureScope.of(SessionKey(agent_id, session_id))
        letters_to, _ = await erase_letters(self._database, scope)
        await self._database.write(
            partial(
                _expire, sid=sid, letters_to=letters_to, installation=installation, now_ms=now_ms
            )
        )

    async def delete_rows(self) -> bool:
        """Delete a portion of the rows of erased sessions; return whether more may be left."""
        # Read first: nearly always nothing is left, and a writing transaction holds up others.
        if not await self._database.snapshot(any_rows_left):
            return False
        are_due = sessions.c.sid.not_in(list(self._aside.keys))
        try:
            return await self._delete_portion(are_due)
        except (Unavailable, StartError):
            raise
        except Exception:  # noqa: BLE001  # one of the sessions is to blame, which `each` logs
            chosen = select(sessions.c.sid).where(is_erased, are_due).limit(SESSIONS_AT_ONCE)
            sids = await self._database.snapshot(
                lambda connection: connection.execute(chosen).scalars().all()
            )
            return any(
                await self._aside.each(
                    sids, lambda sid: self._delete_portion(sessions.c.sid == sid)
                )
            )

    async def _delete_portion(self, are_due: ColumnElement[bool]) -> bool:
        return await self._database.write(
            lambda connection: delete_portion(connection, self._rows_at_once, are_due=are_due),
            is_repeatable=True,
        )

    async def to_purge(self, limit: int) -> Mapping[int, int | None]:
        """Return the lowest sequences that must still be deleted from the stream, in rising order.

        With each comes the latest time at which its event was published, if known.

        Raises:
            StartError: the database belongs to another stream now.
        """

        def find(connection: Connection) -> Mapping[int, int | None]:
            found = {row[0]: row[1] for row in _PURGES.rows(connection, limit)}
            # Afterwards, because another stream has other events under the same sequences.
            confirm_stream(connection, self._stream_created)
            return found

        return await self._database.snapshot(find)

    async def purged(self, sequences: Sequence[int]) -> None:
        """Record that the stream no longer holds these sequences."""
        await self._database.write(
            lambda connection: _PURGED.run(connection, [(seq,) for seq in sequences]),
            is_repeatable=True,
        )

    async def remove_retracted(self) -> bool:
        """Remove some words of retracted messages from SQLite's index; return whether it did."""
        return await remove_retracted(self._database, self._aside)

    async def tidy(self) -> bool:
        """Remove erased words from SQLite's index, and truncate the WAL, which may contain them.

        Return False if a reader prevents it now.
        """
        await remove_indexed(self._database, self._aside)
        return await self._database.truncate_wal()


def erase_some(
    connection: Connection, scope: ErasureScope, erasure: Erasure, *, letters_to: int
) -> tuple[EraseResult, bool]:
    """Erase some of these sessions within an open transaction; return whether these were the last.

    The last transaction also erases dead letters above the id `letters_to`, and what an agent has
    besides sessions.
    """
    lock_storing(connection, is_exclusive=True)
    lock_session_counts(connection, [scope.agent_id])
    if scope.is_agent:
        # Before its sessions, as whoever sets the policy does. Another order could deadlock.
        is_agent = agents.c.agent_id == scope.agent_id
        connection.execute(select(agents.c.agent_id).where(is_agent).with_for_update())
        # Before its sessions, too, as whoever advances them.
        _end_campaigns(connection, scope.agent_id, now_ms=erasure.at_ms)
    is_last, is_new = True, False
    if scope.session_id is not None:
        key = SessionKey(scope.agent_id, scope.session_id)
        known = lock_by_key(connection, [key])
        is_new = not known
        # One that nobody knows may have events on their way: it gets its tombstone like any other.
        locked = [*(known or lock_by_key(connection, [key], create=ANY_NUMBER)).values()]
    else:
        sids = _sids(connection, scope, SESSIONS_AT_ONCE + 1)
        is_last = len(sids) <= SESSIONS_AT_ONCE
        locked = [*lock_by_sid(connection, sids[:SESSIONS_AT_ONCE]).values()]
    erased = _erase_sessions(connection, locked, erasure)
    if is_new:
        # Only its tombstone is new.
        erased = EraseResult()
    if is_last:
        letters = erase_letters_after(connection, scope, letters_to)
        erased = erased._replace(dead_letters=letters)
    if is_last and scope.is_agent:
        counted, usage = session_counts, summary_token_usage
        connection.execute(delete(counted).where(counted.c.agent_id == scope.agent_id))
        # Not that of today, or an agent could lift its daily limit by an erasure.
        is_past = (usage.c.agent_id == scope.agent_id) & (usage.c.day < erasure.at_ms // DAY_MS)
        connection.execute(delete(usage).where(is_past))
        policy = connection.execute(delete(agents).where(agents.c.agent_id == scope.agent_id))
        erased = erased._replace(policies=erased.policies + policy.rowcount)
        whole = Tombstone(scope.agent_id, ALL_SESSIONS, erasure.last_seq, erasure.at_ms)
        add_tombstones(connection, [whole])
    return erased, is_last


def _end_campaigns(connection: Connection, agent_id: AgentId, *, now_ms: int) -> None:
    """End the campaigns of an agent, and forget what they were asked to write."""
    ended = func.coalesce(campaigns.c.finished_at_ms, now_ms)
    forgotten = update(campaigns).where(campaigns.c.agent_id == agent_id)
    connection.execute(forgotten.values(wanted="{}", finished_at_ms=ended))


def _sids(connection: Connection, scope: ErasureScope, most: int) -> Sequence[int]:
    """Return numbers of sessions of an agent, of those whose ids begin with the prefix."""
    chosen = select(sessions.c.sid).where(sessions.c.agent_id == scope.agent_id)
    if scope.prefix is not None:
        begins = func.substr(sessions.c.session_id, 1, len(scope.prefix)) == scope.prefix
        chosen = chosen.where(begins)
    # In no order: sorting all of an agent's sessions would take long.
    return connection.execute(chosen.limit(most)).scalars().all()


def _expire(
    connection: Connection, *, sid: int, letters_to: int, installation: Installation, now_ms: int
) -> None:
    """Erase a session whose retention is over. Events not stored yet begin it again."""
    lock_storing(connection, is_exclusive=True)
    agent_id = select(sessions.c.agent_id).where(sessions.c.sid == sid, is_kept)
    lock_session_counts(connection, map(AgentId, connection.execute(agent_id).scalars()))
    for session in lock_by_sid(connection, [sid]).values():
        # Again, under the lock: an event may have arrived since the session was found.
        if is_over(session.last_event_at_ms, session.policy(installation), now_ms=now_ms):
            # Not the stream's last sequence: an event published a moment ago begins the session
            # anew.
            ingested_to = whole_to(connection)
            erase_letters_after(connection, ErasureScope.of(session.key), letters_to)
            _erase_sessions(connection, [session], Erasure(ingested_to, now_ms, RETENTION, WORKER))


def _erase_sessions(
    connection: Connection, locked: Sequence[SessionRow], erasure: Erasure
) -> EraseResult:
    """Erase locked sessions of one agent; return how many they were, and what they had."""
    if not locked:
        return EraseResult()
    journal = SessionJournal(erasure.actor)
    for session in locked:
        # Before the tombstone, which takes over the chain that ends with this row.
        journal.add_audit_row(
            session,
            "erased",
            at_ms=erasure.at_ms,
            reason=erasure.reason,
            messages=session.messages_total,
            versions=session.versions,
            last_seq=erasure.last_seq,
        )
    journal.write(connection, ())
    add_tombstones(
        connection,
        [
            Tombstone(
                *session.key,
                erasure.last_seq,
                erasure.at_ms,
                session.audit_rows,
                session.audit_hash,
            )
            for session in locked
        ],
    )
    sids = [session.sid for session in locked]
    # So that workers lose the jobs that they hold.
    are_held = compactions.c.sid.in_(sids) & is_uncovered & is_running
    connection.execute(delete(compactions).where(are_held))
    # The trigger that counts sessions fires for INSERT and DELETE, and this is an UPDATE.
    counted = session_counts.c.agent_id == locked[0].key.agent_id
    fewer = update(session_counts).where(counted).values(total=session_counts.c.total - len(sids))
    connection.execute(fewer)
    are_erased = sessions.c.sid.in_(sids)
    values = {**_NAMES, **_CLEARED, "last_event_at_ms": _until_ms(erasure)}
    connection.execute(update(sessions).where(are_erased).values(values))
    return EraseResult(
        len(locked),
        sum(session.messages_total for session in locked),
        sum(session.wishes != PolicyOverrides() for session in locked),
    )


def _until_ms(erasure: Erasure) -> ColumnElement[int]:
    """Return the latest time that an event of the session can have in the stream."""
    latest, newest = erasure.at_ms + CLOCKS_MS, sessions.c.last_event_at_ms
    return case((newest > latest, newest), else_=latest)
