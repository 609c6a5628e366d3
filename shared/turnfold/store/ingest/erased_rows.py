"""Delete the rows of erased sessions, in portions that hold up no other transaction for long.

No query finds these sessions any more; see `turnfold.store.ingest.erase`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    Integer,
    Table,
    TableClause,
    bindparam,
    delete,
    func,
    literal_column,
    select,
    text,
    tuple_,
)

from turnfold.store.database.predicates import is_erased
from turnfold.store.database.schema import (
    compactions,
    duplicate_events,
    erased_events,
    events,
    messages,
    metadata,
    retracted_messages,
    sessions,
    tool_calls,
    usage_reports,
    word_index,
    word_index_segments,
)
from turnfold.store.ingest.tombstones import digest_of, insert_missing, purge_from_stream
from turnfold.store.ingest.word_index.removal import note_merge, queue_index_removal

SESSIONS_AT_ONCE = 50
ROWS_AT_ONCE: Final = 500
"""The weight of a portion.

Ingest waits for SQLite's only writer. On PostgreSQL only erased rows are locked, but the worker's
event loop reads what was deleted: portions of 2,000 rows held it up for 0.4 s.
"""
CHARACTERS_A_ROW = 1_000
"""The characters of a message that weigh as much as a row."""

HANGING: Sequence[Table] = [
    table
    for table in reversed(metadata.sorted_tables)
    if any(key.column is sessions.c.sid for key in table.foreign_keys)
]
"""All tables with rows of a session, found by their foreign keys, so that none is missed."""


_Note = Callable[[Connection, Sequence[Any], int | None], None]


class _Kind(NamedTuple):
    """One table: the keys of its rows, and what is done with deleted ones.

    `note` gets the keys of deleted rows, and the columns `noted`, and the time at which the last of
    the sessions was erased, or None if a worker of an earlier release erased one.
    """

    table: TableClause
    keys: Sequence[ColumnElement[Any]]
    noted: Sequence[ColumnElement[Any]] = ()
    note: _Note | None = None

    @property
    def weight(self) -> ColumnElement[int]:
        one = literal_column("1", Integer)
        characters = self.table.c.get("characters")
        return one if characters is None else one + characters // CHARACTERS_A_ROW

    def removal(self) -> Executable:
        """Return the statement that deletes a portion; the first row however much it weighs."""
        listed = (
            select(*self.keys, self.weight.label("weight"))
            .where(self.table.c.sid.in_(bindparam("sids", expanding=True)))
            .limit(bindparam("room", type_=Integer))
            .subquery("listed")
        )
        names = [key.name for key in self.keys]
        summed = func.sum(listed.c.weight).over(rows=(None, 0)) - listed.c.weight
        weighed = select(*(listed.c[name] for name in names), summed.label("before")).subquery()
        chosen = select(*(weighed.c[name] for name in names)).where(
            weighed.c.before < bindparam("room", type_=Integer)
        )
        return (
            delete(self.table)
            .where(tuple_(*self.keys).in_(chosen))
            .returning(self.weight, *self.keys, *self.noted)
        )


def _note_events(connection: Connection, rows: Sequence[Any], until_ms: int | None) -> None:
    """Keep hashes of the event ids, and queue the places of the events in the stream for purging.

    Without the hashes, an event that is delivered again would create the session again.
    """
    hashes = {digest_of(row.agent_id, row.event_id) for row in rows}
    insert_missing(connection, erased_events, sorted(hashes))
    _note_places(connection, rows, until_ms)


def _note_places(connection: Connection, rows: Sequence[Any], until_ms: int | None) -> None:
    purge_from_stream(connection, ((row.stream_seq, until_ms) for row in rows))


def _note_messages(connection: Connection, rows: Sequence[Any], _: int | None) -> None:
    queue_index_removal(connection, [(row.sid, row.position, row.body) for row in rows])


def _kinds(dialect: str) -> Sequence[_Kind]:
    is_sqlite = dialect == "sqlite"
    noted = [
        _Kind(events, [*events.primary_key], _columns(events, "stream_seq"), _note_events),
        _Kind(duplicate_events, [*duplicate_events.primary_key], note=_note_places),
    ]
    if is_sqlite:
        body = _columns(messages, "body")
        noted.append(_Kind(messages, [*messages.primary_key], body, _note_messages))
        keys = [*retracted_messages.primary_key]
        # Retracted words left the index, but stay in the file until it is merged.
        noted.append(
            _Kind(retracted_messages, keys, note=lambda connection, *_: note_merge(connection))
        )
    by_table = {kind.table: kind for kind in noted}
    # First those that other sessions' reads pass over while they are there.
    ordered = sorted(HANGING, key=lambda table: table not in (compactions, usage_reports))
    kinds = [by_table.get(table) or _Kind(table, [*table.primary_key]) for table in ordered]
    if is_sqlite:
        return kinds
    segment = _columns(word_index_segments, "sid", "number", "segment")
    words = [_Kind(word_index, [word_index.c.position]), _Kind(word_index_segments, segment)]
    return [*kinds, *words]


def _columns(table: TableClause, *names: str) -> Sequence[ColumnElement[Any]]:
    return [table.c[name] for name in names]


# For one session: with a key of four columns, SQLite would read all calls of the sessions.
_CALLS_ON_SQLITE = text("""
    WITH one (sid) AS (SELECT sid FROM tool_calls WHERE sid IN :sids LIMIT 1),
         first (call_id, position, slot) AS (
           SELECT call_id, position, slot FROM tool_calls WHERE sid = (SELECT sid FROM one)
            ORDER BY call_id, position, slot LIMIT :room)
    DELETE FROM tool_calls
     WHERE sid = (SELECT sid FROM one)
       AND (call_id, position, slot) <= (
           SELECT call_id, position, slot FROM first
            ORDER BY call_id DESC, position DESC, slot DESC LIMIT 1)
    RETURNING 1""").bindparams(bindparam("sids", expanding=True))

_KINDS: Final[Mapping[str, Sequence[tuple[Executable, _Note | None]]]] = {
    dialect: [
        (
            _CALLS_ON_SQLITE
            if dialect == "sqlite" and kind.table is tool_calls
            else kind.removal(),
            kind.note,
        )
        for kind in _kinds(dialect)
    ]
    for dialect in ("sqlite", "postgresql")
}


def delete_portion(
    connection: Connection,
    rows_at_once: int = ROWS_AT_ONCE,
    *,
    are_due: ColumnElement[bool] = is_erased,
) -> bool:
    """Delete a portion of the rows of erased sessions; return whether it found such a session.

    A session goes with its last row. Other workers delete other sessions meanwhile. `are_due`
    chooses among erased sessions.
    """
    columns = (sessions.c.sid, sessions.c.last_event_at_ms)
    waiting = select(*columns).where(is_erased, are_due).limit(SESSIONS_AT_ONCE)
    locked = waiting.with_for_update(skip_locked=True)
    times = {row.sid: row.last_event_at_ms for row in connection.execute(locked)}
    if not times:
        return False
    sids = list(times)
    until_ms = None if None in times.values() else max(times.values())
    room = rows_at_once
    for removal, note in _KINDS[connection.dialect.name]:
        while rows := connection.execute(removal, {"sids": sids, "room": room}).all():
            if note:
                note(connection, rows, until_ms)
            room -= sum([row[0] for row in rows])
            if room <= 0:
                return True
    connection.execute(delete(sessions).where(sessions.c.sid.in_(sids)))
    return True
