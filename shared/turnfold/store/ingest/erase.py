"""Erase sessions in one transaction, and leave tombstones without text."""

from collections.abc import Iterable, Sequence
from functools import partial
from hashlib import sha256
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
    text,
)

from turnfold.contracts.events import claimed_key
from turnfold.contracts.subjects import EVENT_TYPES, session_subject, token_of
from turnfold.core.history.audit_chain import WORKER
from turnfold.core.policy.overrides import PolicyOverrides
from turnfold.core.policy.retention import is_over
from turnfold.messages import AgentId, SessionId, SessionKey
from turnfold.ports.admin import EraseResult
from turnfold.ports.ingest import DeadLetter, DecodedEvent, Installation
from turnfold.store.database.engine import Database, insert_for
from turnfold.store.database.schema import (
    agents,
    copies,
    dead_letters,
    erased_events,
    erasures,
    events,
    ingested,
    messages,
    metadata,
    purges,
    session_counts,
    sessions,
    spending,
)
from turnfold.store.database.session_rows import (
    ANY_NUMBER,
    SessionJournal,
    SessionRow,
    lock_by_key,
    lock_by_sid,
    lock_session_counts,
)
from turnfold.store.database.statements import Bulk, Prepared, PreparedIn, PreparedPairs
from turnfold.store.ingest.search_index import queue_index_removal, remove_indexed

RETENTION = "retention"
AT_ONCE = 400
SUBJECT_MISMATCH = "subject_mismatch"
"""The reason of a dead letter whose subject names another session than its payload."""
LETTERS_AT_ONCE = 50
"""Dead letters read at once; each may hold as many bytes as are kept of a payload."""
ALL_SESSIONS = ""
"""The session id of a tombstone for a whole agent; real ids are never empty."""

HANGING: Sequence[Table] = [
    table
    for table in reversed(metadata.sorted_tables)
    if any(key.column is sessions.c.sid for key in table.foreign_keys)
]
"""All tables with rows of a session, found by their foreign keys, so that none is missed."""

_ANY = Prepared(select(literal_column("1")).select_from(erasures).limit(literal_column("1")), ())
_pairs = PreparedPairs.pairs
_LAST = PreparedPairs(
    select(erasures.c.agent_id, erasures.c.session_id, erasures.c.last_seq).where(
        erasures.c.agent_id == _pairs.c.a, erasures.c.session_id == _pairs.c.b
    ),
    (erasures.c.agent_id.type, erasures.c.session_id.type),
)
_TOUCHED = PreparedIn(
    select(erasures.c.agent_id)
    .where(erasures.c.agent_id.in_(bindparam("ids", expanding=True)))
    .distinct(),
    "ids",
)
_KNOWN = PreparedIn(
    select(erased_events.c.digest).where(
        erased_events.c.digest.in_(bindparam("digests", expanding=True))
    ),
    "digests",
)
_PURGES = Prepared(
    select(purges.c.stream_seq)
    .order_by(purges.c.stream_seq)
    .limit(bindparam("most", type_=Integer)),
    ("most",),
)
_PURGED = Bulk(delete(purges).where(purges.c.stream_seq == bindparam("seq")), ("seq",))
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
    select(ingested.c.last_seq).where(ingested.c.first_seq == literal_column("1")), ()
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
        mine = connection.execute(
            select(sessions.c.session_id).where(sessions.c.agent_id == key)
        ).scalars()
        keys = [SessionKey(key, SessionId(name)) for name in mine]
        locked = [one for some in _portions(keys) for one in lock_by_key(connection, some).values()]
        is_known = True
        connection.execute(delete(agents).where(agents.c.agent_id == key))
        connection.execute(delete(spending).where(spending.c.agent_id == key))
        _remember(connection, SessionKey(key, SessionId(ALL_SESSIONS)), last_seq, now_ms)
    _erase_letters(connection, key)
    found = _erase_sessions(
        connection,
        locked,
        last_seq,
        now_ms,
        "request" if isinstance(key, SessionKey) else "agent",
        actor,
    )
    if not isinstance(key, SessionKey):
        connection.execute(delete(session_counts).where(session_counts.c.agent_id == key))
    return found if is_known else EraseResult()


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
    records, total = SessionJournal(actor), 0
    for some in _portions(locked):
        sids = [session.sid for session in some]
        stored = connection.execute(
            select(events.c.agent_id, events.c.event_id, events.c.stream_seq).where(
                events.c.sid.in_(sids)
            )
        ).all()
        further = (
            connection.execute(select(copies.c.stream_seq).where(copies.c.sid.in_(sids)))
            .scalars()
            .all()
        )
        counted = (
            select(messages.c.sid, func.count())
            .where(messages.c.sid.in_(sids))
            .group_by(messages.c.sid)
        )
        counts: dict[int, int] = {row[0]: row[1] for row in connection.execute(counted)}
        _insert(
            connection,
            erased_events,
            sorted({digest_of(agent_id, event_id) for agent_id, event_id, _ in stored}),
        )
        _forget_in_stream(connection, chain((row.stream_seq for row in stored), further))
        # What keeps words of messages outside of these tables has to forget them here.
        queue_index_removal(connection, sids)
        for table in HANGING:
            connection.execute(delete(table).where(table.c.sid.in_(sids)))
        connection.execute(delete(sessions).where(sessions.c.sid.in_(sids)))
        for session in some:
            number = counts.get(session.sid, 0)
            total += number
            records.add_audit_row(
                session,
                "erased",
                at_ms=now_ms,
                reason=reason,
                messages=number,
                versions=session.versions,
                last_seq=last_seq,
            )
            _remember(
                connection,
                session.key,
                last_seq,
                now_ms,
                rows=session.audit_rows,
                hash_=session.audit_hash,
            )
    records.write(connection)
    return EraseResult(len(locked), total)


def _erase_letters(connection: Connection, key: SessionKey | AgentId) -> None:
    """Erase the dead letters of a session or an agent, found by key or by subject."""
    if isinstance(key, SessionKey):
        subjects = [session_subject(kind, key) for kind in EVENT_TYPES]
        named = (dead_letters.c.agent_id == key.agent_id) & (
            dead_letters.c.session_id == key.session_id
        )
        mine = or_(named, dead_letters.c.subject.in_(subjects))
    else:
        begins = [
            dead_letters.c.subject.startswith(f"{kind}.{token_of(key)}.", autoescape=True)
            for kind in EVENT_TYPES
        ]
        mine = or_(dead_letters.c.agent_id == key, *begins)
    _forget_in_stream(
        connection, connection.execute(select(dead_letters.c.stream_seq).where(mine)).scalars()
    )
    connection.execute(delete(dead_letters).where(mine))
    for some in _claiming(connection, key):
        _forget_in_stream(connection, some)
        connection.execute(delete(dead_letters).where(dead_letters.c.stream_seq.in_(some)))


def _claiming(connection: Connection, key: SessionKey | AgentId) -> Iterable[Sequence[int]]:
    """Yield sequences of dead letters that name a session only in their payload, page by page."""
    after = 0
    while rows := _MISMATCHED.rows(connection, SUBJECT_MISMATCH, after, LETTERS_AT_ONCE):
        after = rows[-1][0]
        if found := [seq for seq, payload in rows if is_claimed(bytes(payload), key)]:
            yield found


def is_claimed(payload: bytes, key: SessionKey | AgentId) -> bool:
    """Return whether a payload names this session, or a session of this agent."""
    claimed = claimed_key(payload)
    return claimed is not None and (
        claimed == key if isinstance(key, SessionKey) else claimed.agent_id == key
    )


def _remember(
    connection: Connection,
    key: SessionKey,
    last_seq: int,
    now_ms: int,
    *,
    rows: int = 0,
    hash_: str = "",
) -> None:
    """Add or update a tombstone."""
    before = max((last for *_, last in _LAST.rows(connection, [key])), default=0)
    values = {
        "last_seq": max(before, last_seq),
        "at_ms": now_ms,
        "audit_rows": rows,
        "audit_hash": hash_,
    }
    made = insert_for(connection)(erasures).values(
        agent_id=key.agent_id, session_id=key.session_id, **values
    )
    connection.execute(
        made.on_conflict_do_update(index_elements=["agent_id", "session_id"], set_=values)
    )


# --- what does not come back


def lock_against_erase(connection: Connection, *, is_erasing: bool = False) -> None:
    """Exclude erasures while events are stored, and the reverse; call before locking sessions.

    A session that does not exist yet has no row to lock. SQLite runs one writing transaction at a
    time.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(
            text(f"SELECT pg_advisory_xact_lock{'' if is_erasing else '_shared'}({_LOCK})")
        )


_LOCK = int.from_bytes(sha256(b"turnfold.erasures").digest()[:7])


def erased_before(
    connection: Connection, arrivals: Sequence[DecodedEvent], dead: Sequence[DeadLetter]
) -> set[int]:
    """Return the sequences of events that were erased before they arrived."""
    if not _ANY.rows(connection):
        return set()
    placed = [(one.key, one.stream_seq) for one in arrivals] + [
        (one.key, one.stream_seq) for one in dead if one.key is not None
    ]
    mismatched = [
        (claimed_key(one.payload), one.stream_seq) for one in dead if one.reason == SUBJECT_MISMATCH
    ]
    placed += [(key, seq) for key, seq in mismatched if key is not None]
    keys = {key for key, _ in placed} | {
        SessionKey(key.agent_id, SessionId(ALL_SESSIONS)) for key, _ in placed
    }
    last = {
        (agent_id, name): seq
        for some in _portions(sorted(keys))
        for agent_id, name, seq in _LAST.rows(connection, some)
    }
    gone = {
        seq
        for key, seq in placed
        if seq <= max(last.get(key, 0), last.get((key.agent_id, ALL_SESSIONS), 0))
    }
    ids = sorted({key.agent_id for key, _ in placed})
    touched = {
        agent_id for some in _portions(ids) for (agent_id,) in _TOUCHED.rows(connection, some)
    }
    digests = {
        one.stream_seq: digest_of(one.key.agent_id, one.event_id)
        for one in arrivals
        if one.key.agent_id in touched
    }
    wanted = sorted(set(digests.values()))
    known = {
        bytes(digest) for some in _portions(wanted) for (digest,) in _KNOWN.rows(connection, some)
    }
    gone |= {seq for seq, digest in digests.items() if digest in known}
    _forget_in_stream(connection, gone)
    return gone


def record_duplicates(connection: Connection, found: Iterable[tuple[int, int]]) -> None:
    """Record other sequences at which the stream holds an event."""
    rows = [{"sid": sid, "stream_seq": seq} for sid, seq in sorted(found)]
    if rows:
        connection.execute(insert_for(connection)(copies).on_conflict_do_nothing(), rows)


def digest_of(agent_id: str, event_id: str) -> bytes:
    """Return a digest that identifies an event without its id."""
    agent = agent_id.encode("utf-8", "surrogatepass")
    return sha256(
        len(agent).to_bytes(4) + agent + event_id.encode("utf-8", "surrogatepass")
    ).digest()


def _forget_in_stream(connection: Connection, sequences: Iterable[int]) -> None:
    _insert(connection, purges, sorted(set(sequences)))


def _insert(connection: Connection, table: Table, values: Sequence[Any]) -> None:
    """Insert missing values into a table of one column, as plain tuples for speed."""
    (column,) = table.columns
    statement = (
        insert_for(connection)(table)
        .values({column.name: bindparam("value")})
        .on_conflict_do_nothing()
    )
    Bulk(statement, ("value",)).run(connection, [(value,) for value in values])


def _portions(some: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (some[start : start + AT_ONCE] for start in range(0, len(some), AT_ONCE))


def _wishes(columns: Sequence[Any]) -> tuple[PolicyOverrides, PolicyOverrides]:
    """Build the overrides of agent and session."""
    return PolicyOverrides(*columns[3:]), PolicyOverrides(*columns[:3])
