"""Split a text into index terms: words, CJK characters, and exact values whole and in part."""

import re
import unicodedata
from collections.abc import Iterator
from hashlib import blake2b

from turnfold.core.text.caches import cached_text

EAST = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u1000-\u103f\u1050-\u109d\u1780-\u17d3"
    "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Characters of languages without spaces between words, for a regular expression class."""

_MARKS = "".join(
    chr(code) for code in range(0x300, 0xAC00) if unicodedata.category(chr(code)) in ("Mn", "Mc")
)
"""Vowel signs and other marks. They are parts of words, but no letters for Python."""
LETTER = rf"[^\W_{EAST}]"
# A mark on an ASCII letter ends the word, because plain texts are split by ASCII letters alone.
_WORD = rf"{LETTER}+(?:(?<=[^\x00-\x7f])[{_MARKS}]+{LETTER}*)*"
WORD_CHARACTERS = 64
"""A longer word is indexed by this many first characters, and by a digest of the whole."""
MOST_BYTES = 600_000
"""The most bytes of different terms that are indexed; PostgreSQL stores no more per row."""

_RUNS = re.compile(rf"(?=\w)[{EAST}]+|{LETTER}+")
_MARK = re.compile(rf"[{_MARKS}]")
_MARKED_RUNS = re.compile(rf"(?=\w)[{EAST}]+|{_WORD}")
_ONLY_WORDS = bytes(code if chr(code).isalnum() and code < 128 else 32 for code in range(256))
_FOREIGN = re.compile(r"[^\W\x00-\x7f]")
_BESIDE_A_DIGIT = re.compile(r" (?:(?=[0-9])|(?<=[0-9] ))")
_FIRST = re.compile(r"[a-z0-9]+")
_ASCII_WORD = "abcdefghijklmnopqrstuvwxyz0123456789"
_BEFORE_EAST = "\u0e00"
_IS_EAST = re.compile(rf"[{EAST}]")
# A word followed only by punctuation, as most are, is not a value; it matches as an empty text.
_VALUES = re.compile(
    r"[a-z0-9]++[.,:;?*=&]*+(?![a-z0-9_/\\@#~%+$€£¥￥-])|([a-z0-9_./\\:@#~%+*$€£¥=?&,;-]{2,})"
)
_VALUE_PARTS = re.compile(r"[=,;?&:#@*$\\]+")
_EDGES = "_./\\:@#~%+*$€£¥=?&,;-"
_INNER = re.compile(r"[./\\:@#~%+*$€£¥=?&,;_-]")
_ENDS = ".,:;?*=&"
_MOST_FOLDERS = 8
_DIGIT = re.compile(r"[0-9]")
_DIGITS = frozenset("0123456789")
ESCAPED = re.compile(rf"\\[ntr]({_WORD})")
"""A word after an escaped line end or tab."""


def normalize(text: str) -> str:
    """Return a text for comparison: without case and full-width forms."""
    if text.isascii():
        return text.lower()
    folded = unicodedata.normalize("NFKC", _LONG_MARKS.sub(_few_marks, text)).casefold()
    # Turkish has both, also as capital letters, which lose the difference.
    return folded.replace("i\u0307", "i").replace("\u0131", "i")


MARKS_ON_A_LETTER = 30
"""The most combining marks that are kept; sorting more takes quadratic time."""
# Python takes these for letters, but NFKC turns them into combining marks.
_HALF_WIDTH_MARKS = "\uff9e\uff9f"
_LONG_MARKS = re.compile(rf"(?:[^\w\s\x00-\x7f]|[{_HALF_WIDTH_MARKS}]){{{MARKS_ON_A_LETTER + 1},}}")


def _few_marks(match: re.Match[str]) -> str:
    """Return characters with at most MARKS_ON_A_LETTER combining marks in a row."""
    kept: list[str] = []
    marks = 0
    for character in match[0]:
        is_mark = unicodedata.combining(character) or character in _HALF_WIDTH_MARKS
        marks = marks + 1 if is_mark else 0
        if marks <= MARKS_ON_A_LETTER:
            kept.append(character)
    return "".join(kept)


def is_cjk(character: str) -> bool:
    """Return whether a character belongs to a script without spaces between words."""
    return character > _BEFORE_EAST and _IS_EAST.match(character) is not None


def pairs_of(row: str) -> list[str]:
    """Return the neighbors in a run of CJK characters, or its only character."""
    return [row[at : at + 2] for at in range(len(row) - 1)] or [row]


def runs(text: str) -> list[str]:
    """Return the words of a normalized text in order; a run of CJK characters is one."""
    if _is_plain(text):
        return text.encode("ascii", "replace").translate(_ONLY_WORDS).decode().split()
    return _pattern(text).findall(text)


def _pattern(text: str) -> re.Pattern[str]:
    """Return what matches the words of a text. Most have no marks, and split faster."""
    return _MARKED_RUNS if _MARK.search(text) else _RUNS


def _is_plain(text: str) -> bool:
    """Return whether all letters and digits are ASCII. Most texts are, and split faster."""
    return text.isascii() or _FOREIGN.search(text) is None


def terms(text: str) -> frozenset[str] | None:
    """Return all index terms of a normalized text; None if there are too many. Linear time.

    A term with `x` first is a word and can be found by its beginning. `y` precedes the digest of an
    exact value.
    """
    index_terms = word_terms(text)
    index_terms.update(_pairs(text))
    for value in _values(text):
        index_terms.update(_of_value(value))
    # The first test is cheap, and false for nearly every text.
    is_many = (
        len(index_terms) > 2_000
        and sum(len(term.encode()) + 12 for term in index_terms) > MOST_BYTES
    )
    return None if is_many else frozenset(index_terms)


def word_terms(text: str) -> set[str]:
    """Return the index terms of the words of a normalized text, without its exact values."""
    words = set(runs(text))
    unusual = {word for word in words if len(word) > WORD_CHARACTERS or word[0] > _BEFORE_EAST}
    index_terms = {f"x{word}" for word in words - unusual}
    for word in unusual:
        if is_cjk(word[0]):
            index_terms.update(_of_east(word))
        else:
            index_terms.update(
                (word_term(word), mark(word)) if len(word) > WORD_CHARACTERS else (word_term(word),)
            )
    if "\\" in text:
        index_terms.update(word_term(word) for word in ESCAPED.findall(text))
    return index_terms


def exact_terms(text: str) -> frozenset[str]:
    """Return the terms of a text that contains this normalized query as one value."""
    wholes = [_whole(value) for value in _values(text)]
    return frozenset([*_pairs(text), *(mark(whole) for whole in wholes if whole)])


def word_term(word: str) -> str:
    """Return the term of one word."""
    return f"x{word[:WORD_CHARACTERS]}"


def mark(value: str) -> str:
    """Return the term of an exact value of any length."""
    return _short_mark(value) if len(value) <= WORD_CHARACTERS else _marked(value)


def _marked(value: str) -> str:
    return f"y{blake2b(value.encode('utf-8', 'surrogatepass'), digest_size=6).hexdigest()}"


_short_mark = cached_text(4_096)(_marked)
"""Cached, because a session names the same paths and numbers again and again."""


def _values(text: str) -> set[str]:
    """Yield parts of a normalized text that may be more than a word."""
    values = set(_VALUES.findall(text))
    values.discard("")
    return values


def _of_east(row: str) -> list[str]:
    """Return pairs of neighbors, and the last character, so that each character begins a term."""
    return [f"x{row[at : at + 2]}" for at in range(len(row))]


def _pairs(text: str) -> Iterator[str]:
    """Yield terms of each number with its neighbor: a unit, a month, a day."""
    if not _DIGIT.search(text):
        return
    if _is_plain(text):
        yield from _plain_pairs(text)
        return
    before, end = "", -2
    for match in _pattern(text).finditer(text):
        word, start = match[0], match.start()
        if (
            start - end <= 1
            and (start == end or text[end] == " ")
            and (before[-1] in _DIGITS or word[0] in _DIGITS)
        ):
            first = before[-1] if is_cjk(before[-1]) else before
            second = word[0] if is_cjk(word[0]) else word
            yield mark(f"{first} {second}")
        before, end = word, match.end()


def _plain_pairs(text: str) -> Iterator[str]:
    for match in _BESIDE_A_DIGIT.finditer(text):
        space = match.start()
        before = text[text.rfind(" ", 0, space) + 1 : space]
        first, second = before[len(before.rstrip(_ASCII_WORD)) :], _FIRST.match(text, space + 1)
        if first and second:
            yield mark(f"{first} {second[0]}")


def _whole(value: str) -> str | None:
    """Return a value without surrounding punctuation; None if it is just a word."""
    core = value.strip(_EDGES)
    if not core or core == value:
        return value if core and _INNER.search(core) else None
    if _INNER.search(core):
        return core
    edged = value.rstrip(_ENDS).lstrip("*,;")
    return edged if edged != core else None


def _of_value(value: str) -> Iterator[str]:
    """Yield terms of a path, an address or an identifier, whole and in parts."""
    whole = _whole(value)
    if whole is None:
        return
    yield mark(whole)
    for part in _VALUE_PARTS.split(value):
        core = part.strip(_EDGES)
        if core != whole and _INNER.search(core):
            yield mark(core)
        at = core.find("/")
        for _ in range(_MOST_FOLDERS):
            if at < 0:
                break
            rest = core[at + 1 :].strip(_EDGES)
            if _INNER.search(rest):
                yield mark(rest)
            at = core.find("/", at + 1)
