"""Read the segments of PostgreSQL's word index: which a session has, and what they hold of terms.

See `turnfold.core.text.word_segments` for their form.
"""

import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Integer,
    bindparam,
    case,
    func,
    literal_column,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY

from turnfold.cache import LRUCache
from turnfold.core.text.search import Term
from turnfold.core.text.word_segments import PostingList, SegmentHeader, posting_lists, read_header
from turnfold.messages import MOST_INT64
from turnfold.store.database.inline_reader import RawConnection, WouldBlock
from turnfold.store.database.schema import word_index_segments
from turnfold.store.database.statements import PAIRS, Prepared, PreparedPairs, SupportsStatements

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


Headers = LRUCache[int, dict[int, SegmentHeader]]
"""Headers of segments by session. They never change, and their numbers are never reused."""
Pieces = LRUCache[tuple[int, int, int], bytes]
"""Other pieces of segments by session, segment and number."""
PIECE_BYTES = 200
"""About how many bytes a cached piece takes besides its own."""


class SegmentCaches(NamedTuple):
    """Caches of segments in a query server: they hold texts, which an erasure removes."""

    headers: Headers
    pieces: Pieces


_of_session = word_index_segments.c.sid == bindparam("of_sid", type_=BigInteger)
is_header = word_index_segments.c.number == literal_column("0")
"""The row is the header of a segment."""
LISTED = (
    word_index_segments.c.segment,
    word_index_segments.c.removed,
    # Mostly only the newest segment is not known, which each turn adds.
    case(
        (
            word_index_segments.c.segment > bindparam("known", type_=BigInteger),
            word_index_segments.c.data,
        )
    ),
)
is_listed = _of_session & is_header
_LISTED = Prepared(
    select(*LISTED).where(is_listed).order_by(word_index_segments.c.segment), ("of_sid", "known")
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
        word_index_segments.c.sid == PAIRS.c.a,
        is_header,
        word_index_segments.c.last_position >= PAIRS.c.b,
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


def newest_known(headers: Headers, sid: int) -> int:
    """Return the highest number of a segment whose header is cached."""
    return max(headers.get(sid) or {}, default=-1)


def read_index(
    connection: SupportsStatements,
    sid: int,
    headers: Headers | None = None,
    listed: Sequence[Sequence[Any]] | None = None,
) -> list[StoredSegment]:
    """Read the segments of a session, those with cached headers without their headers.

    `listed` are their rows of `LISTED`, if they were read already.
    """
    known = (headers.pop(sid) if headers else None) or {}
    if listed is None:
        listed = _LISTED.rows(connection, sid, max(known, default=-1))
    numbers = [row[0] for row in listed]
    known |= {segment: read_header(data) for segment, _, data in listed if data is not None}
    # A segment may be stored after one with a higher number.
    missing = [(segment, 0) for segment in numbers if segment not in known]
    for (segment, _), data in read_pieces(connection, sid, missing).items():
        known[segment] = read_header(data)
    # Forgets the headers of segments that are gone: merged, or without messages.
    known = {segment: known[segment] for segment in numbers if segment in known}
    if headers:
        headers.put(sid, known, sum(map(_weight, known.values())))
    return [
        StoredSegment(segment, known[segment], removed_ordinals(removed))
        for segment, removed, _ in listed
        if segment in known
    ]


def _weight(header: SegmentHeader) -> int:
    return 8 * len(header.positions) + len(header.block) + 60 * len(header.first_terms) + 200


def late_segments(
    connection: SupportsStatements, firsts: Sequence[tuple[int, int]]
) -> Mapping[int, Sequence[StoredSegment]]:
    """Return the segments that have messages from a position on, for pairs of session and that."""
    late: dict[int, list[StoredSegment]] = {}
    for sid, segment, removed, data in _LATE.rows(connection, firsts):
        stored = StoredSegment(segment, read_header(data), removed_ordinals(removed))
        late.setdefault(sid, []).append(stored)
    return late


def read_pieces(
    connection: SupportsStatements,
    sid: int,
    wanted: Collection[tuple[int, int]],
    kept: Pieces | None = None,
) -> Mapping[tuple[int, int], bytes]:
    """Return pieces by segment and number.

    Raises:
        WouldBlock: a segment was merged after the statement that listed it, in no transaction.
    """
    known = {at: data for at in wanted if (data := kept.get((sid, *at)))} if kept else {}
    missing = [at for at in wanted if at not in known]
    if not missing:
        return known
    segments, numbers = zip(*missing, strict=True)
    rows = _PIECES.rows(connection, list(segments), list(numbers), sid)
    if len(rows) < len(missing) and isinstance(connection, RawConnection):
        raise WouldBlock
    for segment, number, data in rows:
        known[segment, number] = data
        if kept:
            kept.put((sid, segment, number), data, len(data) + PIECE_BYTES)
    return known


def find_terms(
    connection: SupportsStatements,
    sid: int,
    segments: Sequence[StoredSegment],
    terms: Collection[Term],
    *,
    until: int = MOST_INT64,
    newest: int = MOST_INT64,
    kept: Pieces | None = None,
) -> Mapping[Term, set[int]]:
    """Return positions before `until` of each term, so many of the newest ones at least."""
    positions: dict[Term, set[int]] = {term: set() for term in terms}
    for term, stored, postings in _postings(connection, sid, segments, terms, kept):
        ordinals = _before(stored, postings.ordinals(), until)
        positions[term].update(_positions(stored, ordinals)[-newest:])
    return positions


def rare_terms(  # those of `find_terms`, with another limit
    connection: SupportsStatements,
    sid: int,
    segments: Sequence[StoredSegment],
    terms: Collection[Term],
    *,
    until: int,
    most: int,
    kept: Pieces,
) -> Mapping[Term, list[int] | None]:
    """Return rising positions before `until` of each term, None if it surely has more than `most`.

    The places of a frequent word in a segment are counted without decoding them.
    """
    found: dict[Term, list[tuple[StoredSegment, PostingList]]] = {term: [] for term in terms}
    for term, stored, postings in _postings(connection, sid, segments, terms, kept):
        found[term].append((stored, postings))
    return {term: _rare(of_term, until, most) for term, of_term in found.items()}


def _rare(
    found: Sequence[tuple[StoredSegment, PostingList]], until: int, most: int
) -> list[int] | None:
    counts: Counter[bytes] = Counter()
    for stored, postings in found:
        # The stored count includes removed and later messages, which must not count here.
        if not stored.removed and stored.header.positions[-1] < until:
            counts[postings.term] += postings.messages
    # A message counts once for each word, but may have several that begin alike.
    if max(counts.values(), default=0) > most:
        return None
    positions: list[int] = []
    for stored, postings in found:
        positions += _positions(stored, _before(stored, postings.ordinals(), until))
    # The positions in a segment rise, so sorting takes less time than a set of them.
    positions.sort()
    has_one_each = len({stored.segment for stored, _ in found}) == len(found)
    return positions if has_one_each else list(dict.fromkeys(positions))


def _postings(
    connection: SupportsStatements,
    sid: int,
    segments: Sequence[StoredSegment],
    terms: Collection[Term],
    kept: Pieces | None,
) -> Iterator[tuple[Term, StoredSegment, PostingList]]:
    """Yield what the segments hold of terms."""
    keys = {term: term.text.encode() for term in terms}
    places = [
        (term, number, piece)
        for term, key in keys.items()
        for number, stored in enumerate(segments)
        for piece in stored.header.pieces_of(key, is_prefix=term.is_prefix)
    ]
    # Piece 0 is the header, which is here already, with the only block of a small segment.
    wanted = {(segments[number].segment, piece) for _, number, piece in places if piece}
    pieces = read_pieces(connection, sid, wanted, kept)
    for term, number, piece in places:
        stored = segments[number]
        block = pieces.get((stored.segment, piece), b"") if piece else stored.header.block
        size = len(stored.header.positions)
        for postings in posting_lists(block, size, keys[term], is_prefix=term.is_prefix):
            yield term, stored, postings


def _before(stored: StoredSegment, ordinals: Sequence[int], until: int) -> Sequence[int]:
    """Return the ordinals of the messages before a position."""
    positions = stored.header.positions
    if positions[-1] < until:
        return ordinals
    # The ordinals of messages rise with their positions.
    return ordinals[: bisect_left(ordinals, bisect_left(positions, until))]


def _positions(stored: StoredSegment, ordinals: Sequence[int]) -> list[int]:
    """Return the positions of the messages with these ordinals, without removed ones."""
    positions, removed = stored.header.positions, stored.removed
    if removed:
        return [positions[ordinal] for ordinal in ordinals if ordinal not in removed]
    return [positions[ordinal] for ordinal in ordinals]
