"""Rank the messages of a session for a question, from their places in the word index.

A lookup adds its rarity in the session to the score of a message, less for a match up to five
messages away: an answer is also found by the words of its question. Long messages count less.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import repeat
from math import log
from operator import itemgetter
from typing import Final, NamedTuple

from turnfold.core.recall.region import STRETCH, Region

SPEAKER: Final = 6.6
NEAR_SPEAKER: Final = 3.0
"""The factors for messages of a speaker whom the question names, and for others in their stretches.

Others count too, because in a long session most messages belong to talks with other people.
"""
TELLER: Final = 4.0
"""The factor for messages of the user if a question is about who asks it, or for messages of the
agent if it asks what the agent told."""
LEAST_TOKENS, MOST_TOKENS = 40, 4_096
LENGTH_POWER: Final = 0.7
"""A score is divided by this power of the tokens, between these two limits."""
LEAST_RARITY: Final = 0.1
"""A lookup is ignored if its rarity is below this share of the rarest one's."""
MOST_PLACES: Final = 1_000
"""A lookup that matches more messages is ignored, unless all lookups do."""
NEWEST_PLACES: Final = 200
"""If all lookups match more messages than that, this many of the newest count for each."""
MOST_RANKED: Final = 400
MOST_CANDIDATES: Final = 600
"""Once the rarest lookups match this many messages, others count only for these and near them."""
LEAST_PROMISING: Final = 40
TOKENS_A_PROMISING: Final = 50
"""Only the stretches of at least this many promising messages are scored, and of one per this many
tokens of room."""
JUDGED: Final = 5
"""This many times as many messages, those with the rarest matches, are judged, unless the question
names a speaker: matches around a message hardly make up for its own."""
SPARED: Final = 1.5
"""All are judged if a short one of the others may be so many times as promising as the last one
that is chosen: beside long results of tools that hold every word, say."""
AROUND: Final = 0.1
"""The weight of a match in the stretches around a place, beside one in the message itself."""
MOST_TOGETHER: Final = 150
"""Only among so many of the best messages does a stretch matter."""
TOGETHER: Final = tuple(1.15**better for better in range(STRETCH))
"""The factor for a message of a talk by the number of better ones in its stretch.

Beside a quoted one, it also needs no heading.
"""

Matches = Sequence[int]
"""The positions of the messages that a lookup matches, newest first."""


class _LengthFactors(dict[int, float]):
    """Factors by tokens; a dict, because that is read fastest for many messages."""

    def __init__(self) -> None:
        factors = [max(at, LEAST_TOKENS) ** -LENGTH_POWER for at in range(MOST_TOKENS + 1)]
        super().__init__(enumerate(factors))

    def __missing__(self, tokens: int) -> float:
        return self[MOST_TOKENS]


LENGTH_FACTORS: Final[Mapping[int, float]] = _LengthFactors()
"""The factor of the score of a message, by its tokens."""


class Speaker(NamedTuple):
    """The messages of a speaker by their ordinals, and the first one in each stretch. Mutable."""

    messages: set[int]
    firsts: dict[int, int]

    def add(self, ordinal: int) -> None:
        """Add a message, newer than all others."""
        self.messages.add(ordinal)
        self.firsts.setdefault(ordinal // STRETCH, ordinal)

    def speaks_before(self, end: int) -> bool:
        """Return whether any of the messages is before this ordinal."""
        return next(iter(self.firsts.values()), end) < end


def rarity_of(found: int, messages: int) -> float:
    """Return the inverse document frequency, as BM25 defines it."""
    return log(1 + (max(messages - found, 0) + 0.5) / (found + 0.5))


def ordinals_of(matches: Collection[int], positions: Sequence[int]) -> list[int]:
    """Return the ordinals of those messages of the session that have these positions."""
    places = map(bisect_left, repeat(positions), matches)
    number = len(positions)
    return [
        place
        for position, place in zip(matches, places, strict=True)
        if place < number and positions[place] == position
    ]


def score(
    lookups: Sequence[Matches],
    positions: Sequence[int],
    tokens: Sequence[int],
    room: int,
    speakers: Sequence[Speaker] = (),
) -> defaultdict[int, float]:
    """Return the score of each message, by its ordinal.

    `positions` and `tokens` are those of the session in order; a message that is never recalled has
    0 tokens. `room` is the number of tokens to fill with messages. `speakers` decide which messages
    are promising, and how much those around them count.
    """
    number = len(positions)
    weighted = [(rarity_of(len(matches), number), matches) for matches in lookups if matches]
    # The rarest first, because the promising messages are taken from their matches.
    weighted.sort(key=itemgetter(0), reverse=True)
    weighted = [found for found in weighted if found[0] >= LEAST_RARITY * weighted[0][0]]
    most = max(LEAST_PROMISING, room // TOKENS_A_PROMISING)
    promising = _promising_stretches(weighted, positions, tokens, most, speakers)
    region = Region(promising, number, names_speaker=bool(speakers))
    near: dict[int, int] = {}
    for ordinals, indexes in region.near():
        near.update(zip(positions[ordinals], indexes, strict=True))
    for rarity, matches in weighted:
        digits = bytearray(region.size)
        for position in near.keys() & matches:
            digits[near[position]] = 1
        region.add(rarity, int.from_bytes(digits, "little"))
    return region.scores()


def rank(
    scores: Mapping[int, float],
    tokens: Sequence[int],
    speakers: Sequence[Speaker],
    *,
    is_talk: bool = False,
) -> list[int]:
    """Return the ordinals of the best messages by score and length, the newest of equals first.

    In a talk, messages of one stretch raise each other: an answer often stands in several.
    """
    # In lists: a dictionary of values takes four times as long. Sorting is stable: of equal values
    # the newest stays first. A message that is never recalled has no tokens.
    ordinals = [ordinal for ordinal in sorted(scores, reverse=True) if tokens[ordinal]]
    values = [scores[ordinal] * LENGTH_FACTORS[tokens[ordinal]] for ordinal in ordinals]
    if speakers:
        values = times_speakers(values, ordinals, speakers, len(tokens))
    best = sorted(range(len(values)), key=values.__getitem__, reverse=True)[:MOST_RANKED]
    if is_talk:
        _raise_together(values, ordinals, best[:MOST_TOGETHER])
        best.sort(key=values.__getitem__, reverse=True)
    return [ordinals[place] for place in best]


def _raise_together(values: list[float], ordinals: Sequence[int], best: Iterable[int]) -> None:
    """Raise the values at the best places by the number of better ones in their stretches."""
    better: defaultdict[int, int] = defaultdict(int)
    for place in best:
        stretch = ordinals[place] // STRETCH
        values[place] *= TOGETHER[better[stretch]]
        better[stretch] += 1


def times_speakers(
    values: Iterable[float], ordinals: Sequence[int], speakers: Sequence[Speaker], number: int
) -> list[float]:
    """Return the values of messages with these ordinals, higher for those of speakers and nearby.

    Only the first `number` messages count: a block must not depend on what was said after them.
    """
    # Whole sets are compared: asking each speaker about each message takes five times as long.
    asked, stretches = set(ordinals), {ordinal // STRETCH for ordinal in ordinals}
    spoken, near = set[int](), set[int]()
    for speaker in speakers:
        spoken |= asked & speaker.messages
        near |= {at for at in stretches & speaker.firsts.keys() if speaker.firsts[at] < number}
    return [
        value
        * (SPEAKER if ordinal in spoken else NEAR_SPEAKER if ordinal // STRETCH in near else 1.0)
        for value, ordinal in zip(values, ordinals, strict=True)
    ]


def times_teller(
    scores: Mapping[int, float], is_own: Sequence[int], *, is_about_agent: bool
) -> Mapping[int, float]:
    """Return scores, higher for the messages of the agent, or for all others."""
    return {
        ordinal: TELLER * value if bool(is_own[ordinal]) is is_about_agent else value
        for ordinal, value in scores.items()
    }


def _promising_stretches(
    weighted: Sequence[tuple[float, Matches]],
    positions: Sequence[int],
    tokens: Sequence[int],
    most: int,
    speakers: Sequence[Speaker],
) -> set[int]:
    """Return the stretches of the `most` promising messages; lookups are given rarest first.

    A message is promising by the rarities of its matches, and partly of those in adjacent
    stretches.
    """
    own: defaultdict[int, float] = defaultdict(float)
    for rarity, matches in weighted:
        # A frequent word has many matches: adding each of them would cost most of the time.
        is_enough = len(own) >= MOST_CANDIDATES
        for position in own.keys() & matches if is_enough else matches:
            own[position] += rarity
    if speakers or len(own) <= JUDGED * most:
        ordinals = ordinals_of(own, positions)
        promises = _promises(ordinals, own, positions, tokens)
    else:
        ordinals, promises = _rare_promises(own, positions, tokens, most)
    if speakers:
        promises = times_speakers(promises, ordinals, speakers, len(tokens))
    if len(ordinals) <= most:
        return {ordinal // STRETCH for ordinal in ordinals}
    least = sorted(promises)[-most]
    promising = [found for found in zip(promises, ordinals, strict=True) if found[0] >= least]
    # Equal ones: the newest first.
    promising.sort(reverse=True)
    return {ordinal // STRETCH for _, ordinal in promising[:most]}


def _rare_promises(
    own: Mapping[int, float], positions: Sequence[int], tokens: Sequence[int], most: int
) -> tuple[list[int], list[float]]:
    """Return the ordinals and promises of those that may be among the `most` promising messages."""
    # To judge a message takes several times as long as to add its rarities.
    least = sorted(own.values())[-JUDGED * most]
    rare = {position: rarity for position, rarity in own.items() if rarity >= least}
    ordinals = ordinals_of(rare, positions)
    promises = _promises(ordinals, rare, positions, tokens)
    last = sorted(promises)[-most] if len(promises) >= most else 0.0
    if least * LENGTH_FACTORS[0] <= SPARED * last:
        return ordinals, promises
    ordinals += ordinals_of(own.keys() - rare.keys(), positions)
    return ordinals, _promises(ordinals, own, positions, tokens)


def _promises(
    ordinals: Sequence[int],
    own: Mapping[int, float],
    positions: Sequence[int],
    tokens: Sequence[int],
) -> list[float]:
    """Return how promising messages are by their rarities `own`."""
    rarities = [own[positions[ordinal]] for ordinal in ordinals]
    stretches = [ordinal // STRETCH for ordinal in ordinals]
    # One more at the end, which is also the one before the first.
    sums = [0.0] * (len(positions) // STRETCH + 2)
    for stretch, rarity in zip(stretches, rarities, strict=True):
        sums[stretch] += rarity
    return [
        (rarity + AROUND * (sums[stretch - 1] + sums[stretch] + sums[stretch + 1]))
        * LENGTH_FACTORS[tokens[ordinal]]
        for rarity, stretch, ordinal in zip(rarities, stretches, ordinals, strict=True)
    ]
