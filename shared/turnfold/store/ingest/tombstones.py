"""Remember what was erased, without its text, so that it is not stored again."""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    Table,
    bindparam,
    case,
    func,
    literal_column,
    select,
)

from turnfold.contracts.events import claimed_key
from turnfold.contracts.subjects import agent_of_event_subject
from turnfold.messages import SessionId, SessionKey
from turnfold.ports.ingest import CLAIMS, DeadLetter, DecodedEvent
from turnfold.store.database.engine import insert_for
from turnfold.store.database.predicates import is_erased
from turnfold.store.database.schema import (
    dead_letters,
    duplicate_events,
    erased_events,
    erasures,
    events,
    sessions,
    stream_purges,
)
from turnfold.store.database.sequence_ranges import is_ingested
from turnfold.store.database.statements import PAIRS, Bulk, Prepared, PreparedIn, PreparedPairs

RETENTION = "retention"
AT_ONCE = 400
CLOCKS_MS = 60_000
"""How much later the clock of the stream may be: the erased events are not kept for that."""
ALL_SESSIONS = ""
"""The session id of a tombstone for a whole agent; real ids are never empty."""

_LAST = PreparedPairs(
    select(erasures.c.agent_id, erasures.c.session_id, erasures.c.last_seq, erasures.c.at_ms).where(
        erasures.c.agent_id == PAIRS.c.a, erasures.c.session_id == PAIRS.c.b
    ),
    (erasures.c.agent_id.type, erasures.c.session_id.type),
)
_lowest = erasures.alias("lowest")
_TOUCHED = PreparedPairs(
    # One tombstone of an agent shows that it has some: an agent may have 200,000.
    select(erasures.c.agent_id).where(
        erasures.c.agent_id == PAIRS.c.a,
        erasures.c.session_id
        == select(func.min(_lowest.c.session_id))
        .where(_lowest.c.agent_id == PAIRS.c.a)
        .correlate(PAIRS)
        .scalar_subquery(),
    ),
    (erasures.c.agent_id.type, erasures.c.session_id.type),
)
_FORGOTTEN = PreparedPairs(
    select(PAIRS.c.b).where(erased_events.c.digest == PAIRS.c.a),
    (erased_events.c.digest.type, stream_purges.c.stream_seq.type),
)
_LETTERS = PreparedIn(
    select(dead_letters.c.stream_seq, dead_letters.c.at_ms), dead_letters.c.stream_seq
)
_ANY_LEFT = Prepared(select(literal_column("1")).where(is_erased).limit(literal_column("1")), ())
_STILL_STORED = PreparedPairs(
    select(events.c.agent_id, events.c.event_id).where(
        events.c.agent_id == PAIRS.c.a,
        events.c.event_id == PAIRS.c.b,
        sessions.c.sid == events.c.sid,
        is_erased,
    ),
    (events.c.agent_id.type, events.c.event_id.type),
)


class Tombstone(NamedTuple):
    """A row of `erasures`; its last two fields are the end of the session's audit chain."""

    agent_id: str
    session_id: str
    last_seq: int
    at_ms: int
    audit_rows: int = 0
    audit_hash: str = ""


def add_tombstones(connection: Connection, tombstones: Sequence[Tombstone]) -> None:
    """Add or update tombstones."""
    made = insert_for(connection)(erasures).values(
        {name: bindparam(name) for name in Tombstone._fields}
    )
    new, names = made.excluded, Tombstone._fields[2:]
    # A tombstone never moves back: retention erases up to a lower sequence than a request does.
    last_seq = case((new.last_seq > erasures.c.last_seq, new.last_seq), else_=erasures.c.last_seq)
    updated = {**{name: new[name] for name in names}, "last_seq": last_seq}
    statement = made.on_conflict_do_update(index_elements=["agent_id", "session_id"], set_=updated)
    Bulk(statement, Tombstone._fields).run(connection, tombstones)


def any_rows_left(connection: Connection) -> bool:
    """Return whether rows of erased sessions are still to be deleted."""
    return bool(_ANY_LEFT.rows(connection))


def erased_before(
    connection: Connection,
    arrivals: Sequence[DecodedEvent],
    dead: Sequence[DeadLetter],
    replays: Mapping[int, int],
) -> set[int]:
    """Return the sequences of events that were erased before they arrived.

    A replayed dead letter counts as erased if its first publication was: the replay may have read
    it before the erasure, and published it afterwards.
    """
    claims = [
        *((arrival.key, arrival.stream_seq) for arrival in arrivals),
        *((letter.key, letter.stream_seq) for letter in dead),
        # The subject of one that cannot be read may name an agent and no session.
        *((_agent_of(letter.subject), letter.stream_seq) for letter in dead),
        # The payload may name another session than the subject, and either may be erased.
        *((claim_of(letter.detail), letter.stream_seq) for letter in dead),
    ]
    placed = [(key, seq) for key, seq in claims if key is not None]
    times = {arrival.stream_seq: arrival.at_ms for arrival in arrivals}
    times |= {letter.stream_seq: letter.at_ms for letter in dead}
    erased = _below_tombstone(connection, placed, times, replays) | _stored_before_erasure(
        connection, arrivals, placed
    )
    purge_from_stream(connection, ((seq, times[seq]) for seq in erased))
    return erased


def claim_of(detail: str) -> SessionKey | None:
    """Return the session that a dead letter's event names, if its subject names another one."""
    _, mark, claim = detail.rpartition(CLAIMS)
    return claimed_key(claim.encode()) if mark else None


def _below_tombstone(
    connection: Connection,
    placed: Sequence[tuple[SessionKey, int]],
    times: Mapping[int, int],
    replays: Mapping[int, int],
) -> set[int]:
    """Return the sequences at or below the tombstone of their session or agent."""
    keys = {key for key, _ in placed} | {_whole_agent(key) for key, _ in placed}
    last = {
        (agent_id, session_id): place
        for portion in in_portions(sorted(keys))
        for agent_id, session_id, *place in _LAST.rows(connection, portion)
    }

    letters = {
        seq: at_ms
        for portion in in_portions(sorted(set(replays.values())))
        for seq, at_ms in _LETTERS.rows(connection, portion)
    }

    def is_below(seq: int, key: SessionKey) -> bool:
        last_seq, at_ms = last.get(key, (0, 0))
        first = min(seq, replays.get(seq, seq))
        if first > last_seq:
            return False
        # A later event under a sequence that was stored is another one: the stream was restored
        # from an older backup. One that was not was on its way, whatever the clocks say. A replay
        # has the time of its letter, unless that was erased.
        first_ms = times[seq] if first == seq else letters.get(first, 0)
        return not (first_ms > at_ms + CLOCKS_MS and is_ingested(connection, first))

    return {seq for key, seq in placed if is_below(seq, key) or is_below(seq, _whole_agent(key))}


def _agent_of(subject: str) -> SessionKey | None:
    agent_id = agent_of_event_subject(subject)
    return None if agent_id is None else SessionKey(agent_id, SessionId(ALL_SESSIONS))


def _whole_agent(key: SessionKey) -> SessionKey:
    return SessionKey(key.agent_id, SessionId(ALL_SESSIONS))


def _stored_before_erasure(
    connection: Connection,
    arrivals: Sequence[DecodedEvent],
    placed: Sequence[tuple[SessionKey, int]],
) -> set[int]:
    """Return the sequences of events that were stored once, and erased."""
    agents = sorted({_whole_agent(key) for key, _ in placed})
    touched = {
        agent_id
        for portion in in_portions(agents)
        for (agent_id,) in _TOUCHED.rows(connection, portion)
    }
    # Events of agents that erased nothing need no digest.
    suspects = [arrival for arrival in arrivals if arrival.key.agent_id in touched]
    # Before the digests: a row that is deleted between the two lookups has left its digest.
    left = _in_rows_left(connection, suspects)
    digests = [
        (digest_of(arrival.key.agent_id, arrival.event_id), arrival.stream_seq)
        for arrival in suspects
    ]
    return left | {
        seq
        for portion in in_portions(sorted(digests))
        for (seq,) in _FORGOTTEN.rows(connection, portion)
    }


def _in_rows_left(connection: Connection, arrivals: Sequence[DecodedEvent]) -> set[int]:
    """Return the sequences of events that are stored in sessions which were erased."""
    if not arrivals or not any_rows_left(connection):
        return set()
    ids = sorted({(arrival.key.agent_id, arrival.event_id) for arrival in arrivals})
    left = {
        tuple(row)
        for portion in in_portions(ids)
        for row in _STILL_STORED.rows(connection, portion)
    }
    return {
        arrival.stream_seq
        for arrival in arrivals
        if (arrival.key.agent_id, arrival.event_id) in left
    }


def record_duplicates(connection: Connection, places: Iterable[tuple[int, int]]) -> None:
    """Record other sequences at which the stream holds an event."""
    rows = [{"sid": sid, "stream_seq": seq} for sid, seq in sorted(places)]
    if rows:
        connection.execute(insert_for(connection)(duplicate_events).on_conflict_do_nothing(), rows)


def digest_of(agent_id: str, event_id: str) -> bytes:
    """Return a digest that identifies an event without its id."""
    # The length keeps agent and event apart: ("ab", "c") and ("a", "bc") differ.
    agent = agent_id.encode("utf-8", "surrogatepass")
    return sha256(
        len(agent).to_bytes(4) + agent + event_id.encode("utf-8", "surrogatepass")
    ).digest()


def purge_from_stream(connection: Connection, places: Iterable[tuple[int, int | None]]) -> None:
    """Queue sequences to be deleted from the stream, each with the latest time of its event."""
    made = insert_for(connection)(stream_purges).values(
        {name: bindparam(name) for name in ("stream_seq", "until_ms")}
    )
    new, old = made.excluded.until_ms, stream_purges.c.until_ms
    # In a stream that was restored from an older backup, it may be another event by now.
    until_ms = case((new < old, old), else_=new)
    statement = made.on_conflict_do_update(
        index_elements=["stream_seq"], set_={"until_ms": until_ms}
    )
    Bulk(statement, ("stream_seq", "until_ms")).run(connection, sorted(dict(places).items()))


def insert_missing(connection: Connection, table: Table, values: Sequence[Any]) -> None:
    """Insert missing values into a table of one column, as plain tuples for speed."""
    (column,) = table.columns
    statement = (
        insert_for(connection)(table)
        .values({column.name: bindparam("value")})
        .on_conflict_do_nothing()
    )
    Bulk(statement, ("value",)).run(connection, [(value,) for value in values])


def in_portions(values: Sequence[Any]) -> Iterable[Sequence[Any]]:
    """Split a sequence into portions of AT_ONCE."""
    return (values[start : start + AT_ONCE] for start in range(0, len(values), AT_ONCE))
