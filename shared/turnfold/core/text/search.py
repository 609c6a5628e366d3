"""What a query asks for, whether a message answers it, and which answer stands first: the same with an index and without."""

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

from turnfold.core.text.tokens import text_of
from turnfold.core.text.words import (
    LETTER,
    WORD_CHARACTERS,
    exact_terms,
    is_cjk,
    mark,
    normalize,
    runs,
    word_term,
)

MOST_WORDS: Final = 100
"""Words of a query beyond so many are not asked for one by one."""
MOST_TERMS: Final = 24
"""Terms that one lookup in an index names; texts are read to check the rest."""
FEW_WORDS: Final = 12
"""Words that each text is searched for one by one, in all its characters. Of a longer query the longest so many words tell the relevance,
and a row of eastern characters is asked for by its pairs: then a text is read once, however many words there are."""
MOST_PLACES: Final = 1_000
"""Places of a text that holds the whole query again and again at which it is seen whether it stands there as a value."""
PREFIX_CHARACTERS: Final = 3
"""Words of at least so many characters are also found by their beginning."""

_LONG_ENOUGH = 1_000.0

WHOLE, VERBATIM, WORDS, BEGINNINGS = 3, 2, 1, 0
"""How well a message answers: it holds the query as a value of its own, as a part of something, all its words, or words that begin so."""


class Term(NamedTuple):
    """A term that a text has, or with `is_prefix` one that begins so."""

    text: str
    is_prefix: bool = False


Lookup = tuple[Term, ...]
"""The terms that a text must all have to be worth reading."""


class Relevance(NamedTuple):
    """How well one message answers, the better the higher; `relevance` is below one."""

    tier: int
    relevance: float


@dataclass(frozen=True)
class SearchQuery:
    """A query, taken apart. It has at least one word, or it asks for nothing."""

    text: str
    words: tuple[str, ...]

    @staticmethod
    def of(query: str) -> "SearchQuery":
        """The question in the words of a query, which are never more than text."""
        text = " ".join(normalize(query).split())
        words = dict.fromkeys(runs(text))
        if len(words) > FEW_WORDS:
            words = dict.fromkeys(part for word in words for part in _parts(word))
        return SearchQuery(text, tuple(words)[:MOST_WORDS])

    @property
    def is_value(self) -> bool:
        """Whether it looks like something exact - a path, an id, a figure - that one message named first."""
        return len(self.text) <= 500 and any(
            not character.isalpha() and character != " " for character in self.text
        )

    def lookups(self) -> tuple[Lookup, ...]:
        """What texts are to be read, those of the first lookup before the others: as one value, then by all words."""
        words = [term for word in self.words for term in _terms(word)]
        exact = [Term(term) for term in exact_terms(self.text)]
        return (_lookup([*exact, *words]), _lookup(words)) if exact else (_lookup(words),)

    def beginnings(self) -> tuple[Lookup, ...]:
        """What texts are to be read for words that begin like those of the query; none when no word can be found so."""
        found = [term for word in self.words for term in _beginning(word)]
        return (
            (_lookup(found),)
            if found != [term for word in self.words for term in _terms(word)]
            else ()
        )

    def any_word(self) -> tuple[Lookup, ...]:
        """What texts are to be read that hold some of the words: a lookup each."""
        longest = sorted(self.words, key=lambda word: (-len(word), word))[:MOST_TERMS]
        return tuple(_lookup(_terms(word)) for word in longest)

    def grade(self, text: str) -> Relevance | None:
        """How well a folded text answers; None when a word is missing."""
        if not self._may_hold(text, all):
            return None
        words = TextWords(text, is_read_once=len(self.words) > FEW_WORDS)
        is_exact = all(words.hold(word) for word in self.words)
        if not is_exact and not all(
            words.hold(word, ends=len(word) < PREFIX_CHARACTERS) for word in self.words
        ):
            return None
        counted = self._longest(FEW_WORDS)
        relevance = sum(_share(text.count(word), len(text)) for word in counted) / max(
            1, len(counted)
        )
        tier = BEGINNINGS
        if is_exact:
            tier = WORDS
            text = _BLANKS.sub(" ", text) if " " in self.text else text
            for start, end in self._places(text):
                tier = VERBATIM
                if _begins_value(text, start) and _ends_value(text, end):
                    tier = WHOLE
                    break
        return Relevance(tier, relevance)

    def holds(self, text: str) -> frozenset[int]:
        """Which words of the query, by their places, a folded text holds."""
        if not self._may_hold(text, any):
            return frozenset()
        words = TextWords(text, is_read_once=len(self.words) > FEW_WORDS)
        return frozenset(place for place, word in enumerate(self.words) if words.hold(word))

    def _may_hold(self, text: str, of_words: Callable[[Iterable[bool]], bool]) -> bool:
        """Whether the letters of all words, or of any, are in a text at all; a long query is not looked for so."""
        return len(self.words) > FEW_WORDS or of_words(word in text for word in self.words)

    def _longest(self, most: int) -> Sequence[str]:
        return (
            self.words
            if len(self.words) <= most
            else sorted(self.words, key=lambda word: (-len(word), word))[:most]
        )

    def _places(self, text: str) -> Iterator[tuple[int, int]]:
        """Where a text holds the whole query, one blank standing for whatever white space is in it."""
        at = text.find(self.text)
        for _ in range(MOST_PLACES):
            if at < 0:
                break
            yield at, at + len(self.text)
            at = text.find(self.text, at + 1)


class TextWords:
    """The words of a folded text, taken apart once: which words stand in it, and which begin one of its words."""

    def __init__(self, text: str, *, is_read_once: bool = False) -> None:
        self._text = text
        self._is_read_once = is_read_once
        self._words: frozenset[str] | None = None
        self._in_order: list[str] | None = None
        self._pairs: frozenset[str] | None = None

    def hold(self, word: str, *, ends: bool = True) -> bool:
        """Whether a word stands here, or with `ends` false the beginning of one; eastern characters stand anywhere.

        A word begins inside no other; what follows an escaped line end or tab begins one.
        """
        if is_cjk(word[0]):
            return word in (
                self._pairs_of_characters()
                if self._is_read_once and len(word) <= PAIR
                else self._text
            )
        if self._words is None:
            self._words = frozenset(runs(self._text)).union(
                _ESCAPED.findall(self._text) if "\\" in self._text else ()
            )
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


def searchable(body: Mapping[str, Any]) -> str:
    """The text in which a message is searched, as it is compared."""
    return normalize(searched_text(body))


def searched_text(body: Mapping[str, Any]) -> str:
    """What of a message is searched: what it says, and the names and arguments of its calls."""
    return "\n".join([text_of(body), *_called(body)])


def _called(body: Mapping[str, Any]) -> Iterator[str]:
    calls = body.get("tool_calls")
    old = body.get("function_call")
    functions = (
        [call.get("function") for call in calls if isinstance(call, Mapping)]
        if isinstance(calls, list)
        else []
    )
    for function in [*functions, old]:
        if not isinstance(function, Mapping):
            continue
        if isinstance(function.get("name"), str):
            yield function["name"]
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                yield str(arguments)
                continue
        yield from _leaves(arguments)


def _leaves(value: object) -> Iterator[str]:
    """Every text, figure and key of a JSON value, in order."""
    waiting: list[object] = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            for key, inner in reversed(list(one.items())):
                waiting += [inner, str(key)]
        elif isinstance(one, list):
            waiting += reversed(one)
        elif one is not None:
            yield one if isinstance(one, str) else json.dumps(one)


class SearchHit(NamedTuple):
    """A message that answers; the score is the higher the better."""

    position: int
    score: float


def ranked(question: SearchQuery, graded: Mapping[int, Relevance]) -> list[SearchHit]:
    """The positions of messages that answer, best first: the value itself, all words, relevance, and the newest of equals.

    Who asks for a value wants the message that named it: the first to hold it stands before the others, and so does the
    first that holds it as part of something larger.
    """
    scores = {
        position: round(grade.tier + 0.9 * grade.relevance, 4) for position, grade in graded.items()
    }
    if question.is_value:
        for tier, score in ((VERBATIM, 4.0), (WHOLE, 4.5)):
            holders = [position for position, grade in graded.items() if grade.tier >= tier]
            if holders:
                scores[min(holders)] = score
    return sorted(
        (SearchHit(position, score) for position, score in scores.items()),
        key=lambda one: (-one.score, -one.position),
    )


def ranked_by_any(question: SearchQuery, texts: Mapping[int, str]) -> list[SearchHit]:
    """The positions of messages that hold some of the words, those with the rarest words first."""
    held = {position: question.holds(text) for position, text in texts.items()}
    times = Counter(chain.from_iterable(held.values()))
    holders = [times[place] for place in range(len(question.words))]
    weights = [log(1 + len(held) / (1 + number)) for number in holders]
    whole = sum(weights) or 1.0
    found = []
    for position, words in held.items():
        if words:
            shares = sum(
                weights[place] * (0.7 + 0.3 * _share(1, len(texts[position]))) for place in words
            )
            found.append(SearchHit(position, round(shares / whole, 4)))
    return sorted(found, key=lambda one: (-one.score, -one.position))


def _share(times: int, length: int) -> float:
    """Nearer to one the oftener something occurs, and the shorter the text."""
    return times / (times + 0.5 + length / _LONG_ENOUGH)


def _lookup(asked: Iterable[Term]) -> Lookup:
    """The most telling of these terms: what is exact first, then what is long."""
    return tuple(
        sorted(set(asked), key=lambda term: (term.text[0] != "y", -len(term.text), term))[
            :MOST_TERMS
        ]
    )


def _terms(word: str) -> list[Term]:
    """The terms that a text with this word has; several where it is a row of eastern characters."""
    if is_cjk(word[0]):
        return (
            [Term(f"x{word}", is_prefix=True)]
            if len(word) == 1
            else [Term(f"x{word[at : at + 2]}") for at in range(len(word) - 1)]
        )
    return (
        [Term(word_term(word)), Term(mark(word))]
        if len(word) > WORD_CHARACTERS
        else [Term(word_term(word))]
    )


def _beginning(word: str) -> list[Term]:
    if is_cjk(word[0]) or len(word) < PREFIX_CHARACTERS:
        return _terms(word)
    return [Term(word_term(word), is_prefix=len(word) < WORD_CHARACTERS)]


def _parts(word: str) -> list[str]:
    """A row of more than two eastern characters as its pairs; any other word as it is."""
    return (
        [word]
        if len(word) <= PAIR or not is_cjk(word[0])
        else [word[at : at + PAIR] for at in range(len(word) - 1)]
    )


def _begins_value(text: str, at: int) -> bool:
    before = text[at - 1 : at]
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
_ESCAPED = re.compile(rf"\\[ntr]({LETTER}+)")
_BLANKS = re.compile(r"\s+")
_JOINING_BEFORE = "_./\\:@#~%+$-"
_JOINING_AFTER = "_/\\@#~%+$-"
