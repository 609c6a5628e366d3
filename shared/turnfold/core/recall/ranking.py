"""Rank the messages of a session for a question, from their places in the word index.

A lookup counts for a message by its rarity in the session, where it matches best within five
messages, so that an answer is found by the words of its question. Long messages count less.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Final

DECAY: Final = (1.0, 0.5, 0.4, 0.3, 0.2, 0.1)
"""How much a match counts for a message so many places away."""
REACH: Final = len(DECAY) - 1
OWN_WORD: Final = 0.5
"""What a match in the message itself counts on top."""
SPEAKER: Final = 2.2
"""The factor for messages of the one speaker that the question names."""
LEAST_TOKENS, MOST_TOKENS = 40, 4_096
LENGTH_POWER: Final = 0.7
"""A score is divided by this power of the tokens, between these two limits."""
_LENGTHS: Final = [max(tokens, LEAST_TOKENS) ** -LENGTH_POWER for tokens in range(MOST_TOKENS + 1)]
RELATED: Final = 0.5
"""The weight of a word that several of the best messages share and the question lacks."""
MOST_RELATED: Final = 0.1
MOST_PLACES_OF_RELATED: Final = 100
"""Such a word is ignored if more than this share of the session's messages hold it, or so many."""
LEAST_RARITY: Final = 0.1
"""Lookups are ignored whose rarity is below this share of the rarest one's."""
MOST_PLACES: Final = 600
"""Of a lookup with more places, only the newest `NEWEST_PLACES` are looked at."""
NEWEST_PLACES: Final = 200
MOST_RANKED: Final = 400
STRETCH: Final = REACH + 1
"""So many messages in a row are weighed together before single ones are."""
MOST_PROMISING: Final = 100
"""Only messages near so many promising places are scored, so that long sessions take no longer."""
AROUND: Final = 0.1
"""The weight of a match in the stretches around a place, beside one in the message itself."""


@dataclass(frozen=True, slots=True)
class FoundPlaces:
    """The places of one lookup as ordinals in the session, newest first.

    `older` are not among them, but count for how rare the lookup is.
    """

    places: Sequence[int]
    older: int = 0


def score(
    lookups: Sequence[FoundPlaces], tokens: Sequence[int], until: int
) -> defaultdict[int, float]:
    """Return what the matches count for each message before `until`, by its ordinal.

    `tokens` holds the size of each message of the session, 0 if it is never recalled.
    """
    scores: defaultdict[int, float] = defaultdict(float)
    weighted = [(_rarity(matches, until), matches.places) for matches in lookups if matches.places]
    rarest = max((rarity for rarity, _ in weighted), default=0.0)
    weighted = [found for found in weighted if found[0] >= LEAST_RARITY * rarest]
    for rarity, places in _near_best(weighted, tokens):
        _add(scores, rarity, places, until)
    return scores


def add_related(
    scores: defaultdict[int, float], lookups: Sequence[FoundPlaces], until: int
) -> None:
    """Add lookups for words that the best messages share.

    Only messages with the word itself count. A word that many messages hold says nothing, and one
    that no second message holds finds nothing.
    """
    most = min(MOST_PLACES_OF_RELATED, MOST_RELATED * until)
    for matches in lookups:
        if 1 < len(matches.places) + matches.older <= most:
            weight = RELATED * _rarity(matches, until)
            for place in matches.places:
                scores[place] += weight


def rank(
    scores: Mapping[int, float], tokens: Sequence[int], spoken: Collection[int] | None
) -> list[int]:
    """Return the ordinals of the best messages, best first.

    `spoken` are the messages of the one speaker that the question names, if it names exactly one.
    """
    named: Collection[int] = () if spoken is None else spoken
    values = [
        (
            scored
            * (SPEAKER if ordinal in named else 1.0)
            * _LENGTHS[min(tokens[ordinal], MOST_TOKENS)],
            ordinal,
        )
        for ordinal, scored in scores.items()
        if tokens[ordinal]
    ]
    values.sort(reverse=True)
    return [ordinal for _, ordinal in values[:MOST_RANKED]]


def _near_best(
    weighted: Sequence[tuple[float, Sequence[int]]], tokens: Sequence[int]
) -> Sequence[tuple[float, Sequence[int]]]:
    """Leave out the places that are far from the most promising ones, so that few are scored.

    A place promises the rarities of its own matches, and a part of those in the stretches around.
    """
    own: defaultdict[int, float] = defaultdict(float)
    for rarity, places in weighted:
        for place in places:
            own[place] += rarity
    if len(own) <= MOST_PROMISING:
        return weighted
    sums: defaultdict[int, float] = defaultdict(float)
    for place, rarity in own.items():
        sums[place // STRETCH] += rarity
    around = {at: sums.get(at - 1, 0.0) + here + sums.get(at + 1, 0.0) for at, here in sums.items()}
    promises = [
        (
            (rarity + AROUND * around[place // STRETCH])
            * _LENGTHS[min(tokens[place], MOST_TOKENS)],
            place,
        )
        for place, rarity in own.items()
    ]
    promises.sort(reverse=True)
    best = {place // STRETCH for _, place in promises[:MOST_PROMISING]}
    near = {beside for at in best for beside in (at - 1, at, at + 1)}
    return [
        (rarity, [place for place in places if place // STRETCH in near])
        for rarity, places in weighted
    ]


def _rarity(matches: FoundPlaces, messages: int) -> float:
    """Return the inverse document frequency, as BM25 defines it."""
    places = len(matches.places) + matches.older
    return log(1 + (max(messages - places, 0) + 0.5) / (places + 0.5))


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
        for distance in range(1, min(REACH, (after - place) // 2, until - 1 - place) + 1):
            scores[place + distance] += weights[distance]
        for distance in range(1, min(REACH, (place - before - 1) // 2, place) + 1):
            scores[place - distance] += weights[distance]
        after = place
