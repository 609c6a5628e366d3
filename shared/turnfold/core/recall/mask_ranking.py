"""Score the messages of a short session for a question, many at once.

The matches of a lookup are the bits of one integer, and what lookups count for messages are digits
of another one: a lookup is added to all of them in a few steps, however many messages it matches.
The weights, and which messages are scored, are those of `turnfold.core.recall.ranking`.
"""

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import Final

from turnfold.core.recall.ranking import (
    AROUND,
    DECAY,
    LEAST_PROMISING,
    LEAST_RARITY,
    OWN_WORD,
    REACH,
    STRETCH,
    TOKENS_A_PROMISING,
    length_factor,
    rarity_of,
)

MOST_MASKED: Final = 5_000
"""The messages of the longest session that is scored so."""
RELATED: Final = 0.5
"""The weight of a word that several of the best messages share and the question lacks."""
MOST_RELATED: Final = 0.1
MOST_PLACES_OF_RELATED: Final = 100
"""Such a word is ignored if more than this share of the session's messages hold it, or so many."""

Mask = int
"""The messages that a lookup matches: the bit of each one's ordinal is set."""
Digits = bytes
"""The same with a byte of 0 or 1 for each message."""

_SET: Final = ord("1")
_BITS: Final = bytes.maketrans(b"01", b"\0\1")
_MOST_DIGIT: Final = 255
_STEP: Final = 0.1
"""Scores count in steps, because the weights of neighbors differ by so much."""
_OWN: Final = round((DECAY[0] + OWN_WORD - DECAY[1]) / _STEP)
"""The steps of a match in the message itself, besides those of a match beside it."""
_UNITS: Final = 2**18
"""A step of a lookup with a rarity of one, as a whole number."""
_SCORE_BYTES: Final = 4


def mask_of(ordinals: Iterable[int], number: int) -> Mask:
    """Return the mask of these ordinals, all of them below `number`."""
    bits = bytearray(b"0" * number)
    for ordinal in ordinals:
        bits[-1 - ordinal] = _SET
    return int(bits, 2) if number else 0


def ordinals_in(mask: Mask) -> Iterator[int]:
    """Yield the ordinals whose bits are set, in order."""
    return (ordinal for ordinal, bit in enumerate(reversed(f"{mask:b}")) if bit == "1")


def score_masks(
    lookups: Sequence[Mask], tokens: Sequence[int], number: int, room: int
) -> defaultdict[int, float]:
    """Return what lookups count for the first `number` messages of a session, by ordinals.

    `tokens` are the sizes of the messages in order; messages of `room` tokens are wanted.
    """
    weighted = [(rarity_of(mask.bit_count(), number), mask) for mask in lookups if mask]
    least = LEAST_RARITY * max(weighted, default=(0.0, 0))[0]
    found = [(rarity, _digits(mask, number)) for rarity, mask in weighted if rarity >= least]
    most = max(LEAST_PROMISING, room // TOKENS_A_PROMISING)
    near = _promising_stretches(found, tokens, number, most) if found else []
    scored = _Region(near, number)
    total = 0
    for rarity, digits in found:
        total += scored.counted(digits) * round(rarity * _UNITS)
    scores = struct.unpack(f"<{scored.size}I", total.to_bytes(_SCORE_BYTES * scored.size, "little"))
    unit = _STEP / _UNITS
    return defaultdict(
        float,
        {
            ordinal: unit * score
            for ordinal, score in zip(scored.ordinals(), scores, strict=True)
            if score
        },
    )


def add_related(scores: defaultdict[int, float], lookups: Sequence[Mask], number: int) -> None:
    """Add lookups for words that the best messages share.

    Only messages with the word itself count. A word that many of the `number` messages hold says
    nothing, and one that no second message holds finds nothing.
    """
    most = MOST_RELATED * number
    for mask in lookups:
        holders = mask.bit_count()
        if 1 < holders <= most:
            weight = RELATED * rarity_of(holders, number)
            for ordinal in compress(range(number), _digits(mask, number)):
                scores[ordinal] += weight


def _digits(mask: Mask, number: int) -> Digits:
    return f"{mask:0{number}b}".encode().translate(_BITS)[::-1]


def _promising_stretches(
    found: Sequence[tuple[float, Digits]], tokens: Sequence[int], number: int, most: int
) -> list[int]:
    """Return the stretches of the `most` promising messages, in order.

    A message promises the rarities of its own matches, and a part of those in the stretches around.
    The rarities are rounded, so that the sum of all of them fits into the byte of a message.
    """
    whole = _MOST_DIGIT - len(found)
    unit = whole / sum([rarity for rarity, _ in found])
    sums = sum(
        [int.from_bytes(digits, "little") * round(rarity * unit) for rarity, digits in found]
    )
    own = sums.to_bytes(number, "little")
    matching = list(compress(range(number), own))
    if len(matching) <= most:
        return sorted({ordinal // STRETCH for ordinal in matching})
    stretches = [0, *[sum(own[at : at + STRETCH]) for at in range(0, number, STRETCH)], 0]
    around = [
        AROUND * (before + here + after)
        for before, here, after in zip(stretches, stretches[1:], stretches[2:], strict=False)
    ]
    promises = [
        (own[ordinal] + around[ordinal // STRETCH]) * length_factor(tokens[ordinal])
        for ordinal in matching
    ]
    least = sorted(promises)[-most]
    promising = zip(matching, promises, strict=True)
    return sorted({ordinal // STRETCH for ordinal, promise in promising if promise >= least})


class _Region:
    """The messages that are scored: those of the `near` stretches, and of the ones beside them.

    Matches count in the near stretches only. Mutable for speed alone.
    """

    def __init__(self, near: Sequence[int], number: int) -> None:
        self._number = number
        with_next = {stretch + beside for stretch in near for beside in (-1, 0, 1)}
        self._slices = list(_rows(sorted(with_next), number))
        self.size = sum([end - start for start, end in self._slices])
        digits = bytearray(number)
        for start, end in _rows(near, number):
            digits[start:end] = b"\1" * (end - start)
        self._near = int.from_bytes(self._joined(bytes(digits)), "little")
        self._wide = bytearray(_SCORE_BYTES * self.size)

    def ordinals(self) -> Iterator[int]:
        """Yield the ordinals of the messages."""
        for start, end in self._slices:
            yield from range(start, end)

    def counted(self, digits: Digits) -> int:
        """Return the steps that a lookup counts for each message, in digits of a score's size.

        A message that is near several matches counts for the nearest one: within each reach of a
        match it counts one step more, five beside a match and one five messages away.
        """
        within = int.from_bytes(self._joined(digits), "little") & self._near
        steps = _OWN * within
        for _ in range(REACH):
            within |= within << 8 | within >> 8
            steps += within
        self._wide[::_SCORE_BYTES] = steps.to_bytes(self.size + REACH, "little")[: self.size]
        return int.from_bytes(self._wide, "little")

    def _joined(self, digits: Digits) -> Digits:
        """Return the digits of the messages of this region.

        The effect of a match reaches no further than the stretches beside the near ones, so rows
        that are joined do not count for each other.
        """
        return b"".join([digits[start:end] for start, end in self._slices])


def _rows(stretches: Iterable[int], number: int) -> Iterator[tuple[int, int]]:
    """Yield the first ordinals of rows of stretches, and the ones after them."""
    first = last = -1
    for stretch in stretches:
        start, end = max(0, stretch * STRETCH), min(number, (stretch + 1) * STRETCH)
        if start >= end:
            continue
        if start != last:
            if first >= 0:
                yield first, last
            first = start
        last = end
    if first >= 0:
        yield first, last
