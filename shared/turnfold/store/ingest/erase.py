"""Erase sessions in one transaction, and leave tombstones without text."""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any

from sqlalchemy import (
    Connection,
    Integer,
    Table,
    bindparam,
    delete,
    func,
    literal_column,
    or_,
    select,
)

from turnfold.contracts.subjects import EVENT_TYPES, session_subject, token_of
from turnfold.core.history.audit_chain import WORKER
from turnfold.core.policy.overrides import PolicyOverrides
from turnfold.core.policy.retention import is_over
from turnfold.messages import AgentId, SessionId, SessionKey
from turnfold.ports.admin import EraseResult
from turnfold.ports.ingest import Installation
from turnfold.store.database.engine import Database
from turnfold.store.database.schema import (
    agents,
    dead_letters,
    duplicate_events,
    erased_events,
    events,
    ingested_ranges,
    messages,
    metadata,
    session_counts,
    sessions,
    stream_purges,
    summary_token_usage,
)
from turnfold.store.database.session_rows import (
    ANY_NUMBER,
    SessionJournal,
    SessionRow,
    lock_by_key,
    lock_by_sid,
    lock_session_counts,
)
from turnfold.store.database.statements import Bulk, Prepared
from turnfold.store.ingest.tombstones import (
    ALL_SESSIONS,
    RETENTION,
    SUBJECT_MISMATCH,
    add_tombstone,
    digest_of,
    in_portions,
    insert_missing,
    is_claimed,
    lock_against_erase,
    purge_from_stream,
)
from turnfold.store.ingest.word_index.removal import queue_index_removal, remove_indexed

LETTERS_AT_ONCE = 50
"""Dead letters read at once; each may hold as many bytes as are kept of a payload."""

HANGING: Sequence[Table] = [
    table
    for table in reversed(metadata.sorted_tables)
    if any(key.column is sessions.c.sid for key in table.foreign_keys)
]
"""All tables with rows of a session, found by their foreign keys, so that none is missed."""
_PURGES = Prepared(
    select(stream_purges.c.stream_seq)
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
        sessions.c.last_event_at_ms,
        sessions.c.preset,
        sessions.c.mode,
        sessions.c.overrides,
        agents.c.preset,
        agents.c.mode,
        agents.c.overrides,
    )
    .outerjoin(agents, agents.c.agent_id == sessions.c.agent_id)
    .where(sessions.c.sid > bindparam("after"))
    .order_by(sessions.c.sid)
    .limit(bindparam("most", type_=Integer)),
    ("after", "most"),
)
_MISMATCHED = Prepared(
    select(dead_letters.c.stream_seq, dead_letters.c.payload)
    .where(
        dead_letters.c.reason == bindparam("why"), dead_letters.c.stream_seq > bindparam("after")
    )
    .order_by(dead_letters.c.stream_seq)
    .limit(bindparam("most", type_=Integer)),
    ("why", "after", "most"),
)
_INGESTED_TO = Prepared(
    select(ingested_ranges.c.last_seq).where(ingested_ranges.c.first_seq == literal_column("1")), ()
)


class SqlErasureStore:
    """Erasures in SQL; see `turnfold.ports.admin.ErasureStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def erase_expired(
        self, *, after: int, limit: int, installation: Installation, now_ms: int
    ) -> int | None:
        """Erase examined sessions whose retention time is over; return the last one examined."""
        rows = await self._database.snapshot(
            lambda connection: _BEHIND.rows(connection, after, limit)
        )
        over = [
            sid
            for sid, at_ms, *wishes in rows
            if is_over(at_ms, installation.policy(*_wishes(wishes)), now_ms=now_ms)
        ]
        # One transaction each, so that ingest waits for one session only.
        for sid in over:
            await self._database.write(
                partial(_expire, sid=sid, installation=installation, now_ms=now_ms)
            )
        return rows[-1][0] if rows else None

    async def to_purge(self, limit: int) -> Sequence[int]:
        """Return the lowest sequences that must still be deleted from the stream."""
        return await self._database.snapshot(
            lambda connection: [seq for (seq,) in _PURGES.rows(connection, limit)]
        )

    async def purged(self, sequences: Sequence[int]) -> None:
        """Record that the stream no longer holds these sequences."""
        await self._database.write(
            lambda connection: _PURGED.run(connection, [(seq,) for seq in sequences])
        )

    async def tidy(self) -> bool:
        """Remove erased words from SQLite's index, and truncate the WAL, which may contain them."""
        await remove_indexed(self._database)
        return await self._database.truncate_wal()


def erase(
    connection: Connection, key: SessionKey | AgentId, *, last_seq: int, now_ms: int, actor: str
) -> EraseResult:
    """Erase a session or an agent within an open transaction."""
    lock_against_erase(connection, is_erasing=True)
    lock_session_counts(connection, [key.agent_id if isinstance(key, SessionKey) else key])
    if isinstance(key, SessionKey):
        # One that nobody knows may have events on their way: it gets its tombstone like any other.
        locked = list(lock_by_key(connection, [key], create=ANY_NUMBER).values())
        is_known = locked[0].messages_total > 0
    else:
        session_ids = connection.execute(
            select(sessions.c.session_id).where(sessions.c.agent_id == key)
        ).scalars()
        keys = [SessionKey(key, SessionId(name)) for name in session_ids]
        locked = [
            session
            for portion in in_portions(keys)
            for session in lock_by_key(connection, portion).values()
        ]
        is_known = True
        connection.execute(delete(agents).where(agents.c.agent_id == key))
        connection.execute(delete(summary_token_usage).where(summary_token_usage.c.agent_id == key))
        add_tombstone(connection, SessionKey(key, SessionId(ALL_SESSIONS)), last_seq, now_ms)
    _erase_letters(connection, key)
    erased = _erase_sessions(
        connection,
        locked,
        last_seq,
        now_ms,
        "request" if isinstance(key, SessionKey) else "agent",
        actor,
    )
    if not isinstance(key, SessionKey):
        connection.execute(delete(session_counts).where(session_counts.c.agent_id == key))
    return erased if is_known else EraseResult()


def erase_prefix(
    connection: Connection,
    agent_id: AgentId,
    prefix: str,
    *,
    last_seq: int,
    now_ms: int,
    actor: str,
) -> EraseResult:
    """Erase the sessions of an agent whose ids begin with a prefix, within an open transaction."""
    lock_against_erase(connection, is_erasing=True)
    lock_session_counts(connection, [agent_id])
    named = {
        name
        # A session whose events were all refused has dead letters alone.
        for table in (sessions, dead_letters)
        for name in connection.execute(
            select(table.c.session_id)
            .where(
                table.c.agent_id == agent_id,
                func.substr(table.c.session_id, 1, len(prefix)) == prefix,
            )
            .distinct()
        ).scalars()
    }
    keys = [SessionKey(agent_id, SessionId(name)) for name in sorted(named)]
    for key in keys:
        _erase_letters(connection, key)
    locked = [
        session
        for portion in in_portions(keys)
        for session in lock_by_key(connection, portion).values()
    ]
    return _erase_sessions(connection, locked, last_seq, now_ms, "prefix", actor)


def _expire(connection: Connection, *, sid: int, installation: Installation, now_ms: int) -> None:
    """Erase a session whose retention is over. Events that are still on their way begin it anew."""
    lock_against_erase(connection, is_erasing=True)
    lock_session_counts(
        connection,
        connection.execute(select(sessions.c.agent_id).where(sessions.c.sid == sid)).scalars(),
    )
    for session in lock_by_sid(connection, [sid]).values():
        if is_over(
            session.last_event_at_ms,
            installation.policy(session.agent_wishes, session.wishes),
            now_ms=now_ms,
        ):
            # Not the stream's last sequence: an event published a moment ago begins the session
            # anew.
            ingested_to = max((last for (last,) in _INGESTED_TO.rows(connection)), default=0)
            _erase_letters(connection, session.key)
            _erase_sessions(connection, [session], ingested_to, now_ms, RETENTION, WORKER)


def _erase_sessions(
    connection: Connection,
    locked: Sequence[SessionRow],
    last_seq: int,
    now_ms: int,
    reason: str,
    actor: str,
) -> EraseResult:
    """Erase locked sessions, and return how many sessions and messages these were."""
    journal, total = SessionJournal(actor), 0
    for portion in in_portions(locked):
        sids = [session.sid for session in portion]
        counts = _message_counts(connection, sids)
        _remember_events(connection, sids)
        _delete_rows(connection, sids)
        for session in portion:
            number = counts.get(session.sid, 0)
            total += number
            # Before the tombstone, which takes over the chain that ends with this row.
            journal.add_audit_row(
                session,
                "erased",
                at_ms=now_ms,
                reason=reason,
                messages=number,
                versions=session.versions,
                last_seq=last_seq,
            )
            add_tombstone(
                connection,
                session.key,
                last_seq,
                now_ms,
                rows=session.audit_rows,
                hash_=session.audit_hash,
            )
    journal.write(connection)
    return EraseResult(len(locked), total)


def _message_counts(connection: Connection, sids: Sequence[int]) -> dict[int, int]:
    counted = (
        select(messages.c.sid, func.count())
        .where(messages.c.sid.in_(sids))
        .group_by(messages.c.sid)
    )
    return {row[0]: row[1] for row in connection.execute(counted)}


def _remember_events(connection: Connection, sids: Sequence[int]) -> None:
    """Keep hashes of the event ids, and queue all places of the events in the stream for purging.

    Without the hashes, an event that is delivered again would create the session again.
    """
    stored = connection.execute(
        select(events.c.agent_id, events.c.event_id, events.c.stream_seq).where(
            events.c.sid.in_(sids)
        )
    ).all()
    duplicates = (
        connection.execute(
            select(duplicate_events.c.stream_seq).where(duplicate_events.c.sid.in_(sids))
        )
        .scalars()
        .all()
    )
    hashes = {digest_of(agent_id, event_id) for agent_id, event_id, _ in stored}
    insert_missing(connection, erased_events, sorted(hashes))
    purge_from_stream(connection, chain((row.stream_seq for row in stored), duplicates))


def _delete_rows(connection: Connection, sids: Sequence[int]) -> None:
    # Before the messages: the removal from the search index is filled from them.
    queue_index_removal(connection, sids)
    for table in HANGING:
        connection.execute(delete(table).where(table.c.sid.in_(sids)))
    connection.execute(delete(sessions).where(sessions.c.sid.in_(sids)))


def _erase_letters(connection: Connection, key: SessionKey | AgentId) -> None:
    """Erase the dead letters of a session or an agent, found by key or by subject."""
    if isinstance(key, SessionKey):
        subjects = [session_subject(kind, key) for kind in EVENT_TYPES]
        named = (dead_letters.c.agent_id == key.agent_id) & (
            dead_letters.c.session_id == key.session_id
        )
        is_of_key = or_(named, dead_letters.c.subject.in_(subjects))
    else:
        # By subject too: an event that could not be read has no session that could be compared.
        begins = [
            dead_letters.c.subject.startswith(f"{kind}.{token_of(key)}.", autoescape=True)
            for kind in EVENT_TYPES
        ]
        is_of_key = or_(dead_letters.c.agent_id == key, *begins)
    purge_from_stream(
        connection, connection.execute(select(dead_letters.c.stream_seq).where(is_of_key)).scalars()
    )
    connection.execute(delete(dead_letters).where(is_of_key))
    for sequences in _claiming(connection, key):
        purge_from_stream(connection, sequences)
        connection.execute(delete(dead_letters).where(dead_letters.c.stream_seq.in_(sequences)))


def _claiming(connection: Connection, key: SessionKey | AgentId) -> Iterable[Sequence[int]]:
    """Yield sequences of dead letters that name a session only in their payload, page by page."""
    after = 0
    while rows := _MISMATCHED.rows(connection, SUBJECT_MISMATCH, after, LETTERS_AT_ONCE):
        after = rows[-1][0]
        if claimed := [seq for seq, payload in rows if is_claimed(bytes(payload), key)]:
            yield claimed


def _wishes(columns: Sequence[Any]) -> tuple[PolicyOverrides, PolicyOverrides]:
    """Build the overrides of agent and session."""
    return PolicyOverrides(*columns[3:]), PolicyOverrides(*columns[:3])
