"""Turn the text of a request into lookups in the word index."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final

from turnfold.core.recall.english import FUNCTION_WORDS, IRREGULAR_FORMS, KINDS, SIMILAR_WORDS
from turnfold.core.recall.function_words import COMMON_CHARACTERS, HOMOGRAPHS, OTHER_FUNCTION_WORDS
from turnfold.core.recall.word_forms import LEAST_PREFIX, beginnings_of, short_forms, stem_of
from turnfold.core.text.caches import cached_text
from turnfold.core.text.names import names_in
from turnfold.core.text.search import Lookup, Term, terms_of
from turnfold.core.text.words import (
    WORD_CHARACTERS,
    exact_terms,
    is_cjk,
    normalize,
    runs,
    word_term,
)

READ_CHARACTERS: Final = 8_000
"""The characters of a request that are read; the rest is mostly pasted."""
MOST_LOOKUPS: Final = 24
MOST_VALUES: Final = 8
"""The most lookups for exact values, such as paths and numbers with their units, and for names."""
MOST_RELATED: Final = 12
"""The most lookups for words that the best messages share."""
MOST_SIMILAR: Final = 24
"""The most lookups for words similar to those of a question."""
WISHES: Final[Lookup] = (
    Term(word_term("always")),
    Term(word_term("never")),
    Term(word_term("prefer"), is_prefix=True),
)
"""The lookup for what a user wishes of every answer."""

_ASKING: Final = frozenset(("i", "me", "mine", "my", "myself"))
_TOLD_BY_AGENT: Final = re.compile(
    r"\b(?:did|have) you\b|\byou(?:['’]ve)? (?:\w+[^e\W]ed|gave|said|told)\b"
)
"""Such as `did you recommend` and `you suggested`, but not `you need`."""
_FUNCTION_WORDS: Final = FUNCTION_WORDS | OTHER_FUNCTION_WORDS | HOMOGRAPHS
_AFTER_LATIN: Final = "\u0250"
"""Words in another alphabet are not less than this; Latin ones are, also with accents."""
_DIGIT: Final = re.compile(r"\d")


@dataclass(frozen=True, slots=True)
class RecallQuestion:
    """The lookups of a request; a message matches a lookup if it holds any of its terms.

    `words` are its words as written, without case: any of them may name a speaker. `names` are
    those in code, such as of files and functions. It may ask about what the agent told, or about
    the user who asks; `is_about_agent` is None if it does neither.
    """

    lookups: tuple[Lookup, ...]
    words: frozenset[str]
    is_about_agent: bool | None = None
    names: frozenset[str] = frozenset()

    @property
    def name_lookups(self) -> Sequence[Lookup]:
        """One lookup for each name, of the longest ones."""
        longest = sorted(self.names, key=lambda name: (-len(name), name))[:MOST_VALUES]
        return [(_name_term(normalize(name)),) for name in longest]

    def lookups_without(self, names: Collection[str]) -> Sequence[Lookup]:
        """Return the lookups without those that find one of these words; all if none is left.

        Messages address the person that a question names, and are mostly spoken by another.
        """
        terms = [word_term(name) for name in names]
        kept = [
            lookup
            for lookup in self.lookups
            if not any(found.matches(term) for found in lookup for term in terms)
        ]
        return kept or self.lookups


def begins_with(request: str, query: str) -> bool:
    """Return whether a query is the request itself, or its beginning, except for white space."""
    return " ".join(request.split()).startswith(" ".join(query.split()))


def question_of(text: str, *, is_search: bool = False) -> RecallQuestion:
    """Return the lookups of a text: exact values first, then words by all their forms.

    If a text has many words, the most selective are looked up.
    Function words are not: a short message of such words alone would outrank an answer.
    They are looked up only in a search that asks for nothing else.
    """
    read = normalize(text[:READ_CHARACTERS])
    words = dict.fromkeys(runs(read))
    # Sorted, because the order of a set differs between processes, and every server must choose
    # the same values.
    values = sorted(exact_terms(read))[:MOST_VALUES]
    forms = dict.fromkeys(chain.from_iterable(_forms_of_each(words)))
    longest = sorted(forms, key=_selectivity, reverse=True)
    # Values come first: if there are too many lookups, the last ones are left out.
    lookups = [(Term(value),) for value in values] + longest
    if is_search and not lookups:
        lookups = [(Term(word_term(word)),) for word in words]
    is_about_agent = _TOLD_BY_AGENT.search(read) is not None
    is_about_any = is_about_agent or not _ASKING.isdisjoint(words)
    return RecallQuestion(
        tuple(lookups[:MOST_LOOKUPS]),
        frozenset(words),
        is_about_agent if is_about_any else None,
        names_in(text[:READ_CHARACTERS]),
    )


def _forms_of_each(words: Collection[str]) -> Iterator[Sequence[Lookup]]:
    """Return the lookups of each of the words but function words, by the rules of its language.

    ASCII words of a request in another alphabet, such as Chinese, are rather English.
    """
    is_other = _is_other_language(words)
    is_latin = any(
        word < _AFTER_LATIN and (word in OTHER_FUNCTION_WORDS or not word.isascii())
        for word in words
    )
    for word in words:
        if is_other and (is_latin or not word.isascii()):
            if word not in _FUNCTION_WORDS:
                yield _other_forms(word)
        elif word not in FUNCTION_WORDS:
            yield _forms(word)


def _is_other_language(words: Collection[str]) -> bool:
    """Return whether words are rather those of another language than English.

    One Latin word of a short query may be a name, such as `MIT` or `Zoë`, and one with a digit
    may have a unit, such as `40µs`.
    """
    other_letters = [word for word in words if not word.isascii() and not _DIGIT.search(word)]
    other = len(other_letters) + sum(word in OTHER_FUNCTION_WORDS for word in words)
    english = sum(word in FUNCTION_WORDS for word in words)
    return other > max(english, all(word < _AFTER_LATIN for word in other_letters))


def _name_term(name: str) -> Term:
    """Return the term of a normalized name: it is an exact value, or else one word."""
    return Term(min(exact_terms(name), default=word_term(name)))


def _selectivity(lookup: Lookup) -> int:
    """Return the length of the longest term: a longer one is rarer, a beginning is less rare.

    All pairs of CJK characters are equally long, so common characters do not count.
    """
    return max([len(term.text) - _common_in(term.text) + (not term.is_prefix) for term in lookup])


def _common_in(text: str) -> int:
    return 0 if text.isascii() else sum(map(COMMON_CHARACTERS.__contains__, text))


def related_lookups(texts: Sequence[str], asked: RecallQuestion) -> list[Lookup]:
    """Return lookups for the words that most of these texts share; the longest of equals.

    The best messages for a question use further words for the same things, which find others.
    Words of the question, function words and short ones are left out.
    """
    held = Counter(
        stem
        for text in texts
        for stem in {_topic_stem(word) for word in runs(normalize(text[:READ_CHARACTERS]))}
        if stem is not None
    )
    known = {stem_of(word) for word in asked.words}
    shared = [stem for stem, number in held.items() if number > 1 and stem not in known]
    if len(shared) < MOST_RELATED:
        shared = list(held.keys() - known)
    # Finally by the stem itself: the order of a set differs between processes.
    shared.sort(key=lambda stem: (-held[stem], -len(stem), stem))
    return [(Term(word_term(stem), is_prefix=True),) for stem in shared[:MOST_RELATED]]


def similar_lookups(asked: RecallQuestion) -> list[Lookup]:
    """Return lookups for words similar to those of a question, such as `son` for `kids`.

    If the question names a kind of things, one more finds any example of it.
    """
    similar = chain.from_iterable(_SIMILAR.get(lookup, ()) for lookup in asked.lookups)
    others = (lookup for lookup in dict.fromkeys(similar) if lookup not in asked.lookups)
    return list(islice(others, MOST_SIMILAR))


@cached_text(16_384)
def _topic_stem(word: str) -> str | None:
    """Return the stem of a word with a topic; None for function words and short ones.

    Cached, because the best messages of a session share their words with those of the next turn.
    """
    if (
        not LEAST_PREFIX <= len(word) <= WORD_CHARACTERS
        or word in _FUNCTION_WORDS
        or _DIGIT.search(word)
        or is_cjk(word[0])
    ):
        return None
    stem = stem_of(word)
    return stem if len(stem) >= LEAST_PREFIX else None


@cached_text(4_096)
def _forms(word: str) -> tuple[Lookup, ...]:
    """Return the lookups of a word: all words that begin with its stem; for CJK text, its pairs.

    Cached, because words recur between questions.
    """
    return tuple(_each_form(word))


@cached_text(4_096)
def _other_forms(word: str) -> tuple[Lookup, ...]:
    """Return the lookups of a word of another language than English."""
    is_whole = is_cjk(word[0]) or len(word) > WORD_CHARACTERS or _DIGIT.search(word)
    if is_whole or not (begins := beginnings_of(word)):
        return _forms(word)
    return (tuple(Term(word_term(beginning), is_prefix=True) for beginning in begins),)


def _each_form(word: str) -> Iterator[Lookup]:
    if is_cjk(word[0]):
        yield from ((term,) for term in terms_of(word))
        return
    if len(word) > WORD_CHARACTERS or _DIGIT.search(word):
        yield (Term(word_term(word)),)
        return
    # Only an exact form matches the others: `founder` is not a form of `find`.
    base = _BASES.get(word, word)
    if len(base) > 1:
        others = _IRREGULAR.get(stem_of(base), ())
        yield (*_regular(base), *(Term(word_term(form)) for form in others))


def _regular(word: str) -> Iterator[Term]:
    """Yield the terms of the forms that begin with a word's stem."""
    stem = stem_of(word)
    if len(stem) >= LEAST_PREFIX:
        yield Term(word_term(stem), is_prefix=True)
        return
    yield from (Term(word_term(form)) for form in short_forms(word))


_BASES: Final = {form: base for base, *others in IRREGULAR_FORMS for form in others}
"""The base forms of irregular words by their other forms."""
_IRREGULAR: Final = {stem_of(base): others for base, *others in IRREGULAR_FORMS}
"""The other forms of irregular words by the stems of their base forms."""


def _asked_as(words: Sequence[str]) -> Collection[Lookup]:
    """Return the lookups of words and their forms: those of `kid` and `kids` differ."""
    plurals = [f"{word[:-1]}ies" if word[-1] == "y" else f"{word}s" for word in words]
    lookups = dict.fromkeys(chain.from_iterable(map(_each_form, [*words, *plurals])))
    short = [word for word in words if len(stem_of(word)) < LEAST_PREFIX]
    of_forms = chain.from_iterable(map(_each_form, chain.from_iterable(map(short_forms, short))))
    # `moved` asks as `move` does, but `later`, which has a stem of its own, not as `late`.
    return lookups | dict.fromkeys(form for form in of_forms if not form[0].is_prefix)


def _similar_lookups() -> Mapping[Lookup, Sequence[Lookup]]:
    """Return the lookups of similar words by the lookup of each."""
    similar: defaultdict[Lookup, list[Lookup]] = defaultdict(list)
    for words in SIMILAR_WORDS:
        lookups = list(dict.fromkeys(chain.from_iterable(map(_each_form, words))))
        for asked in _asked_as(words):
            similar[asked] += lookups
    examples: defaultdict[str, list[Term]] = defaultdict(list)
    for line in KINDS.splitlines():
        kinds, _, of_kinds = line.partition(":")
        for word in of_kinds.split():
            examples[kinds] += chain.from_iterable(_each_form(word))
    for kinds, terms in examples.items():
        # One lookup, because any of the examples may be meant.
        any_example = tuple(dict.fromkeys(terms))
        for asked in _asked_as(kinds.split()):
            similar[asked].append(any_example)
    return similar


_SIMILAR: Final = _similar_lookups()
