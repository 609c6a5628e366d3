"""Remove messages from the word index: at once, or for erased sessions of SQLite in the background.

SQLite's index stores no texts, so it must be told what it contained.
"""

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from sqlalchemy import (
    Connection,
    delete,
    exists,
    insert,
    literal_column,
    select,
    text,
    update,
)

from turnfold.store.database.engine import Database
from turnfold.store.database.schema import (
    index_removals,
    marked_lines,
    messages,
    retracted_messages,
    word_index,
    word_index_segments,
)
from turnfold.store.ingest.word_index.search_index import (
    MESSAGES_AT_ONCE,
    UnindexedMessage,
    fts5_terms,
    terms_of_body,
)
from turnfold.store.ingest.word_index.segment_writer import remove_at, remove_between

MERGED_PAGES = 200
_is_indexed = exists().where(word_index.c.rowid == messages.c.position)


def delete_indexed(connection: Connection, sid: int, *, first: int = 0, last: int = 2**62) -> None:
    """Remove messages of a session from the index; call before deleting them, in one transaction.

    An index without texts must be told what it contained.
    """
    are_marked = (marked_lines.c.sid == sid) & marked_lines.c.position.between(first, last)
    connection.execute(delete(marked_lines).where(are_marked))
    if connection.dialect.name != "sqlite":
        in_range = (word_index.c.sid == sid) & word_index.c.position.between(first, last)
        connection.execute(delete(word_index).where(in_range))
        remove_between(connection, sid, first, last)
        return
    while True:
        selected = select(messages.c.position, messages.c.body).where(
            messages.c.sid == sid, messages.c.position.between(first, last), _is_indexed
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
        remove_at(connection, sid, positions)
        return
    selected = select(messages.c.position, messages.c.body).where(
        messages.c.sid == sid, messages.c.position.in_(positions), _is_indexed
    )
    if rows := connection.execute(selected).all():
        connection.execute(
            _DELETE_SQLITE, [_removal(sid, position, body) for position, body in rows]
        )


def _removal(sid: int, position: int, body: str) -> dict[str, Any]:
    return {"position": position, "terms": fts5_terms(sid, terms_of_body(body))}


_DELETE_SQLITE = text(
    "INSERT INTO word_index (word_index, rowid, terms) VALUES ('delete', :position, :terms)"
)


def queue_index_removal(connection: Connection, sids: Sequence[int]) -> None:
    """Queue the removal of whole sessions from the index, before they are deleted.

    No search uses their numbers any more. Removing their words from SQLite's index would block
    writers, so `remove_indexed` does it later.
    """
    if connection.dialect.name != "sqlite":
        for table in (word_index, word_index_segments):
            connection.execute(delete(table).where(table.c.sid.in_(sids)))
        return
    aside = select(messages.c.position, messages.c.sid, messages.c.body).where(
        messages.c.sid.in_(sids), _is_indexed
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
