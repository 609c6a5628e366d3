"""Remove messages from the word index: at once, or on SQLite in the background.

SQLite's index stores no texts, so it must be told what it contained.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    delete,
    exists,
    func,
    select,
    text,
)

from turnfold.messages import MESSAGES_PER_EVENT
from turnfold.process.set_aside import SetAside
from turnfold.store.database.engine import Database, insert_for
from turnfold.store.database.predicates import is_kept
from turnfold.store.database.schema import (
    index_removals,
    marked_lines,
    messages,
    sessions,
    word_index,
)
from turnfold.store.database.statements import BulkInsert
from turnfold.store.ingest.word_index.search_index import (
    CHARACTERS_AT_ONCE,
    DELETE_SQLITE,
    IS_IN_SQLITE,
    MESSAGES_AT_ONCE,
    UnindexedMessage,
    removal_of,
)
from turnfold.store.ingest.word_index.segment_writer import TERMS_VERSION, remove_from_segments

MERGED_PAGES = 100
KEPT_EACH = 16
PAGES_BETWEEN_KEPT = 8
"""Pages that one step of a merge writes, and where it reads sixteen for each that it writes."""
LAST_ROUND_MESSAGES = 4_000
MERGE_DUE = 0
"""The position of a row that says that words have left the index, but not yet the file."""
_EMPTY_SQLITE = (
    "INSERT INTO word_index (word_index) VALUES ('delete-all')",
    "DELETE FROM index_removals",
    "DELETE FROM marked_lines",
    # Query servers that run already forget what they found in it.
    """UPDATE sessions SET unindexed_from = 0, evicted_changes = evicted_changes + 1
        WHERE messages_total > 0 AND agent_id <> ''""",
    f"PRAGMA user_version = {TERMS_VERSION}",
)
_QUEUE = BulkInsert(index_removals, ("sid", "position", "body"))
_kept_sids = select(sessions.c.sid).where(is_kept)
_is_indexed = exists().where(IS_IN_SQLITE, word_index.c.rowid == messages.c.position)


async def empty_outdated(database: Database) -> None:
    """Empty SQLite's index if it may have terms of an earlier release, and index everything again.

    Such terms could not be removed any more. An earlier worker adds them until it is replaced, so
    call this as the only writer. PostgreSQL's index is emptied by the migration, after which no
    earlier worker can add terms.
    """
    if database.is_sqlite and await database.snapshot(_terms_version) != TERMS_VERSION:
        await database.write(_empty_sqlite)


def _terms_version(connection: Connection) -> int:
    return int(connection.execute(text("PRAGMA user_version")).scalar_one())


def _empty_sqlite(connection: Connection) -> None:
    for statement in _EMPTY_SQLITE:
        connection.execute(text(statement))


def delete_indexed(
    connection: Connection, sid: int, positions: Sequence[int], *, is_later: bool = False
) -> None:
    """Remove messages of a session from the index; call before deleting them, in one transaction.

    SQLite's index has no texts and must be told what it contained. The caller passes portions. With
    `is_later`, SQLite's words are queued for `remove_retracted`, and no search finds them.
    """
    is_marked = (marked_lines.c.sid == sid) & marked_lines.c.position.in_(positions)
    connection.execute(delete(marked_lines).where(is_marked))
    if connection.dialect.name != "sqlite":
        is_chosen = (word_index.c.sid == sid) & word_index.c.position.in_(positions)
        connection.execute(delete(word_index).where(is_chosen))
        remove_from_segments(connection, sid, positions)
        return
    selected = select(messages.c.position, messages.c.body).where(
        messages.c.sid == sid, messages.c.position.in_(positions), _is_indexed
    )
    rows = connection.execute(selected).all()
    if is_later:
        _QUEUE.run(connection, [(sid, *row) for row in rows])
    elif rows:
        connection.execute(
            DELETE_SQLITE, [removal_of(sid, position, body) for position, body in rows]
        )


def queue_index_removal(connection: Connection, rows: Sequence[tuple[int, int, str]]) -> None:
    """Queue the removal of erased messages from SQLite's index: session, position and body of each.

    No search uses the numbers of their sessions any more. Removing their words would block writers
    for long, so `remove_indexed` does it later.
    """
    positions = [position for _, position, _ in rows]
    are_chosen = word_index.c.rowid.in_(positions) & IS_IN_SQLITE
    indexed = set(connection.execute(select(word_index.c.rowid).where(are_chosen)).scalars())
    _QUEUE.run(connection, [row for row in rows if row[1] in indexed])


def note_merge(connection: Connection) -> None:
    """Record that words which left SQLite's index are still in the file."""
    marker = insert_for(connection)(index_removals).values(position=MERGE_DUE, sid=0, body="")
    connection.execute(marker.on_conflict_do_nothing())


async def remove_retracted(database: Database, aside: SetAside[int]) -> bool:
    """Remove a portion of the queued words of retracted messages; return whether there was one.

    Behind those of erased sessions, they leave with `remove_indexed`.
    """
    if not database.is_sqlite:
        return False
    queued = await database.snapshot(partial(_queued, after=MERGE_DUE, kept_each=None))
    gone = await asyncio.to_thread(_removals, queued, aside)
    return bool(gone) and await database.write(
        partial(_clear, gone=gone, are_due=index_removals.c.sid.in_(_kept_sids)),
        is_repeatable=True,
    )


async def remove_indexed(database: Database, aside: SetAside[int]) -> None:
    """Remove erased words from the index and the file, in short transactions.

    A message that cannot be read stays queued.
    """
    if not database.is_sqlite:
        return
    waiting = await database.snapshot(
        lambda connection: connection.execute(
            select(func.count(index_removals.c.position))
        ).scalar()
    )
    # A step of a merge ends when it has written some pages, however many it has read. So that there
    # is something to write among the words of a long session, each round but the last one keeps
    # the words of a few messages.
    kept_each = 1
    while waiting and waiting > kept_each * LAST_ROUND_MESSAGES:
        kept_each *= KEPT_EACH
        await _remove_all_but(database, kept_each, aside)
    if waiting:
        await _remove_all_but(database, None, aside)


async def _remove_all_but(database: Database, kept_each: int | None, aside: SetAside[int]) -> None:
    """Remove queued messages from the index and the file, except one of each `kept_each`."""
    after = MERGE_DUE
    while queued := await database.snapshot(partial(_queued, after=after, kept_each=kept_each)):
        gone = await asyncio.to_thread(_removals, queued, aside)
        if gone:
            await database.write(partial(_clear, gone=gone), is_repeatable=True)
        after = queued[-1].position
    # A word goes from the file when the part of the index that names it is written anew.
    pages = MERGED_PAGES if kept_each is None else PAGES_BETWEEN_KEPT
    merge = partial(_merged, pages=-pages)
    while await database.write(merge, is_repeatable=True):
        merge = partial(_merged, pages=pages)
    # After the merge: if the worker is killed before, the mark has the merge done again.
    if kept_each is None:
        are_marks = index_removals.c.body == ""
        await database.write(
            lambda connection: connection.execute(delete(index_removals).where(are_marks)),
            is_repeatable=True,
        )


def _removals(queued: Sequence[UnindexedMessage], aside: SetAside[int]) -> list[dict[str, Any]]:
    removals: list[dict[str, Any]] = []
    for row in queued:
        try:
            removals.append(removal_of(*row))
        except Exception as error:  # noqa: BLE001  # of any kind; `add` logs it
            aside.add(row.sid, error)
    return removals


def _queued(connection: Connection, *, after: int, kept_each: int | None) -> list[UnindexedMessage]:
    """Return queued messages after a position, fewer if they are long."""
    position, body = index_removals.c.position, index_removals.c.body
    # Empty in rows of workers before revision 1013, which only say that a merge is due.
    are_chosen = (position > after) & (body != "")
    if kept_each is not None:
        are_chosen &= (position // MESSAGES_PER_EVENT + position) % kept_each != 0
    sizes = select(position, func.length(body)).where(are_chosen)
    characters, last = 0, after
    for at, size in connection.execute(sizes.order_by(position).limit(MESSAGES_AT_ONCE)):
        characters += size
        if last > after and characters > CHARACTERS_AT_ONCE:
            break
        last = at
    queued = select(index_removals.c.sid, position, body).where(are_chosen, position <= last)
    return [UnindexedMessage(*row) for row in connection.execute(queued.order_by(position))]


def _clear(
    connection: Connection,
    *,
    gone: Sequence[dict[str, Any]],
    are_due: ColumnElement[bool] | None = None,
) -> bool:
    """Remove some queued words; the rest stays queued. Return whether any were removed.

    Without `are_due`, they are words of erased sessions, which have to leave the file as well.
    """
    are_gone = index_removals.c.position.in_([row["position"] for row in gone])
    due = are_gone if are_due is None else are_gone & are_due
    # Meanwhile, messages may have come back, whose words are removed already.
    removed = connection.execute(
        delete(index_removals).where(due).returning(index_removals.c.position)
    )
    positions = set(removed.scalars())
    if rows := [row for row in gone if row["position"] in positions]:
        connection.execute(DELETE_SQLITE, rows)
    if are_due is None:
        note_merge(connection)
    return bool(rows)


def _merged(connection: Connection, *, pages: int) -> bool:
    """Merge pages of the index; return whether more remain (a negative number begins a merge)."""
    before = connection.execute(text("SELECT total_changes()")).scalar_one()
    connection.execute(
        text("INSERT INTO word_index (word_index, rank) VALUES ('merge', :pages)"), {"pages": pages}
    )
    # FTS5 documents this test: a merge with nothing left to do changes fewer than two rows.
    return int(connection.execute(text("SELECT total_changes()")).scalar_one()) - int(before) >= 2
