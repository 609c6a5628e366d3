"""Fill the word index after ingest, and mark lines for recall, in short transactions.

Each term begins with the number of its session, so that a lookup reads rows of that session only.
SQLite keeps the terms in FTS5 without texts and positions; PostgreSQL keeps them as a tsvector with
a GIN index.
"""

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    Text,
    bindparam,
    cast,
    delete,
    exists,
    func,
    insert,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.elements import ColumnElement

from turnfold.core.recall.quotes import mark_lines
from turnfold.core.text.search import Term, searchable
from turnfold.core.text.tokens import Count
from turnfold.core.text.words import terms
from turnfold.store.database.engine import Database
from turnfold.store.database.schema import (
    index_removals,
    marked_lines,
    messages,
    retracted_messages,
    sessions,
    word_index,
)
from turnfold.store.database.statements import Bulk, Prepared, PreparedIn, bulk_update

SESSIONS_AT_ONCE = 50
MESSAGES_AT_ONCE = 200
CHARACTERS_AT_ONCE = 400_000
MERGED_PAGES = 200
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
    """Quote a term for FTS5. Terms contain only letters and digits, so nothing is escaped."""
    return f'"{of_session(sid, term.text)}"{"*" if term.is_prefix else ""}'


def tsquery_term(sid: int, term: Term) -> str:
    """Quote a term for a tsquery of PostgreSQL."""
    return f"'{of_session(sid, term.text)}'{':*' if term.is_prefix else ''}"


class SqlSearchIndex:
    """The word index in SQL; see `turnfold.ports.ingest.SearchIndex`."""

    def __init__(self, database: Database, count: Count) -> None:
        self._database = database
        self._count = count

    async def index_some(self) -> bool:
        """Index messages of the sessions that wait longest; return whether more are waiting."""
        unindexed, is_more = await self._database.snapshot(_waiting)
        if unindexed:
            # Split into terms outside of any transaction: it takes long, and SQLite has one writer.
            made = await asyncio.to_thread(_indexed, unindexed, self._count)
            await self._database.write(lambda connection: _store(connection, made))
        return is_more


class _Unindexed:
    """Statements about messages that the index lacks."""

    def __init__(self, key: ColumnElement[int]) -> None:
        indexed = exists().where(key == messages.c.position)
        of_session = (messages.c.sid == bindparam("of_sid")) & (
            messages.c.position >= bindparam("first")
        )
        places = (
            select(messages.c.position).where(of_session, ~indexed).order_by(messages.c.position)
        )
        between = (messages.c.position <= bindparam("last"),)
        self.next = Prepared(places.limit(literal_column("1")), ("of_sid", "first"))
        self.between = Prepared(places.where(*between), ("of_sid", "first", "last"))
        self.bodies = Prepared(
            places.add_columns(messages.c.body).where(*between), ("of_sid", "first", "last")
        )
        sized = places.add_columns(messages.c.characters + literal_column("4") * messages.c.tokens)
        self.sizes = Prepared(
            sized.limit(bindparam("most", type_=Integer)), ("of_sid", "first", "most")
        )


_KEYS = {"sqlite": word_index.c.rowid, "postgresql": word_index.c.position}
_UNINDEXED = {name: _Unindexed(key) for name, key in _KEYS.items()}
_DUE = Prepared(
    select(sessions.c.sid, sessions.c.unindexed_from)
    .where(sessions.c.unindexed_from.is_not(None))
    .order_by(sessions.c.unindexed_from)
    .limit(bindparam("most", type_=Integer)),
    ("most",),
)
_LOCKED = PreparedIn(
    select(sessions.c.sid, sessions.c.unindexed_from)
    .where(sessions.c.sid.in_(bindparam("sids", expanding=True)))
    .order_by(sessions.c.sid)
    .with_for_update(),
    "sids",
)
_WAIT = bulk_update(sessions, where=("sid",), values=("unindexed_from",))
_MARK = Bulk(marked_lines.insert(), ("sid", "position", "lines"))
_INSERT_SQLITE = Bulk(word_index.insert(), ("rowid", "terms"))


def _waiting(connection: Connection) -> tuple[dict[int, list[UnindexedMessage]], bool]:
    """Return the next messages of each waiting session, and whether more wait."""
    unindexed = _UNINDEXED[connection.dialect.name]
    messages_by_sid: dict[int, list[UnindexedMessage]] = {}
    room, characters = MESSAGES_AT_ONCE, CHARACTERS_AT_ONCE
    due = _DUE.rows(connection, SESSIONS_AT_ONCE)
    is_more = len(due) == SESSIONS_AT_ONCE
    for sid, first in due:
        last: int | None = None
        for position, size in unindexed.sizes.rows(connection, sid, first, room):
            # At least one message is taken, however long it is, or it would wait forever.
            if last is not None and size > characters:
                is_more = True
                break
            last = position
            room, characters = room - 1, characters - size
        messages_by_sid[sid] = (
            []
            if last is None
            else [
                UnindexedMessage(sid, *row)
                for row in unindexed.bodies.rows(connection, sid, first, last)
            ]
        )
        if room <= 0 or characters <= 0:
            return messages_by_sid, True
    return messages_by_sid, is_more


class IndexedMessage(NamedTuple):
    """The index entries of a message: its terms, and its marked lines if it has any."""

    terms: list[str]
    lines: bytes | None


def _indexed(
    unindexed: Mapping[int, Iterable[UnindexedMessage]], count: Count
) -> dict[int, dict[int, IndexedMessage]]:
    return {
        sid: {
            row.position: IndexedMessage(
                terms_of_body(sid, row.body), mark_lines(json.loads(row.body), count)
            )
            for row in rows
        }
        for sid, rows in unindexed.items()
    }


def terms_of_body(sid: int, body: str) -> list[str]:
    """Return the index terms of a message of this session."""
    words = terms(searchable(json.loads(body)))
    of_this = of_session(sid, "")
    return [of_this + term for term in ((UNDIVIDED,) if words is None else words)]


def _store(connection: Connection, made: Mapping[int, Mapping[int, IndexedMessage]]) -> None:
    """Add new terms and lines, and record from where these sessions wait now.

    Late events may have arrived in the meantime.
    """
    unindexed = _UNINDEXED[connection.dialect.name]
    wait: list[tuple[int | None, int]] = []
    # The rows are locked as ingest locks them: a late event that lowers `unindexed_from` is either
    # seen here or comes after this transaction.
    for sid, first in _LOCKED.rows(connection, sorted(made)):
        # Another worker indexed these meanwhile.
        if first is None:
            continue
        made_here = made[sid]
        if made_here:
            # Another worker may have indexed some meanwhile. FTS5 without texts accepts a row id
            # twice, and its words could not be removed again.
            absent = [
                position
                for (position,) in unindexed.between.rows(
                    connection, sid, min(made_here), max(made_here)
                )
                if position in made_here
            ]
            _insert(connection, sid, {at: made_here[at].terms for at in absent})
            _MARK.run(
                connection,
                [(sid, at, lines) for at in absent if (lines := made_here[at].lines) is not None],
            )
        wait.append(
            (
                next(
                    (position for (position,) in unindexed.next.rows(connection, sid, first)), None
                ),
                sid,
            )
        )
    _WAIT.run(connection, wait)


def delete_indexed(connection: Connection, sid: int, *, first: int = 0, last: int = 2**62) -> None:
    """Remove messages of a session from the index; call before deleting them, in one transaction.

    An index without texts must be told what it contained.
    """
    are_marked = (marked_lines.c.sid == sid) & marked_lines.c.position.between(first, last)
    connection.execute(delete(marked_lines).where(are_marked))
    if connection.dialect.name != "sqlite":
        in_range = (word_index.c.sid == sid) & word_index.c.position.between(first, last)
        connection.execute(delete(word_index).where(in_range))
        return
    while True:
        indexed = exists().where(_KEYS[connection.dialect.name] == messages.c.position)
        selected = select(messages.c.position, messages.c.body).where(
            messages.c.sid == sid, messages.c.position.between(first, last), indexed
        )
        rows = connection.execute(
            selected.order_by(messages.c.position).limit(MESSAGES_AT_ONCE)
        ).all()
        if not rows:
            return
        connection.execute(
            _DELETE_SQLITE, [_removal(sid, position, body) for position, body in rows]
        )
        first = rows[-1].position + 1


def delete_indexed_at(connection: Connection, sid: int, positions: Sequence[int]) -> None:
    """Remove these messages of a session from the index; call before deleting them."""
    is_marked = (marked_lines.c.sid == sid) & marked_lines.c.position.in_(positions)
    connection.execute(delete(marked_lines).where(is_marked))
    if connection.dialect.name != "sqlite":
        is_chosen = (word_index.c.sid == sid) & word_index.c.position.in_(positions)
        connection.execute(delete(word_index).where(is_chosen))
        return
    indexed = exists().where(_KEYS[connection.dialect.name] == messages.c.position)
    selected = select(messages.c.position, messages.c.body).where(
        messages.c.sid == sid, messages.c.position.in_(positions), indexed
    )
    if rows := connection.execute(selected).all():
        connection.execute(
            _DELETE_SQLITE, [_removal(sid, position, body) for position, body in rows]
        )


def _removal(sid: int, position: int, body: str) -> dict[str, Any]:
    return {"position": position, "terms": " ".join(terms_of_body(sid, body))}


_DELETE_SQLITE = text(
    "INSERT INTO word_index (word_index, rowid, terms) VALUES ('delete', :position, :terms)"
)


def queue_index_removal(connection: Connection, sids: Sequence[int]) -> None:
    """Queue the removal of whole sessions from the index, before they are deleted.

    No search uses their numbers any more. Removing their words from SQLite's index would block
    writers, so `remove_indexed` does it later.
    """
    if connection.dialect.name != "sqlite":
        connection.execute(delete(word_index).where(word_index.c.sid.in_(sids)))
        return
    indexed = exists().where(_KEYS[connection.dialect.name] == messages.c.position)
    aside = select(messages.c.position, messages.c.sid, messages.c.body).where(
        messages.c.sid.in_(sids), indexed
    )
    connection.execute(insert(index_removals).from_select(["position", "sid", "body"], aside))
    # Retracted words left the index, but stay in the file until it is merged.
    retracted = select(
        retracted_messages.c.position, retracted_messages.c.sid, literal_column("''")
    ).where(retracted_messages.c.sid.in_(sids))
    connection.execute(insert(index_removals).from_select(["position", "sid", "body"], retracted))


async def remove_indexed(database: Database) -> None:
    """Remove erased words from the index and the file, in short transactions."""
    if not database.is_sqlite:
        return
    waiting = (
        select(index_removals.c.sid, index_removals.c.position, index_removals.c.body)
        .where(index_removals.c.body != "")
        .limit(MESSAGES_AT_ONCE)
    )
    while aside := await database.snapshot(lambda connection: connection.execute(waiting).all()):
        gone = await asyncio.to_thread(_removals, [UnindexedMessage(*row) for row in aside])
        await database.write(partial(_clear, gone=gone))
    # A word goes from the file when the part of the index that names it is written anew.
    if await database.snapshot(
        lambda connection: connection.execute(select(index_removals.c.position).limit(1)).first()
    ):
        pages = -MERGED_PAGES
        while await database.write(partial(_merged, pages=pages)):
            pages = MERGED_PAGES
        await database.write(
            lambda connection: connection.execute(
                delete(index_removals).where(index_removals.c.body == "")
            )
        )


def _removals(rows: Iterable[UnindexedMessage]) -> list[dict[str, Any]]:
    return [_removal(row.sid, row.position, row.body) for row in rows]


def _clear(connection: Connection, *, gone: Sequence[dict[str, Any]]) -> None:
    """Remove some queued words; the rest stays queued."""
    connection.execute(_DELETE_SQLITE, gone)
    connection.execute(
        update(index_removals)
        .where(index_removals.c.position.in_([row["position"] for row in gone]))
        .values(body="")
    )


def _merged(connection: Connection, *, pages: int) -> bool:
    """Merge pages of the index; return whether more remain (a negative number begins a merge)."""
    before = connection.execute(text("SELECT total_changes()")).scalar_one()
    connection.execute(
        text("INSERT INTO word_index (word_index, rank) VALUES ('merge', :pages)"), {"pages": pages}
    )
    # FTS5 documents this test: a merge with nothing left to do changes fewer than two rows.
    return int(connection.execute(text("SELECT total_changes()")).scalar_one()) - int(before) >= 2


def _insert(connection: Connection, sid: int, made: Mapping[int, list[str]]) -> None:
    if not made:
        return
    if connection.dialect.name == "sqlite":
        _INSERT_SQLITE.run(
            connection,
            [(position, " ".join(message_terms)) for position, message_terms in made.items()],
        )
        return
    listed = [{"at": position, "of_sid": sid, "found": words} for position, words in made.items()]
    connection.execute(_INSERT_POSTGRESQL, listed)


_INSERT_POSTGRESQL = (
    postgresql.insert(word_index)
    .values(
        position=bindparam("at", type_=BigInteger),
        sid=bindparam("of_sid", type_=BigInteger),
        terms=func.array_to_tsvector(cast(bindparam("found"), postgresql.ARRAY(Text))),
    )
    .on_conflict_do_nothing()
)
