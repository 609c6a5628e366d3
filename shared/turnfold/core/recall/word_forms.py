"""Find the forms of words: by the beginning they share, or if it is short, one by one."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from turnfold.core.text.caches import cached_text

LEAST_PREFIX: Final = 4
"""The shortest beginning by which words are looked up."""

_INFLECTIONS: Final = (("ies", 2), ("ied", 2), ("ing", 3), ("ed", 3), ("es", 3), ("s", 3))
_DERIVATIONS: Final = (
    ("edly", 3), ("ly", 3), ("ment", 4), ("ness", 4), ("ation", 4), ("er", 4),
)  # fmt: skip
"""English endings, and the minimum of letters before them."""
_NO_ENDINGS: Final = ("ss", "eed")
"""A word that ends so has none of these endings, such as `class` and `speed`."""
_VOWELS: Final = frozenset("aeiou")

ARABIC_PREFIX: Final = 3
_ARABIC: Final = re.compile(r"[\u0621-\u06ff]")
_ARTICLE: Final = re.compile(r"^(?:[وفبك]?ال|لل)(?=..)")
_PARTICLES: Final = ("", "و", "ب", "ل", "ال", "وال", "بال", "لل")
"""Arabic words may have one of these in front, without a space: and, with, for, the."""


@cached_text(4_096)
def stem_of(word: str) -> str:
    """Return the beginning that the forms of a word share, such as `weld` of `welding`.

    The rules are those of English. A word in another alphabet loses its last two letters, if at
    least four remain.
    """
    if not word.isascii():
        return word[: max(LEAST_PREFIX, len(word) - 2)]
    inflection = _ending_of(word, _INFLECTIONS)
    if inflection and not word.endswith(_NO_ENDINGS):
        stem = word.removesuffix(inflection)
        # `worries` is a form of `worry`, but `planned` one of `plan`.
        return stem if inflection in ("ies", "ied") else _trimmed(stem)
    stem = _trimmed(word.removesuffix(_ending_of(word, _DERIVATIONS)))
    # `letter` is not a form of `let`.
    return stem if len(stem) >= LEAST_PREFIX else _trimmed(word)


def beginnings_of(word: str) -> list[str]:
    """Return beginnings that forms of a word share in another language; none if it is short.

    Arabic words have particles in front, and most have a root of three letters.
    """
    least = LEAST_PREFIX
    particles: Sequence[str] = ("",)
    if _ARABIC.match(word):
        least, particles = ARABIC_PREFIX, _PARTICLES
        word = _ARTICLE.sub("", word)
    if len(word) < least:
        return []
    # Endings follow each other, so a long word may have many.
    stem = word[: max(least, min(6, len(word) - 2, len(word) // 2 + 1))]
    return [f"{particle}{stem}" for particle in particles]


def _ending_of(word: str, endings: Iterable[tuple[str, int]]) -> str:
    """Return the first of these endings that a word has; empty if none."""
    found = (end for end, least in endings if word.endswith(end) and len(word) - len(end) >= least)
    return next(found, "")


def _trimmed(stem: str) -> str:
    """Remove a doubled consonant, and a last letter that other forms of a word lack."""
    if len(stem) < LEAST_PREFIX:
        return stem
    last, before = stem[-1], stem[-2]
    # `planned` is a form of `plan`, but `filled` one of `fill`.
    if last == before and last not in _VOWELS and (last not in "ls" or len(stem) > LEAST_PREFIX):
        return stem[:-1]
    # So that `party` and `parties`, `cache` and `caching` have the same beginning.
    if last in "ei" or (last == "y" and before not in _VOWELS):
        return stem[:-1]
    return stem


def short_forms(word: str) -> list[str]:
    """Return the forms of a word whose stem is too short for a lookup by its beginning."""
    return sorted({form for base in _bases(word) for form in _inflected(base)} | {word, f"{word}s"})


def _bases(word: str) -> Iterator[str]:
    """Yield the words of which a word may be a form."""
    yield word
    if word.endswith(("ies", "ied")):
        yield f"{word[:-3]}y"
        yield word[:-1]
    elif word.endswith("s") and not word.endswith("ss"):
        yield word[:-1]
        if word.endswith("es"):
            yield word[:-2]
    elif not word.endswith("eed") and word.endswith(("ed", "ing")):
        stem = word[:-2] if word.endswith("ed") else word[:-3]
        yield stem
        yield f"{stem}e"
        if stem[-1:] == stem[-2:-1]:
            yield stem[:-1]


def _inflected(base: str) -> Iterator[str]:
    """Yield the forms of a base that end regularly."""
    if len(base) < 2:
        return
    yield base
    last, before = base[-1], base[-2]
    stem = base
    if last == "e":
        yield f"{base}s"
        stem = base[:-1]
        if before == "e":  # `seeing`, but `moving`
            yield f"{base}ing"
    elif last == "y" and before not in _VOWELS:
        yield from (f"{base[:-1]}{ending}" for ending in ("ies", "ied", "ier"))
        yield f"{base}ing"
        return
    else:
        yield from (f"{base}s", f"{base}es")
    yield from (f"{stem}{ending}" for ending in ("ed", "er", "ing"))
    if last not in _VOWELS and last not in "wxy" and before in _VOWELS:
        yield from (f"{base}{last}{ending}" for ending in ("ed", "er", "ing"))
