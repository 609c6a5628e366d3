"""Parse queries, grade messages, and rank hits; the same with an index and without."""

import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import log
from operator import add
from typing import Any, Final, NamedTuple

from turnfold.core.text.calls import call_entries, read_call
from turnfold.core.text.tokens import spoken_text
from turnfold.core.text.words import (
    ESCAPED,
    WORD_CHARACTERS,
    exact_terms,
    is_cjk,
    mark,
    normalize,
    pairs_of,
    runs,
    word_term,
)

MOST_WORDS: Final = 100
"""The most words of a query that are searched one by one."""
MOST_TERMS: Final = 24
"""The most terms of one index lookup; the rest is checked in the texts."""
FEW_WORDS: Final = 12
"""The most words that each text is searched for one by one, in all its characters.

In a longer query, only this many of the longest words decide the relevance, and a run of CJK
characters is searched by its pairs, so that a text is read once, whatever the number of words."""
MOST_PLACES: Final = 1_000
"""The most places in a text that are checked for the whole query as one value."""
PREFIX_CHARACTERS: Final = 3
"""Words of at least this length are also found by their beginning."""

_LONG_ENOUGH = 1_000.0

WHOLE, VERBATIM, WORDS, BEGINNINGS = 3, 2, 1, 0
"""The kind of a match: the message contains the query as a whole value, as part of one, all of its
words, or words that begin like them."""


class Term(NamedTuple):
    """An index term, or with `is_prefix` its beginning."""

    text: str
    is_prefix: bool = False

    def matches(self, term: str) -> bool:
        """Return whether this matches a term of the index."""
        return term.startswith(self.text) if self.is_prefix else term == self.text


Lookup = tuple[Term, ...]
"""Terms that a text must contain, all of them."""


class Relevance(NamedTuple):
    """How well a message matches; greater is better. `relevance` is below one."""

    tier: int
    relevance: float


@dataclass(frozen=True)
class SearchQuery:
    """A parsed query. Without words it matches nothing."""

    text: str
    words: tuple[str, ...]

    @staticmethod
    def of(query: str) -> "SearchQuery":
        """Parse a query. Its words are text and have no syntax."""
        text = " ".join(normalize(query).split())
        words = dict.fromkeys(runs(text))
        # Pairs of characters only for long queries: they find a run, but also its pairs far apart.
        if len(words) > FEW_WORDS:
            words = dict.fromkeys(
                part for word in words for part in (pairs_of(word) if is_cjk(word[0]) else [word])
            )
        return SearchQuery(text, tuple(words)[:MOST_WORDS])

    @property
    def is_value(self) -> bool:
        """Whether the query looks like an exact value: a path, an id or a number."""
        # Not `isalpha`: vowel signs are parts of words, but no letters for Python.
        return len(self.text) <= 500 and (
            any(map(str.isdigit, self.text))
            or "".join(runs(self.text)) != self.text.replace(" ", "")
        )

    def lookups(self) -> tuple[Lookup, ...]:
        """Return index lookups in order: the query as one value, then all of its words."""
        words = [term for word in self.words for term in terms_of(word)]
        exact = [Term(term) for term in exact_terms(self.text)]
        return (_lookup([*exact, *words]), _lookup(words)) if exact else (_lookup(words),)

    def beginnings(self) -> tuple[Lookup, ...]:
        """Return lookups of words that begin like those of the query; none without a prefix."""
        words = [term for word in self.words for term in terms_of(word)]
        prefixes = [term for word in self.words for term in _beginning(word)]
        return (_lookup(prefixes),) if prefixes != words else ()

    def any_word(self) -> tuple[Lookup, ...]:
        """Return one lookup per word, for texts with some of the words."""
        return tuple(_lookup(terms_of(word)) for word in self._longest(MOST_TERMS))

    def grade(self, text: str) -> Relevance | None:
        """Grade a normalized text; None if a word is missing."""
        if not self._may_hold(text, all):
            return None
        words = TextWords(text, is_read_once=len(self.words) > FEW_WORDS)
        is_exact = all(words.hold(word) for word in self.words)
        if not is_exact and not all(
            words.hold(word, ends=len(word) < PREFIX_CHARACTERS) for word in self.words
        ):
            return None
        shares = [_share(text.count(word), len(text)) for word in self._longest(FEW_WORDS)]
        tier = self._tier(text) if is_exact else BEGINNINGS
        return Relevance(tier, sum(shares) / max(1, len(shares)))

    def _tier(self, text: str) -> int:
        """Return the tier of a text with all words: how much of the query it has as it is."""
        text = _BLANKS.sub(" ", text) if " " in self.text else text
        tier = WORDS
        for start, end in self._places(text):
            if _begins_value(text, start) and _ends_value(text, end):
                return WHOLE
            tier = VERBATIM
        return tier

    def holds(self, text: str) -> frozenset[int]:
        """Return the indices of the query's words that a normalized text contains."""
        if not self._may_hold(text, any):
            return frozenset()
        words = TextWords(text, is_read_once=len(self.words) > FEW_WORDS)
        return frozenset(place for place, word in enumerate(self.words) if words.hold(word))

    def _may_hold(self, text: str, of_words: Callable[[Iterable[bool]], bool]) -> bool:
        """Return whether a text contains the letters of the words. Skipped for long queries."""
        # Each test reads the whole text, so with many words it would cost more than it saves.
        return len(self.words) > FEW_WORDS or of_words(word in text for word in self.words)

    def _longest(self, most: int) -> Sequence[str]:
        return sorted(self.words, key=lambda word: (-len(word), word))[:most]

    def _places(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where a text contains the whole query, with any white space for a blank."""
        at = text.find(self.text)
        for _ in range(MOST_PLACES):
            if at < 0:
                break
            yield at, at + len(self.text)
            at = text.find(self.text, at + 1)


class TextWords:
    """The words of a normalized text, split once."""

    def __init__(self, text: str, *, is_read_once: bool = False) -> None:
        self._text = text
        self._is_read_once = is_read_once
        self._words: frozenset[str] | None = None
        self._in_order: list[str] | None = None
        self._pairs: frozenset[str] | None = None

    def hold(self, word: str, *, ends: bool = True) -> bool:
        """Return whether a word occurs, or with `ends` false a word that begins so.

        CJK characters match anywhere. A word never starts inside another one, except after an
        escaped line end or tab.
        """
        if is_cjk(word[0]):
            return word in (
                self._pairs_of_characters()
                if self._is_read_once and len(word) <= PAIR
                else self._text
            )
        if self._words is None:
            self._words = _words_of(self._text)
        if ends:
            return word in self._words
        if self._in_order is None:
            self._in_order = sorted(self._words)
        place = bisect_left(self._in_order, word)
        return place < len(self._in_order) and self._in_order[place].startswith(word)

    def _pairs_of_characters(self) -> frozenset[str]:
        if self._pairs is None:
            self._pairs = frozenset(self._text).union(map(add, self._text, self._text[1:]))
        return self._pairs


def _words_of(text: str) -> frozenset[str]:
    words = frozenset(runs(text))
    return words.union(ESCAPED.findall(text)) if "\\" in text else words


def searchable(body: Mapping[str, Any]) -> str:
    """Return the normalized text in which a message is searched."""
    return normalize(searched_text(body))


def searched_text(body: Mapping[str, Any]) -> str:
    """Return the searched parts of a message: what it says, and names and arguments of its calls.

    A change of them needs another `TERMS_VERSION` and a migration (decision 10).
    """
    return "\n".join([spoken_text(body), *_called(body)])


def _called(body: Mapping[str, Any]) -> Iterator[str]:
    for entry in [*call_entries(body), {"function": body.get("function_call")}]:
        tool, arguments = read_call(entry)
        if tool is None:
            continue
        if isinstance(tool.get("name"), str):
            yield tool["name"]
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                yield str(arguments)
                continue
        yield from _leaves(arguments)


def _leaves(value: object) -> Iterator[str]:
    """Yield all texts, numbers and keys of a JSON value, in order."""
    # A stack instead of recursion: arguments are JSON in a text, which no limit of nesting covers.
    waiting: list[object] = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            for key, inner in reversed(list(part.items())):
                waiting += [inner, str(key)]
        elif isinstance(part, list):
            waiting += reversed(part)
        elif part is not None:
            yield part if isinstance(part, str) else json.dumps(part)


class SearchHit(NamedTuple):
    """A matching message with its score; greater is better."""

    position: int
    score: float


def ranked(question: SearchQuery, graded: Mapping[int, Relevance]) -> list[SearchHit]:
    """Rank matches: the value itself, all words, relevance, then the newest.

    A search for a value looks for the message that named it first, so the first message with it
    ranks before the others.
    """
    scores = {
        position: round(grade.tier + 0.9 * grade.relevance, 4) for position, grade in graded.items()
    }
    if question.is_value:
        for tier, score in ((VERBATIM, 4.0), (WHOLE, 4.5)):
            holders = [position for position, grade in graded.items() if grade.tier >= tier]
            if holders:
                # VERBATIM before WHOLE: if one message is the first of both, the higher score
                # stays.
                scores[min(holders)] = score
    return sorted(
        (SearchHit(position, score) for position, score in scores.items()),
        key=lambda hit: (-hit.score, -hit.position),
    )


def ranked_by_any(question: SearchQuery, texts: Mapping[int, str]) -> list[SearchHit]:
    """Rank messages with some of the words; those with the rarest words come first."""
    held = {position: question.holds(text) for position, text in texts.items()}
    times = Counter(chain.from_iterable(held.values()))
    holders = [times[place] for place in range(len(question.words))]
    weights = [log(1 + len(held) / (1 + number)) for number in holders]
    whole = sum(weights) or 1.0
    hits = []
    for position, words in held.items():
        if words:
            shares = sum(
                weights[place] * (0.7 + 0.3 * _share(1, len(texts[position]))) for place in words
            )
            hits.append(SearchHit(position, round(shares / whole, 4)))
    return sorted(hits, key=lambda hit: (-hit.score, -hit.position))


def _share(times: int, length: int) -> float:
    """Return a share of one that grows with occurrences and shrinks with the text."""
    return times / (times + 0.5 + length / _LONG_ENOUGH)


def _lookup(asked: Iterable[Term]) -> Lookup:
    """Choose the most selective terms: exact ones first, then long ones."""
    return tuple(
        # Terms of exact values begin with "y", those of words with "x".
        sorted(set(asked), key=lambda term: (term.text[0] != "y", -len(term.text), term))[
            :MOST_TERMS
        ]
    )


def terms_of(word: str) -> list[Term]:
    """Return the index terms of a word; a run of CJK characters has several."""
    if is_cjk(word[0]):
        return [Term(word_term(pair), is_prefix=len(word) == 1) for pair in pairs_of(word)]
    return (
        [Term(word_term(word)), Term(mark(word))]
        if len(word) > WORD_CHARACTERS
        else [Term(word_term(word))]
    )


def _beginning(word: str) -> list[Term]:
    if is_cjk(word[0]) or len(word) < PREFIX_CHARACTERS:
        return terms_of(word)
    return [Term(word_term(word), is_prefix=len(word) < WORD_CHARACTERS)]


def _begins_value(text: str, at: int) -> bool:
    before = text[at - 1 : at]
    # Every string contains the empty one, so the start of the text needs a test of its own.
    return (
        not (before.isalnum() or before in _JOINING_BEFORE)
        or not before
        or is_cjk(before)
        or is_cjk(text[at])
    )


def _ends_value(text: str, end: int) -> bool:
    after, next_one = text[end : end + 1], text[end + 1 : end + 2]
    if not after or is_cjk(after) or is_cjk(text[end - 1]):
        return True
    if after in ".:,":
        return not (next_one.isalnum() or next_one in ("_", "/"))
    return not (after.isalnum() or after in _JOINING_AFTER)


PAIR: Final = 2
_BLANKS = re.compile(r"\s+")
_JOINING_BEFORE = "_./\\:@#~%+$-"
_JOINING_AFTER = "_/\\@#~%+$-"
