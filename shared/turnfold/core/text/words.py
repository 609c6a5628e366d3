"""What a text is found by: its words, its Chinese, Japanese and Korean characters, and its exact values whole and in part."""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b

EAST = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
"""The characters of languages that put no spaces between words, as a regular expression's class has them."""

LETTER = rf"[^\W_{EAST}]"
WORD_CHARACTERS = 64
"""A longer word is known by so many of its first characters, and by a mark of the whole."""
MOST_BYTES = 600_000
"""Beyond so many bytes of different terms a text is not taken apart: PostgreSQL holds no more for a row."""

_RUNS = re.compile(rf"[{EAST}]+|{LETTER}+")
_ONLY_WORDS = bytes(code if chr(code).isalnum() and code < 128 else 32 for code in range(256))
_FOREIGN = re.compile(r"[^\W\x00-\x7f]")
_BESIDE_A_DIGIT = re.compile(r" (?:(?=[0-9])|(?<=[0-9] ))")
_FIRST = re.compile(r"[a-z0-9]+")
_ASCII_WORD = "abcdefghijklmnopqrstuvwxyz0123456789"
_BEFORE_EAST = "\u2fff"
_IS_EAST = re.compile(rf"[{EAST}]")
# A word with nothing but punctuation behind it is no value: it is passed over as an empty text, and most are such.
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
_ESCAPE = re.compile(rf"\\[ntr]({LETTER}+)")


def normalize(text: str) -> str:
    """The text as it is compared: whatever its case, and full or half its characters' width."""
    return (
        text.lower()
        if text.isascii()
        else unicodedata.normalize("NFKC", _LONG_MARKS.sub(_few_marks, text)).casefold()
    )


MARKS_ON_A_LETTER = 30
"""More say nothing in any language; to put them in order takes time that grows with their square."""
_HALF_WIDTH_MARKS = "\uff9e\uff9f"
_LONG_MARKS = re.compile(rf"(?:[^\w\s\x00-\x7f]|[{_HALF_WIDTH_MARKS}]){{{MARKS_ON_A_LETTER + 1},}}")


def _few_marks(found: re.Match[str]) -> str:
    """A row of signs with no more than so many of them that stand on one letter."""
    kept: list[str] = []
    marks = 0
    for character in found[0]:
        is_mark = unicodedata.combining(character) or character in _HALF_WIDTH_MARKS
        marks = marks + 1 if is_mark else 0
        if marks <= MARKS_ON_A_LETTER:
            kept.append(character)
    return "".join(kept)


def is_cjk(character: str) -> bool:
    """Whether a character belongs to a language without spaces between its words."""
    return character > _BEFORE_EAST and _IS_EAST.match(character) is not None


def runs(text: str) -> list[str]:
    """The words of a folded text in order; a row of eastern characters is one."""
    if _is_plain(text):
        return text.encode("ascii", "replace").translate(_ONLY_WORDS).decode().split()
    return _RUNS.findall(text)


def _is_plain(text: str) -> bool:
    """Whether all its letters and digits are ASCII: most texts are so, and quicker to take apart."""
    return text.isascii() or _FOREIGN.search(text) is None


def terms(text: str) -> frozenset[str] | None:
    """All that a folded text is found by; None when it is more than an index takes. Linear in the text.

    A term that begins with `x` is a word and can be found by its beginning; `y` stands before the mark of something exact.
    """
    words = set(runs(text))
    unusual = {word for word in words if len(word) > WORD_CHARACTERS or word[0] > _BEFORE_EAST}
    found = {f"x{word}" for word in words - unusual}
    for word in unusual:
        if is_cjk(word[0]):
            found.update(_of_east(word))
        else:
            found.update(
                (word_term(word), mark(word)) if len(word) > WORD_CHARACTERS else (word_term(word),)
            )
    found.update(_pairs(text))
    if "\\" in text:
        found.update(word_term(word) for word in _ESCAPE.findall(text))
    for value in _values(text):
        found.update(_of_value(value))
    is_many = len(found) > 2_000 and sum(len(term.encode()) + 12 for term in found) > MOST_BYTES
    return None if is_many else frozenset(found)


def exact_terms(text: str) -> frozenset[str]:
    """What a text is found by, besides its words, that holds this folded query as one whole value."""
    wholes = [_whole(value) for value in _values(text)]
    return frozenset([*_pairs(text), *(mark(whole) for whole in wholes if whole)])


def word_term(word: str) -> str:
    """The term of one word."""
    return f"x{word[:WORD_CHARACTERS]}"


def mark(value: str) -> str:
    """The term of something exact, however long it is."""
    return _short_mark(value) if len(value) <= WORD_CHARACTERS else _marked(value)


def _marked(value: str) -> str:
    return f"y{blake2b(value.encode('utf-8', 'surrogatepass'), digest_size=6).hexdigest()}"


_short_mark = lru_cache(maxsize=4_096)(_marked)
"""A session names the same paths and figures again and again."""


def _values(text: str) -> set[str]:
    """What may be more than a word in a folded text."""
    found = set(_VALUES.findall(text))
    found.discard("")
    return found


def _of_east(row: str) -> Iterator[str]:
    """Each two neighbours, and the last character alone, so that every single one begins a term."""
    for at in range(len(row) - 1):
        yield f"x{row[at : at + 2]}"
    yield f"x{row[-1]}"


def _pairs(text: str) -> Iterator[str]:
    """The marks of each figure and what stands beside it: a unit, a month, a day."""
    if not _DIGIT.search(text):
        return
    if _is_plain(text):
        yield from _plain_pairs(text)
        return
    before, end = "", -2
    for match in _RUNS.finditer(text):
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
    for found in _BESIDE_A_DIGIT.finditer(text):
        space = found.start()
        before = text[text.rfind(" ", 0, space) + 1 : space]
        first, second = before[len(before.rstrip(_ASCII_WORD)) :], _FIRST.match(text, space + 1)
        if first and second:
            yield mark(f"{first} {second[0]}")


def _whole(value: str) -> str | None:
    """A value as one thing, without what merely surrounds it; None when that is but a word."""
    core = value.strip(_EDGES)
    if not core or core == value:
        return value if core and _INNER.search(core) else None
    if _INNER.search(core):
        return core
    edged = value.rstrip(_ENDS).lstrip("*,;")
    return edged if edged != core else None


def _of_value(value: str) -> Iterator[str]:
    """A path, an address, an identifier: whole, and by its parts as far as these are more than words."""
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
