"""Segments of a word index: the terms of several messages of a session, packed and immutable.

A segment consists of pieces of bytes. Piece 0 is its header: the positions of its messages, the
first term of each block, and the block itself if there is only one. Otherwise the pieces from 1 on
are its blocks, in the order of their terms. Messages are named by their ordinals in the segment.
"""

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Final, NamedTuple

BLOCK_BYTES: Final = 1_700
"""The size of a block, unless one term has more: PostgreSQL keeps such a row in one page."""
MOST_MESSAGES: Final = 16_384
"""The most messages of a merged segment. It bounds the time and the memory of a merge."""
MERGED_SEGMENTS: Final = 8
"""How many segments of about one size are merged into one."""

_CODES = "BHIQ"
_LIMITS = (1 << 8, 1 << 16, 1 << 32)
_HEADER = struct.Struct("<HQBI")
_BLOCK = struct.Struct("<HB")
# No term contains a line end: terms are words, or digests in hexadecimal digits.
_SEPARATOR = b"\n"

Postings = Mapping[bytes, Sequence[int]]
"""Terms, each with the rising ordinals of the messages that contain it."""


class SegmentHeader(NamedTuple):
    """A decoded header: positions by ordinal, the first term of each block, and the only block."""

    positions: Sequence[int]
    first_terms: Sequence[bytes]
    block: bytes

    def pieces_of(self, term: bytes, *, is_prefix: bool) -> range:
        """Return the numbers of the pieces that may contain a term, or terms that begin so."""
        if not self.first_terms:
            return range(1)
        # A prefix sorts before its own terms, and so may sort before the first term of block 1.
        first = max(1, bisect_right(self.first_terms, term))
        if not is_prefix:
            return range(first, first + 1)
        last = first
        while last < len(self.first_terms) and self.first_terms[last].startswith(term):
            last += 1
        return range(first, last + 1)


class TermBlock(NamedTuple):
    """A decoded block: its terms in order, where the ordinals of each end, and all ordinals."""

    terms: Sequence[bytes]
    ends: Sequence[int]
    ordinals: Sequence[int]


def postings_of(terms: Iterable[Iterable[str]]) -> Postings:
    """Return the postings of messages from the terms of each, in order."""
    postings: dict[bytes, list[int]] = {}
    for ordinal, of_message in enumerate(terms):
        for term in of_message:
            postings.setdefault(term.encode(), []).append(ordinal)
    return postings


def pack_segment(positions: Sequence[int], postings: Postings) -> list[bytes]:
    """Return the pieces of a segment of messages at these rising positions."""
    divided = list(_divided(postings, positions))
    blocks = [_packed_block(terms, postings, len(positions)) for terms in divided]
    firsts = [terms[0] for terms in divided] if len(blocks) > 1 else []
    directory = _SEPARATOR.join(firsts)
    steps = [after - before for before, after in pairwise(positions)]
    width = _width(max(steps, default=0))
    header = _HEADER.pack(len(positions) - 1, positions[0], width, len(directory))
    header += _numbers(steps, width) + directory
    return [header, *blocks] if firsts else [header + (blocks[0] if blocks else b"")]


def read_header(header: bytes) -> SegmentHeader:
    """Decode piece 0 of a segment."""
    more, first, width, size = _HEADER.unpack_from(header)
    start = _HEADER.size
    steps = struct.unpack_from(f"<{more}{_CODES[width]}", header, start)
    start += more << width
    directory = header[start : start + size]
    return SegmentHeader(
        array("q", accumulate(steps, initial=first)),
        directory.split(_SEPARATOR) if directory else (),
        header[start + size :],
    )


def read_block(block: bytes, messages: int) -> TermBlock:
    """Decode a block of a segment with this many messages."""
    if not block:
        return TermBlock((), (), ())
    size, width = _BLOCK.unpack_from(block)
    start = _BLOCK.size + size
    terms = block[_BLOCK.size : start].split(_SEPARATOR)
    ends = list(accumulate(struct.unpack_from(f"<{len(terms)}{_CODES[width]}", block, start)))
    start += len(terms) << width
    code = _CODES[_width(messages - 1)]
    return TermBlock(terms, ends, struct.unpack_from(f"<{ends[-1]}{code}", block, start))


class PostingList(NamedTuple):
    """The packed ordinals of the messages with a term, in a block from the byte `start` on."""

    term: bytes
    block: bytes
    start: int
    messages: int
    code: str

    def ordinals(self) -> Sequence[int]:
        """Return the rising ordinals."""
        return struct.unpack_from(f"<{self.messages}{self.code}", self.block, self.start)


def posting_lists(
    block: bytes, messages: int, term: bytes, *, is_prefix: bool
) -> Iterator[PostingList]:
    """Yield the places of a term's ordinals in a block, or of each term with this prefix.

    Nothing else is decoded: a block has a hundred terms, and a frequent one thousands of ordinals.
    """
    if not block:
        return
    size, width = _BLOCK.unpack_from(block)
    first = _BLOCK.size + size
    # With separators on both sides, a term is found from its beginning, never inside another one.
    terms = b"\n%b\n" % block[_BLOCK.size : first]
    at = terms.find(_SEPARATOR + term + (b"" if is_prefix else _SEPARATOR))
    if at < 0:
        return
    number, rest = terms.count(_SEPARATOR, 0, at), terms.count(_SEPARATOR, at) - 1
    counts: Sequence[int] = block[first : first + number + rest]
    if width:
        counts = struct.unpack_from(f"<{number + rest}{_CODES[width]}", block, first)
    of_ordinal = _width(messages - 1)
    start = first + (number + rest << width) + (sum(counts[:number]) << of_ordinal)
    # Terms are sorted, so those with the same prefix are adjacent.
    while terms.startswith(term, at + 1):
        end = terms.find(_SEPARATOR, at + 1)
        yield PostingList(terms[at + 1 : end], block, start, counts[number], _CODES[of_ordinal])
        if not is_prefix:
            return
        start += counts[number] << of_ordinal
        number += 1
        at = end


def blocks_of(pieces: Sequence[bytes]) -> Iterator[TermBlock]:
    """Decode all blocks of a segment."""
    header = read_header(pieces[0])
    for block in pieces[1:] if header.first_terms else (header.block,):
        yield read_block(block, len(header.positions))


def merge_segments(
    segments: Sequence[Sequence[bytes]], removed: Sequence[frozenset[int]]
) -> list[bytes]:
    """Return the pieces of one segment with the messages of several, without the removed ordinals.

    Return nothing if no message is left.
    """
    headers = [read_header(pieces[0]) for pieces in segments]
    places = sorted(
        (position, number, ordinal)
        for number, header in enumerate(headers)
        for ordinal, position in enumerate(header.positions)
        if ordinal not in removed[number]
    )
    if not places:
        return []
    now = [[-1] * len(header.positions) for header in headers]
    for after, (_, number, ordinal) in enumerate(places):
        now[number][ordinal] = after
    merged = _merged_postings(segments, now, is_whole=not any(removed))
    # Late messages belong between those of another segment.
    if any(before[1] > after[1] for before, after in pairwise(places)):
        merged = {term: array("H", sorted(ordinals)) for term, ordinals in merged.items()}
    return pack_segment([position for position, _, _ in places], merged)


def _merged_postings(
    segments: Sequence[Sequence[bytes]], now: Sequence[Sequence[int]], *, is_whole: bool
) -> dict[bytes, "array[int]"]:
    """Return the terms of segments; `now` has the new ordinal of each message, -1 if removed."""
    merged: dict[bytes, array[int]] = {}
    for pieces, moved in zip(segments, now, strict=True):
        for block in blocks_of(pieces):
            start = 0
            for term, end in zip(block.terms, block.ends, strict=True):
                ordinals = [moved[ordinal] for ordinal in block.ordinals[start:end]]
                # Two bytes per posting: a list of numbers takes twenty times as much.
                merged.setdefault(term, array("H")).extend(
                    ordinals if is_whole else [ordinal for ordinal in ordinals if ordinal >= 0]
                )
                start = end
    return {term: ordinals for term, ordinals in merged.items() if ordinals}


def due_merge(sizes: Mapping[int, int]) -> list[int]:
    """Return which segments to merge, by their numbers of messages; nothing if there are few.

    Segments of about one size are merged, so that each message is written again only when its
    segment grows `MERGED_SEGMENTS` times. A segment of more than half the most messages stays.
    """
    classes: dict[int, list[int]] = {}
    for segment, messages in sizes.items():
        if messages > MOST_MESSAGES // 2:
            continue
        rank, bound = 0, MERGED_SEGMENTS
        while messages >= bound:
            rank, bound = rank + 1, bound * MERGED_SEGMENTS
        classes.setdefault(rank, []).append(segment)
    for _, segments in sorted(classes.items()):
        if len(segments) >= MERGED_SEGMENTS:
            total = list(accumulate(sizes[segment] for segment in segments))
            # Two always fit: none of these has more than half of the most messages.
            return segments[: max(2, bisect_right(total, MOST_MESSAGES))]
    return []


def _divided(postings: Postings, positions: Sequence[int]) -> Iterator[list[bytes]]:
    """Yield the terms of each block."""
    bytes_each = 1 << _width(len(positions) - 1)
    terms: list[bytes] = []
    size = 0
    for term in sorted(postings):
        more = len(term) + 2 + bytes_each * len(postings[term])
        if terms and size + more > BLOCK_BYTES:
            yield terms
            terms, size = [], 0
        terms.append(term)
        size += more
    if terms:
        yield terms


def _packed_block(terms: Sequence[bytes], postings: Postings, messages: int) -> bytes:
    joined = _SEPARATOR.join(terms)
    counts = [len(postings[term]) for term in terms]
    width = _width(max(counts))
    ordinals = list(chain.from_iterable(postings[term] for term in terms))
    return b"".join(
        (
            _BLOCK.pack(len(joined), width),
            joined,
            _numbers(counts, width),
            _numbers(ordinals, _width(messages - 1)),
        )
    )


def _width(largest: int) -> int:
    """Return the power of two of the bytes that a number needs."""
    return sum(largest >= limit for limit in _LIMITS)


def _numbers(numbers: Sequence[int], width: int) -> bytes:
    return struct.pack(f"<{len(numbers)}{_CODES[width]}", *numbers)
