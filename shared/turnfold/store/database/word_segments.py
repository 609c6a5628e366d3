"""Read the segments of PostgreSQL's word index: which a session has, and what they hold of terms.

See `turnfold.core.text.word_segments` for their form.
"""

import struct
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    bindparam,
    exists,
    func,
    literal_column,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY

from turnfold.cache import LRUCache
from turnfold.core.text.search import Term
from turnfold.core.text.word_segments import SegmentHeader, TermBlock, read_block, read_header
from turnfold.store.database.schema import word_index, word_index_segments
from turnfold.store.database.statements import Prepared, PreparedPairs

REMOVED_BYTES = 2


class StoredSegment(NamedTuple):
    """A segment of a session: its number, its header, and the ordinals of removed messages."""

    segment: int
    header: SegmentHeader
    removed: frozenset[int]

    def present(self) -> Iterable[int]:
        """Return the positions of the messages that are in the index."""
        if not self.removed:
            return self.header.positions
        return [at for place, at in enumerate(self.header.positions) if place not in self.removed]


class SessionIndex(NamedTuple):
    """The segments of a session, and whether `word_index` has rows of it as well."""

    segments: Sequence[StoredSegment]
    has_rows: bool


Headers = LRUCache[int, dict[int, SegmentHeader]]
"""Headers of segments by session. They never change, and their numbers are never reused."""

_of_session = word_index_segments.c.sid == bindparam("of_sid", type_=BigInteger)
_is_header = word_index_segments.c.number == literal_column("0")
_session = select(bindparam("of_sid", type_=BigInteger).label("sid")).subquery("session")
_LISTED = Prepared(
    select(
        word_index_segments.c.segment,
        word_index_segments.c.removed,
        exists().where(word_index.c.sid == _session.c.sid),
    )
    .select_from(
        _session.outerjoin(
            word_index_segments, (word_index_segments.c.sid == _session.c.sid) & _is_header
        )
    )
    .order_by(word_index_segments.c.segment),
    ("of_sid",),
)
_pieces = func.unnest(
    bindparam("segments", type_=ARRAY(BigInteger)), bindparam("numbers", type_=ARRAY(Integer))
).table_valued("segment", "number", name="pieces")
_pieces = _pieces.render_derived()
# OFFSET keeps it one lookup per piece: the planner would read a table for a list of hundreds.
_piece = (
    select(word_index_segments.c.data)
    .where(
        _of_session,
        word_index_segments.c.number == _pieces.c.number,
        word_index_segments.c.segment == _pieces.c.segment,
    )
    .offset(literal_column("0"))
    .lateral("piece")
)
_PIECES = Prepared(
    select(_pieces.c.segment, _pieces.c.number, _piece.c.data).select_from(
        _pieces.join(_piece, true())
    ),
    ("segments", "numbers", "of_sid"),
)
_LATE = PreparedPairs(
    select(
        word_index_segments.c.sid,
        word_index_segments.c.segment,
        word_index_segments.c.removed,
        word_index_segments.c.data,
    ).where(
        word_index_segments.c.sid == PreparedPairs.pairs.c.a,
        _is_header,
        word_index_segments.c.last_position >= PreparedPairs.pairs.c.b,
    ),
    (BigInteger(), BigInteger()),
)


def removed_ordinals(packed: bytes | None) -> frozenset[int]:
    """Decode the ordinals of removed messages."""
    if not packed:
        return frozenset()
    return frozenset(struct.unpack(f"<{len(packed) // REMOVED_BYTES}H", packed))


def packed_ordinals(ordinals: Collection[int]) -> bytes:
    """Encode the ordinals of removed messages."""
    return struct.pack(f"<{len(ordinals)}H", *sorted(ordinals))


def read_index(connection: Connection, sid: int, headers: Headers | None = None) -> SessionIndex:
    """Read the segments of a session, those with cached headers without their headers."""
    listed = _LISTED.rows(connection, sid)
    numbers = [segment for segment, _, _ in listed if segment is not None]
    known = (headers.pop(sid) if headers else None) or {}
    missing = [segment for segment in numbers if segment not in known]
    if missing:
        pieces = _PIECES.rows(connection, missing, [0] * len(missing), sid)
        known |= {segment: read_header(data) for segment, _, data in pieces}
    known = {segment: known[segment] for segment in numbers if segment in known}
    if headers:
        headers.put(sid, known, sum(map(_weight, known.values())))
    return SessionIndex(
        [
            StoredSegment(segment, known[segment], removed_ordinals(removed))
            for segment, removed, _ in listed
            if segment in known
        ],
        bool(listed[0][2]),
    )


def _weight(header: SegmentHeader) -> int:
    return 8 * len(header.positions) + len(header.block) + 60 * len(header.first_terms) + 200


def late_segments(
    connection: Connection, firsts: Sequence[tuple[int, int]]
) -> Mapping[int, Sequence[StoredSegment]]:
    """Return the segments that have messages from a position on, for pairs of session and that."""
    late: dict[int, list[StoredSegment]] = {}
    for sid, segment, removed, data in _LATE.rows(connection, firsts):
        stored = StoredSegment(segment, read_header(data), removed_ordinals(removed))
        late.setdefault(sid, []).append(stored)
    return late


def read_pieces(
    connection: Connection, sid: int, wanted: Collection[tuple[int, int]]
) -> Mapping[tuple[int, int], bytes]:
    """Return pieces by segment and number."""
    if not wanted:
        return {}
    segments, numbers = zip(*wanted, strict=True)
    rows = _PIECES.rows(connection, list(segments), list(numbers), sid)
    return {(segment, number): data for segment, number, data in rows}


def find_terms(
    connection: Connection,
    sid: int,
    segments: Sequence[StoredSegment],
    terms: Collection[Term],
    *,
    until: int | None = None,
    newest: int | None = None,
) -> Mapping[Term, set[int]]:
    """Return the positions of the messages with each term, before `until`.

    With `newest`, positions may be left out that are not among so many newest ones of their term.
    """
    keys = {term: term.text.encode() for term in terms}
    places = _places_of(keys, segments)
    wanted = {(segments[number].segment, piece) for _, number, piece in places if piece}
    pieces = read_pieces(connection, sid, wanted)
    blocks: dict[tuple[int, int], TermBlock] = {}
    positions: dict[Term, set[int]] = {term: set() for term in terms}
    for term, number, piece in places:
        segment, header, removed = segments[number]
        block = blocks.get((number, piece))
        if block is None:
            data = pieces.get((segment, piece), b"") if piece else header.block
            block = blocks[number, piece] = read_block(data, len(header.positions))
        # The ordinals of a message rise with its position, so that those before `until` come first.
        limit = len(header.positions) if until is None else bisect_left(header.positions, until)
        for found in block.find(keys[term], is_prefix=term.is_prefix):
            ordinals = (
                [ordinal for ordinal in found if ordinal not in removed] if removed else found
            )
            ordinals = ordinals[: bisect_left(ordinals, limit)][-newest if newest else 0 :]
            positions[term].update([header.positions[ordinal] for ordinal in ordinals])
    return positions


def _places_of(
    keys: Mapping[Term, bytes], segments: Sequence[StoredSegment]
) -> list[tuple[Term, int, int]]:
    """Return the pieces that may contain each term, with the place of their segment."""
    return [
        (term, number, piece)
        for term, key in keys.items()
        for number, stored in enumerate(segments)
        for piece in stored.header.pieces_of(key, is_prefix=term.is_prefix)
    ]
