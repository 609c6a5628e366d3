"""Score the messages near the promising ones of a session, many at once.

Scores are digits of one integer, so that a lookup is added to all of them in a few steps, however
many it matches.
"""

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain, compress, starmap
from typing import Final

DECAY: Final = (1.0, 0.5, 0.4, 0.3, 0.2, 0.1)
"""The weight of a match for a message, by its distance in messages."""
REACH: Final = len(DECAY) - 1
OWN_WORD, OWN_WORD_OF_SPEAKER = 0.9, 0.5
"""The additional weight of a match in the message itself: usually; if a speaker is named.

In a talk between people, another person's question often has the words that an answer lacks.
"""
STRETCH: Final = REACH + 1
"""The number of adjacent messages that are judged together before single ones are."""

Digits = bytes | bytearray
"""One byte per message: 1 if a lookup matches it, otherwise 0."""

_STEP: Final = 0.1
"""The unit of scores: the weights of neighboring distances differ by it."""
_UNITS: Final = 2**18
"""A step of a lookup with a rarity of one, as a whole number."""
_SCORE_BYTES: Final = 4


class Region:
    """The messages that are scored: those of the `near` stretches and of adjacent ones.

    Among the first `number` messages of a session, only matches in near stretches count. A match
    has no effect beyond the adjacent stretches, so that runs which are joined in the integer do not
    affect each other. Mutable: each lookup changes the scores.
    """

    def __init__(self, near: Iterable[int], number: int, *, names_speaker: bool = False) -> None:
        # Whether each stretch is scored. The first mark stands before the first stretch.
        stretches = -(-number // STRETCH)
        marks, joined = bytearray(stretches + 2), bytearray(stretches + 2)
        for stretch in near:
            marks[stretch + 1] = 1
            joined[stretch : stretch + 3] = b"\1\1\1"
        self._joined_rows = _rows(joined[1:-1], number)
        self._near_rows = _rows(marks[1:-1], number)
        self.size = sum([end - start for start, end in self._joined_rows])
        self._wide = bytearray(_SCORE_BYTES * self.size)
        self._total = 0
        own = OWN_WORD_OF_SPEAKER if names_speaker else OWN_WORD
        self._own_steps = round((DECAY[0] + own - DECAY[1]) / _STEP)

    def near(self) -> Iterator[tuple[slice, range]]:
        """Yield the ordinals of each row of near messages, and their indexes among the scored."""
        rows = iter(self._joined_rows)
        first = end = index = 0
        for start, stop in self._near_rows:
            # Each near row lies in a joined one.
            while stop > end:
                index += end - first
                first, end = next(rows)
            at = index + start - first
            yield slice(start, stop), range(at, at + stop - start)

    def joined(self, digits: Digits) -> Digits:
        """Return the digits of the messages that are scored, of those of all messages."""
        return b"".join([digits[start:end] for start, end in self._joined_rows])

    def near_digits(self) -> Digits:
        """Return the digits of the near messages, of those that are scored."""
        digits = bytearray(self.size)
        for _, indexes in self.near():
            digits[indexes.start : indexes.stop] = b"\1" * len(indexes)
        return digits

    def add(self, rarity: float, matches: int) -> None:
        """Add a lookup whose matches are the bytes of an integer, in near stretches only.

        A message near several matches is scored by the nearest: five steps beside a match, one step
        less with each message between, and one step at a distance of five.
        """
        # A byte holds at most 19 steps, so no sum of them carries into the next message.
        within, steps = matches, self._own_steps * matches
        for _ in range(REACH):
            within |= within << 8 | within >> 8
            steps += within
        # Shifting moves bits up to REACH bytes past the last message. These bytes are cut off.
        self._wide[::_SCORE_BYTES] = steps.to_bytes(self.size + REACH, "little")[: self.size]
        # At most 24 lookups of 19 steps, each of a rarity below 35: a score fits in four bytes.
        self._total += int.from_bytes(self._wide, "little") * round(rarity * _UNITS)

    def scores(self) -> defaultdict[int, float]:
        """Return the score of each message, by its ordinal."""
        packed = struct.unpack(
            f"<{self.size}I", self._total.to_bytes(_SCORE_BYTES * self.size, "little")
        )
        unit = _STEP / _UNITS
        ordinals = compress(chain.from_iterable(starmap(range, self._joined_rows)), packed)
        scores = [unit * score for score in packed if score]
        return defaultdict(float, zip(ordinals, scores, strict=True))


def _rows(marks: bytearray, number: int) -> list[tuple[int, int]]:
    """Return the first ordinals of rows of marked stretches, and the ones after them."""
    rows, end = [], 0
    while (start := marks.find(1, end)) >= 0:
        end = marks.find(0, start)
        end = len(marks) if end < 0 else end
        rows.append((start * STRETCH, min(number, end * STRETCH)))
    return rows
