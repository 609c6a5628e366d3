"""Score the messages of a short session for a question, with matches as the bits of integers.

Weights and scored messages are the same as in `turnfold.core.recall.ranking`.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import Final

from turnfold.core.recall.ranking import (
    AROUND,
    LEAST_PROMISING,
    LEAST_RARITY,
    LENGTH_FACTORS,
    TOKENS_A_PROMISING,
    Speaker,
    rarity_of,
    times_speakers,
)
from turnfold.core.recall.region import STRETCH, Digits, Region

MOST_MASKED: Final = 5_000
"""The most messages of a session that is scored in this way."""
SIMILAR: Final = 0.5
"""The weight of a word that is similar to one of the question."""
WISH: Final = 1.3
"""The weight of a word by which a user wishes something of every answer."""
MOST_WISHES: Final = 30
"""Only so many of the newest wishes count: all of a long session would leave no room for others."""
RELATED: Final = 0.3
"""The weight of a word that several of the best messages share and the question lacks."""
MOST_ADDED: Final = 0.1
MOST_PLACES_OF_ADDED: Final = 100
"""Such words are ignored if more than this share, or this number, of messages contain them."""

Mask = int
"""The messages that a lookup matches: the bit of each one's ordinal is set."""

_SET: Final = ord("1")
_BITS: Final = bytes.maketrans(b"01", b"\0\1")
_MOST_DIGIT: Final = 255


def mask_of(ordinals: Iterable[int], number: int) -> Mask:
    """Return the mask of these ordinals, all of them below `number`."""
    # As digits, because each bit that is set in an integer copies the whole integer.
    bits = bytearray(b"0" * number)
    for ordinal in ordinals:
        bits[-1 - ordinal] = _SET
    return int(bits, 2) if number else 0


def ordinals_in(mask: Mask) -> Iterator[int]:
    """Yield the ordinals whose bits are set, in order, in time that grows with their number."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def newest_in(mask: Mask, most: int) -> Mask:
    """Return the mask of the newest messages in another one, at most this many."""
    # The higher the place, the fewer bits are set from there on: negated, the counts are sorted.
    passed = bisect_left(range(mask.bit_length()), -most, key=lambda at: -(mask >> at).bit_count())
    return mask >> passed << passed


def score_masks(
    lookups: Sequence[Mask],
    tokens: Sequence[int],
    number: int,
    room: int,
    speakers: Sequence[Speaker] = (),
) -> defaultdict[int, float]:
    """Return the scores that lookups give to the first `number` messages of a session, by ordinal.

    `tokens` are the sizes of the messages in order; messages of `room` tokens are wanted.
    `speakers` decide which messages are promising, and how much those around them count.
    """
    weighted = [(rarity_of(mask.bit_count(), number), mask) for mask in lookups if mask]
    least = LEAST_RARITY * max(weighted, default=(0.0, 0))[0]
    found = [(rarity, _digits(mask, number)) for rarity, mask in weighted if rarity >= least]
    most = max(LEAST_PROMISING, room // TOKENS_A_PROMISING)
    near = _promising_stretches(found, tokens, number, most, speakers) if found else []
    region = Region(near, number, names_speaker=bool(speakers))
    is_near = int.from_bytes(region.near_digits(), "little")
    for rarity, digits in found:
        region.add(rarity, int.from_bytes(region.joined(digits), "little") & is_near)
    return region.scores()


def add_words(
    scores: defaultdict[int, float], lookups: Sequence[Mask], number: int, weight: float
) -> None:
    """Add lookups for words that the question lacks, with a weight beside those of its own.

    Only messages with the word itself count. A word in many of the `number` messages is not
    selective.
    """
    most = MOST_ADDED * number
    for mask in lookups:
        holders = mask.bit_count()
        if 0 < holders <= most:
            added = weight * rarity_of(holders, number)
            for ordinal in ordinals_in(mask):
                scores[ordinal] += added


def add_wishes(
    scores: defaultdict[int, float], holders: Mask, is_own: Sequence[int], number: int
) -> None:
    """Add the words of wishes for every answer, in the newest messages that are not the agent's."""
    wishes = [ordinal for ordinal in ordinals_in(holders) if not is_own[ordinal]]
    add_words(scores, [mask_of(wishes[-MOST_WISHES:], number)], number, WISH)


def _digits(mask: Mask, number: int) -> Digits:
    # A byte for each message: adding two integers then adds the counts of all messages at once.
    # Reversed, because the binary form begins with the newest message.
    return f"{mask:0{number}b}".encode().translate(_BITS)[::-1]


def _promising_stretches(
    found: Sequence[tuple[float, Digits]],
    tokens: Sequence[int],
    number: int,
    most: int,
    speakers: Sequence[Speaker],
) -> list[int]:
    """Return the stretches of the `most` promising messages, in order.

    A message is promising by the rarities of its matches, and partly of those in adjacent
    stretches. The rarities are rounded, so that the sum of all of them fits into the byte of a
    message.
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
    # Selected by itself, `own` loses its zeros, and is parallel to `matching`.
    promises = [
        (rarity + around[ordinal // STRETCH]) * LENGTH_FACTORS[tokens[ordinal]]
        for ordinal, rarity in zip(matching, compress(own, own), strict=True)
    ]
    if speakers:
        promises = times_speakers(promises, matching, speakers, number)
    least = sorted(promises)[-most]
    promising = zip(matching, promises, strict=True)
    return sorted({ordinal // STRETCH for ordinal, promise in promising if promise >= least})
