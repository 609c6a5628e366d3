"""Fill the word index after ingest, and mark lines for recall, in short transactions.

Each term begins with the number of its session, so that a lookup reads rows of that session only.
SQLite keeps the terms in FTS5 without texts and positions. PostgreSQL keeps them in segments of
several messages each (`turnfold.core.text.word_segments`).
"""

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    bindparam,
    delete,
    exists,
    func,
    literal_column,
    select,
    text,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.elements import ColumnElement

from turnfold.core.recall.quotes import mark_lines
from turnfold.core.text.search import Term, searchable
from turnfold.core.text.tokens import Count
from turnfold.core.text.words import terms
from turnfold.process.set_aside import SetAside
from turnfold.store.database.engine import Database, SqlStore
from turnfold.store.database.message_rows import estimated_length
from turnfold.store.database.schema import (
    index_removals,
    marked_lines,
    messages,
    sessions,
    word_index,
)
from turnfold.store.database.statements import Bulk, Prepared, PreparedIn, bulk_update
from turnfold.store.database.word_segments import late_segments
from turnfold.store.ingest.word_index.segment_writer import (
    insert_segments,
    merge_session,
    sessions_to_merge,
)

SESSIONS_AT_ONCE = 50
MESSAGES_AT_ONCE = 200
CHARACTERS_AT_ONCE = 400_000
_Place = tuple[int, int]
"""A session and a first position."""
_INDEXING = int.from_bytes(sha256(b"turnfold.indexing").digest()[:7])
"""The name of the lock that a worker holds while it indexes."""
REMOVED = select(index_removals.c.position)
"""The rows of SQLite's index whose words wait for their removal: no lookup finds them."""
IS_IN_SQLITE = word_index.c.rowid.not_in(REMOVED)
"""Otherwise the words are those of an erased message, whose position a restored stream reused."""
DELETE_SQLITE = text(
    "INSERT INTO word_index (word_index, rowid, terms) VALUES ('delete', :position, :terms)"
)
UNDIVIDED = "z"
"""The term of a text with too many terms, which every search of its session reads."""


class UnindexedMessage(NamedTuple):
    """A message that is not in the index yet."""

    sid: int
    position: int
    body: str


def of_session(sid: int, term: str) -> str:
    """Return a term as the index stores it: the session number, then the word."""
    return f"{sid}{term}"


def fts5_term(sid: int, term: Term) -> str:
    """Quote a term for FTS5. Their ASCII is letters and digits, so nothing is escaped."""
    return f'"{of_session(sid, term.text)}"{"*" if term.is_prefix else ""}'


class SqlSearchIndex(SqlStore):
    """Add stored messages to the word index."""

    def __init__(
        self, database: Database, count: Count, *, aside: SetAside[int] | None = None
    ) -> None:
        super().__init__(database, aside=aside)
        self._count = count

    async def index_some(self) -> bool:
        """Index messages of the sessions that wait longest; return whether more are waiting.

        Workers take turns: two would find the same messages, and both split them. While another
        one indexes, nothing waits for this one.
        """
        async with self._database.try_lock(_INDEXING) as is_ours:
            return is_ours and await self._index_some()

    async def _index_some(self) -> bool:
        most = SESSIONS_AT_ONCE + len(self._aside.keys)
        rows = await self._database.read_small(lambda connection: _DUE.rows(connection, most))
        found: dict[int, int] = {row[0]: row[1] for row in rows}
        due = self._aside.others(found)[:SESSIONS_AT_ONCE]
        are_more = await self._aside.together(
            due, lambda sids: self._index([(sid, found[sid]) for sid in sids])
        )
        return any(are_more) or len(due) == SESSIONS_AT_ONCE

    async def _index(self, due: Sequence[_Place]) -> bool:
        """Index messages of these sessions; return whether more of them are waiting."""
        unindexed, is_more = await self._database.snapshot(partial(_waiting, due=due))
        if unindexed:
            # Split into terms outside of any transaction: it takes long, and SQLite has one writer.
            made = await asyncio.to_thread(_indexed, unindexed, self._count)
            merging = await self._database.write(
                lambda connection: _store(connection, made), is_repeatable=True
            )
            for sid in merging:
                await merge_session(self._database, sid)
        return is_more


class _Unindexed(NamedTuple):
    """Statements about messages that the index lacks, from a position of a session on.

    The last parameter of each is the list of positions in segments, which only PostgreSQL has.
    """

    next: Prepared
    sizes: Prepared
    places: Prepared
    bodies: Prepared


def _unindexed(is_indexed: ColumnElement[bool]) -> _Unindexed:
    of_session = (messages.c.sid == bindparam("of_sid")) & (
        messages.c.position >= bindparam("first")
    )
    places = (
        select(messages.c.position)
        .where(of_session, ~exists().where(is_indexed))
        .order_by(messages.c.position)
    )
    until = places.where(messages.c.position <= bindparam("last"))
    sizes = places.add_columns(estimated_length(messages))
    return _Unindexed(
        Prepared(places.limit(literal_column("1")), ("of_sid", "first", "indexed")),
        Prepared(
            sizes.limit(bindparam("most", type_=Integer)), ("of_sid", "first", "most", "indexed")
        ),
        Prepared(until, ("of_sid", "first", "last", "indexed")),
        Prepared(until.add_columns(messages.c.body), ("of_sid", "first", "last", "indexed")),
    )


def _in_segments(
    connection: Connection, firsts: Sequence[tuple[int, int]]
) -> Mapping[int, list[int]]:
    """Return the positions in segments, for pairs of a session and a first position."""
    if connection.dialect.name == "sqlite":
        return {}
    return {
        sid: [position for stored in segments for position in stored.present()]
        for sid, segments in late_segments(connection, firsts).items()
    }


_indexed_positions = func.unnest(bindparam("indexed", type_=postgresql.ARRAY(BigInteger)))
_positions = select(_indexed_positions.label("position")).subquery("in_segments")
_UNINDEXED = {
    "sqlite": _unindexed(IS_IN_SQLITE & (word_index.c.rowid == messages.c.position)),
    "postgresql": _unindexed(_positions.c.position == messages.c.position),
}
_DUE = Prepared(
    select(sessions.c.sid, sessions.c.unindexed_from)
    .where(sessions.c.unindexed_from.is_not(None))
    .order_by(sessions.c.unindexed_from)
    .limit(bindparam("most", type_=Integer)),
    ("most",),
)
_LOCKED = PreparedIn(
    select(sessions.c.sid, sessions.c.unindexed_from).order_by(sessions.c.sid).with_for_update(),
    sessions.c.sid,
)
_WAIT = bulk_update(sessions, where=("sid",), values=("unindexed_from",))
_MARK = Bulk(marked_lines.insert(), ("sid", "position", "lines"))
_INSERT_SQLITE = Bulk(word_index.insert(), ("rowid", "terms"))


def _waiting(
    connection: Connection, *, due: Sequence[_Place]
) -> tuple[dict[int, list[UnindexedMessage]], bool]:
    """Return the next messages of these sessions, and whether more of them wait."""
    unindexed = _UNINDEXED[connection.dialect.name]
    messages_by_sid: dict[int, list[UnindexedMessage]] = {}
    room, characters = MESSAGES_AT_ONCE, CHARACTERS_AT_ONCE
    in_segments = _in_segments(connection, due)
    is_more = False
    for at in due:
        sid, indexed = at[0], in_segments.get(at[0], ())
        last: int | None = None
        for position, size in unindexed.sizes.rows(connection, *at, room, indexed):
            # At least one message is taken, however long it is, or it would wait forever.
            if last is not None and size > characters:
                is_more = True
                break
            last = position
            room, characters = room - 1, characters - size
        # Even if there are none: then `_store` ends the wait of this session.
        messages_by_sid[sid] = (
            []
            if last is None
            else [
                UnindexedMessage(sid, *row)
                for row in unindexed.bodies.rows(connection, *at, last, indexed)
            ]
        )
        if room <= 0 or characters <= 0:
            return messages_by_sid, True
    return messages_by_sid, is_more


class IndexedMessage(NamedTuple):
    """The index entries of a message: its terms, and its marked lines if it has any."""

    terms: frozenset[str]
    lines: bytes | None


def _indexed(
    unindexed: Mapping[int, Iterable[UnindexedMessage]], count: Count
) -> dict[int, dict[int, IndexedMessage]]:
    return {
        sid: {
            row.position: IndexedMessage(
                terms_of_body(body := json.loads(row.body)), mark_lines(body, count)
            )
            for row in rows
        }
        for sid, rows in unindexed.items()
    }


def terms_of_body(body: Mapping[str, Any]) -> frozenset[str]:
    """Return the index terms of a message."""
    words = terms(searchable(body))
    return frozenset((UNDIVIDED,)) if words is None else words


def fts5_terms(sid: int, message_terms: Iterable[str]) -> str:
    """Return the terms of a message as SQLite's index takes them."""
    of_this = of_session(sid, "")
    return " ".join([of_this + term for term in message_terms])


def removal_of(sid: int, position: int, body: str) -> dict[str, Any]:
    """Return the values with which `DELETE_SQLITE` removes a message."""
    return {"position": position, "terms": fts5_terms(sid, terms_of_body(json.loads(body)))}


def delete_queued(connection: Connection, positions: Sequence[int]) -> None:
    """Remove the queued words at these positions, where messages are indexed anew."""
    if connection.dialect.name == "sqlite":
        # Without a body, a worker before revision 1013 has removed the words.
        are_chosen = index_removals.c.position.in_(positions) & (index_removals.c.body != "")
        columns = (index_removals.c.sid, index_removals.c.position, index_removals.c.body)
        if rows := connection.execute(select(*columns).where(are_chosen)).all():
            connection.execute(DELETE_SQLITE, [removal_of(*row) for row in rows])
            connection.execute(delete(index_removals).where(are_chosen))


def _store(connection: Connection, made: Mapping[int, Mapping[int, IndexedMessage]]) -> list[int]:
    """Add new terms and lines, and record from where these sessions wait now.

    Late events may have arrived in the meantime. Return the sessions with segments to merge.
    """
    unindexed = _UNINDEXED[connection.dialect.name]
    wait: list[tuple[int | None, int]] = []
    added: dict[int, dict[int, frozenset[str]]] = {}
    # The rows are locked as ingest locks them: a late event that lowers `unindexed_from` is either
    # seen here or comes after this transaction.
    locked = _LOCKED.rows(connection, sorted(made))
    # Another worker indexed the others meanwhile.
    due = [(sid, first) for sid, first in locked if first is not None]
    # The first one may have changed since these messages were read, in either direction.
    in_segments = _in_segments(connection, [(sid, min((first, *made[sid]))) for sid, first in due])
    for at in due:
        sid, indexed = at[0], in_segments.get(at[0], ())
        made_here = made[sid]
        absent: list[int] = []
        if made_here:
            # Another worker may have indexed some meanwhile. FTS5 without texts accepts a row id
            # twice, and its words could not be removed again.
            from_here = (sid, min(made_here))
            lacking = unindexed.places.rows(connection, *from_here, max(made_here), indexed)
            absent = [position for (position,) in lacking if position in made_here]
            added[sid] = {position: made_here[position].terms for position in absent}
            _MARK.run(
                connection,
                [
                    (sid, position, lines)
                    for position in absent
                    if (lines := made_here[position].lines) is not None
                ],
            )
        if connection.dialect.name == "sqlite":
            delete_queued(connection, absent)
            terms_here = added.get(sid, {}).items()
            _INSERT_SQLITE.run(
                connection, [(position, fts5_terms(sid, found)) for position, found in terms_here]
            )
        rows = unindexed.next.rows(connection, *at, [*indexed, *absent])
        wait.append((next((position for (position,) in rows), None), sid))
    _WAIT.run(connection, wait)
    if connection.dialect.name == "sqlite":
        return []
    insert_segments(connection, added)
    return sessions_to_merge(connection, list(added))
