"""Rank the messages of a session for a question, from their places in the word index.

A lookup counts for a message by its rarity in the session, where it matches best within five
messages, so that an answer is found by the words of its question. Long messages count less.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import repeat
from math import log
from operator import itemgetter, mul
from typing import Final

DECAY: Final = (1.0, 0.5, 0.4, 0.3, 0.2, 0.1)
"""How much a match counts for a message so many places away."""
REACH: Final = len(DECAY) - 1
_SPREAD: Final = [
    (distance, DECAY[abs(distance)]) for distance in range(-REACH, REACH + 1) if distance
]
OWN_WORD: Final = 0.5
"""What a match in the message itself counts on top."""
SPEAKER: Final = 2.2
"""The factor for messages of the one speaker that the question names."""
LEAST_TOKENS, MOST_TOKENS = 40, 4_096
LENGTH_POWER: Final = 0.7
"""A score is divided by this power of the tokens, between these two limits."""
_LENGTHS: Final[list[float]] = [
    max(tokens, LEAST_TOKENS) ** -LENGTH_POWER for tokens in range(MOST_TOKENS + 1)
]
LEAST_RARITY: Final = 0.1
"""Lookups are ignored whose rarity is below this share of the rarest one's."""
MOST_PLACES: Final = 600
"""A lookup that more messages match is left out, unless no other finds any."""
NEWEST_PLACES: Final = 200
"""Of each lookup, if all of them have more places, so many of the newest are looked at."""
MOST_RANKED: Final = 400
STRETCH: Final = REACH + 1
"""So many messages in a row are weighed together before single ones are."""
MOST_CANDIDATES: Final = 300
"""Once the rarest lookups match so many messages, the others only count for these and near them."""
LEAST_PROMISING: Final = 40
TOKENS_A_PROMISING: Final = 50
"""Only the stretches of so many promising places are scored, of one for so many tokens of room."""
AROUND: Final = 0.1
"""The weight of a match in the stretches around a place, beside one in the message itself."""

Matches = Sequence[int]
"""The positions of the messages that a lookup matches, newest first."""


def rarity_of(found: int, messages: int) -> float:
    """Return the inverse document frequency, as BM25 defines it."""
    return log(1 + (max(messages - found, 0) + 0.5) / (found + 0.5))


def length_factor(tokens: int) -> float:
    """Return what the score of a message of so many tokens is multiplied by."""
    return _LENGTHS[min(tokens, MOST_TOKENS)]


def ordinals_of(matches: Matches, positions: Sequence[int]) -> list[int]:
    """Return the ordinals of messages by their positions, of those that are in the session."""
    places = map(bisect_left, repeat(positions), matches)
    number = len(positions)
    return [
        place
        for position, place in zip(matches, places, strict=True)
        if place < number and positions[place] == position
    ]


def score(
    lookups: Sequence[Matches], positions: Sequence[int], tokens: Sequence[int], room: int
) -> defaultdict[int, float]:
    """Return what the matches count for each message, by its ordinal.

    `positions` and `tokens` are those of the session in order; a message that is never recalled has
    no tokens. Messages of `room` tokens are wanted.
    """
    number = len(positions)
    scores: defaultdict[int, float] = defaultdict(float)
    weighted = [(rarity_of(len(matches), number), matches) for matches in lookups if matches]
    weighted.sort(key=itemgetter(0), reverse=True)
    weighted = [found for found in weighted if found[0] >= LEAST_RARITY * weighted[0][0]]
    promising = max(LEAST_PROMISING, room // TOKENS_A_PROMISING)
    for rarity, places in _near_best(weighted, positions, tokens, promising):
        _add(scores, rarity, places, number)
    return scores


def rank(
    scores: Mapping[int, float], tokens: Sequence[int], spoken: Collection[int] | None
) -> list[int]:
    """Return the ordinals of the best messages, best first, of equals the newest.

    `spoken` are the messages of the one speaker that the question names, if it names exactly one.
    """
    values = _per_length(scores, tokens)
    for ordinal in values.keys() & spoken if spoken is not None else ():
        values[ordinal] *= SPEAKER
    return [ordinal for ordinal in _best(values) if tokens[ordinal]][:MOST_RANKED]


def _best(values: Mapping[int, float]) -> list[int]:
    """Return ordinals by their values, best first, of equals the newest."""
    return sorted(sorted(values, reverse=True), key=values.__getitem__, reverse=True)


def _per_length(scores: Mapping[int, float], tokens: Sequence[int]) -> dict[int, float]:
    """Return scores divided by a power of the lengths of their messages."""
    sizes = map(min, map(tokens.__getitem__, scores), repeat(MOST_TOKENS))
    return dict(
        zip(scores, map(mul, scores.values(), map(_LENGTHS.__getitem__, sizes)), strict=True)
    )


def _near_best(
    weighted: Sequence[tuple[float, Matches]],
    positions: Sequence[int],
    tokens: Sequence[int],
    most: int,
) -> Iterator[tuple[float, Sequence[int]]]:
    """Yield the places of lookups near the `most` promising ones, so that few are scored.

    The rarest lookups come first. A place promises the rarities of its own matches, and a part of
    those in the stretches around.
    """
    own: defaultdict[int, float] = defaultdict(float)
    candidates: dict[int, int] = {}
    for rarity, matches in weighted:
        if len(candidates) < MOST_CANDIDATES:
            places = ordinals_of(matches, positions)
            candidates.update(zip([positions[place] for place in places], places, strict=True))
        else:
            places = [candidates[position] for position in candidates.keys() & matches]
        for place in places:
            own[place] += rarity
    number = len(positions)
    near = [place for place in _near(own, tokens, most) if place < number]
    ordinals = dict(zip([positions[place] for place in near], near, strict=True))
    for rarity, matches in weighted:
        found = ordinals.keys() & matches
        yield rarity, sorted([ordinals[position] for position in found], reverse=True)


def _near(own: dict[int, float], tokens: Sequence[int], most: int) -> list[int]:
    """Return the places in the stretches of the `most` promising ones."""
    promising: Collection[int] = own
    if len(own) > most:
        stretches = [place // STRETCH for place in own]
        sums = [0.0] * (max(stretches) + 3)
        for stretch, rarity in zip(stretches, own.values(), strict=True):
            sums[stretch + 1] += rarity
        promises = {
            place: rarity + AROUND * (sums[stretch] + sums[stretch + 1] + sums[stretch + 2])
            for (place, rarity), stretch in zip(own.items(), stretches, strict=True)
        }
        promising = _best(_per_length(promises, tokens))[:most]
    best = {place // STRETCH for place in promising}
    return [STRETCH * stretch + number for stretch in best for number in range(STRETCH)]


def _add(scores: defaultdict[int, float], rarity: float, places: Sequence[int], until: int) -> None:
    """Add one lookup to the scores of its places and their neighbors.

    A neighbor counts for the place that is nearest to it: each place reaches half of the gap to
    the next one.
    """
    weights = [rarity * share for share in DECAY]
    own = weights[0] + OWN_WORD * rarity
    after = until + REACH  # places come newest first
    for number, place in enumerate(places, start=1):
        before = places[number] if number < len(places) else -REACH - 1
        scores[place] += own
        if after - place > 2 * REACH < place - before:
            for distance, share in _SPREAD:
                scores[place + distance] += rarity * share
        else:
            for distance in range(1, min(REACH, (after - place) // 2, until - 1 - place) + 1):
                scores[place + distance] += weights[distance]
            for distance in range(1, min(REACH, (place - before - 1) // 2, place) + 1):
                scores[place - distance] += weights[distance]
        after = place
