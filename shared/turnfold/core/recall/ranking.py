"""Rank the messages of a session for a question, from their places in the word index.

A lookup counts for a message by its rarity in the session, where it matches best within five
messages, so that an answer is found by the words of its question. Long messages count less.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from heapq import nlargest
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
LEAST_RARITY: Final = 0.2
"""Lookups are ignored whose rarity is below this share of the rarest one's."""
MOST_PLACES: Final = 600
"""A lookup with more places counts for the newest `NEWEST_PLACES` of them."""
NEWEST_PLACES: Final = 200
MOST_RANKED: Final = 400


@dataclass(frozen=True, slots=True)
class FoundPlaces:
    """The places of one lookup as ordinals in the session, newest first; there may be more."""

    places: Sequence[int]
    has_more: bool = False


def rank(
    lookups: Sequence[FoundPlaces],
    tokens: Sequence[int],
    until: int,
    spoken: Collection[int] | None,
) -> list[int]:
    """Return the ordinals of the best messages before `until`, best first.

    `tokens` holds the size of each message of the session, 0 if it is never recalled. `spoken` are
    the messages of the one speaker that the question names, if it names exactly one.
    """
    scores: defaultdict[int, float] = defaultdict(float)
    weighted = [
        (_rarity(len(matches.places), until), matches) for matches in lookups if matches.places
    ]
    rarest = max((rarity for rarity, _ in weighted), default=0.0)
    for rarity, matches in weighted:
        if rarity >= LEAST_RARITY * rarest:
            places = matches.places[:NEWEST_PLACES] if matches.has_more else matches.places
            _add(scores, rarity, places, until)
    if spoken is not None:
        for ordinal in scores.keys() & spoken:
            scores[ordinal] *= SPEAKER
    values = [
        (score * _LENGTHS[min(tokens[ordinal], MOST_TOKENS)], ordinal)
        for ordinal, score in scores.items()
        if tokens[ordinal]
    ]
    return [ordinal for _, ordinal in nlargest(MOST_RANKED, values)]


def _rarity(places: int, messages: int) -> float:
    """Return the inverse document frequency, as BM25 defines it."""
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
