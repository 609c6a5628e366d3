"""Write segments of PostgreSQL's word index: add, merge, and remove messages from them.

A merge reads and packs outside of its transaction, which then replaces the segments if nothing has
changed them meanwhile.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, select, text, update

from turnfold.core.text.word_segments import (
    due_merge,
    merge_segments,
    pack_segment,
    postings_of,
    read_header,
)
from turnfold.store.database.engine import Database
from turnfold.store.database.predicates import is_kept
from turnfold.store.database.schema import sessions, word_index_segments
from turnfold.store.database.statements import BulkInsert, PreparedIn
from turnfold.store.database.word_segments import (
    StoredSegment,
    is_header,
    late_segments,
    packed_ordinals,
    removed_ordinals,
)

_INSERT = BulkInsert(
    word_index_segments,
    ("sid", "segment", "number", "messages", "last_position", "data"),
)
TERMS_VERSION = 2
"""The version of the terms in the index: SQLite keeps it as the `user_version` of its file.

PostgreSQL's sequence is named after it, so that no earlier worker can add terms of its own.
"""
_NUMBERS = f"word_index_segment_ids_{TERMS_VERSION}"
_NEXT = text(f"SELECT nextval('{_NUMBERS}') FROM generate_series(1, :many)")  # noqa: S608
_SIZES = PreparedIn(
    select(word_index_segments.c.sid, word_index_segments.c.segment, word_index_segments.c.messages)
    .where(is_header)
    .order_by(word_index_segments.c.segment),
    word_index_segments.c.sid,
)


class Merge(NamedTuple):
    """Segments that are due to be merged: their marks of removed messages, and their pieces."""

    removed: Mapping[int, bytes | None]
    pieces: Sequence[Sequence[bytes]]


def insert_segments(
    connection: Connection, messages: Mapping[int, Mapping[int, Iterable[str]]]
) -> None:
    """Add one segment per session, from the terms of messages by session and position."""
    filled = {sid: terms for sid, terms in messages.items() if terms}
    numbers = connection.execute(_NEXT, {"many": len(filled)}).scalars() if filled else ()
    rows: list[tuple[Any, ...]] = []
    for segment, (sid, terms) in zip(numbers, filled.items(), strict=True):
        positions = sorted(terms)
        pieces = pack_segment(positions, postings_of(terms[at] for at in positions))
        rows += _rows(sid, segment, pieces)
    _INSERT.run(connection, rows)


def _rows(sid: int, segment: int, pieces: Sequence[bytes]) -> list[tuple[Any, ...]]:
    positions = read_header(pieces[0]).positions
    return [
        (sid, segment, 0, len(positions), positions[-1], pieces[0]),
        *((sid, segment, number, None, None, data) for number, data in enumerate(pieces[1:], 1)),
    ]


def sessions_to_merge(connection: Connection, sids: Collection[int]) -> list[int]:
    """Return those of these sessions that have segments to merge."""
    sizes: dict[int, dict[int, int]] = {}
    for sid, segment, messages in _SIZES.rows(connection, list(sids)):
        sizes.setdefault(sid, {})[segment] = messages
    return [sid for sid, of_session in sizes.items() if due_merge(of_session)]


async def merge_session(database: Database, sid: int) -> None:
    """Merge segments of a session until none are due, or another worker changes them."""
    while merge := await database.snapshot(lambda connection: _due(connection, sid)):
        removed = [removed_ordinals(packed) for packed in merge.removed.values()]
        pieces = await asyncio.to_thread(merge_segments, merge.pieces, removed)
        replace = partial(_replace, sid=sid, merge=merge, pieces=pieces)
        if not await database.write(replace):
            return


def _due(connection: Connection, sid: int) -> Merge | None:
    sizes = {segment: messages for _, segment, messages in _SIZES.rows(connection, [sid])}
    due = due_merge(sizes)
    if not due:
        return None
    rows = connection.execute(
        select(
            word_index_segments.c.segment,
            word_index_segments.c.removed,
            word_index_segments.c.data,
        )
        .where(word_index_segments.c.sid == sid, word_index_segments.c.segment.in_(due))
        .order_by(word_index_segments.c.number)
    ).all()
    pieces: dict[int, list[bytes]] = {segment: [] for segment in due}
    removed: dict[int, bytes | None] = {}
    for segment, marks, data in rows:
        removed.setdefault(segment, marks)
        pieces[segment].append(data)
    return Merge({segment: removed[segment] for segment in due}, list(pieces.values()))


def _replace(connection: Connection, *, sid: int, merge: Merge, pieces: Sequence[bytes]) -> bool:
    """Replace segments by the merged one; return whether they were still as they were read."""
    # Before the segments, as an erasure does: it deletes the session and then its rows.
    wanted = select(sessions.c.sid).where(sessions.c.sid == sid, is_kept)
    if connection.execute(wanted.with_for_update(key_share=True)).first() is None:
        return False
    of_merge = (word_index_segments.c.sid == sid) & word_index_segments.c.segment.in_(merge.removed)
    now = select(word_index_segments.c.segment, word_index_segments.c.removed)
    marks = connection.execute(now.where(of_merge, is_header)).all()
    # A message that was removed meanwhile is not marked in the merged segment.
    if {row.segment: row.removed for row in marks} != merge.removed:
        return False
    connection.execute(delete(word_index_segments).where(of_merge))
    if pieces:
        (segment,) = connection.execute(_NEXT, {"many": 1}).scalars()
        _INSERT.run(connection, _rows(sid, segment, pieces))
    return True


def remove_from_segments(connection: Connection, sid: int, positions: Collection[int]) -> None:
    """Remove messages of a session. The caller has locked the session."""
    gone = frozenset(positions)
    for stored in late_segments(connection, [(sid, min(gone))]).get(sid, ()) if gone else ():
        _remove(connection, sid, stored, gone.intersection(stored.present()))


def _remove(connection: Connection, sid: int, stored: StoredSegment, gone: Collection[int]) -> None:
    """Mark messages of a segment as removed, and delete a segment without any other."""
    if not gone:
        return
    removed = stored.removed.union(
        place for place, at in enumerate(stored.header.positions) if at in gone
    )
    of_segment = (word_index_segments.c.sid == sid) & (
        word_index_segments.c.segment == stored.segment
    )
    if len(removed) == len(stored.header.positions):
        connection.execute(delete(word_index_segments).where(of_segment))
        return
    connection.execute(
        update(word_index_segments)
        .where(of_segment, is_header)
        .values(removed=packed_ordinals(removed))
    )
