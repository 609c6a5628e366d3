"""Find the lines of a text with names: of files, functions, fields, ids, and exact numbers.

Names are found by their shape, in time linear in the text.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

LINE_CHARACTERS: Final = 200
"""Longer lines are divided."""
LEAST_NAME: Final = 5
_ENDINGS: Final = (
    "pyi?|[cm]?jsx?|tsx?|jsonl?|toml|ya?ml|mdx?|txt|rst|html?|s?css|sh|bash|sql|go|rs|java|kt|[ch]"
    "|cc|[ch]pp|cs|rb|php|exs?|heex|swift|lua|xml|svg|[ct]sv|lock|cfg|ini|conf|env|log|ipynb|proto"
    "|tf|vue|db|sqlite|patch|diff|png|jpe?g|pdf|gz|zip|whl"
)
_NAME: Final = re.compile(
    r"\bhttps?://[^\s\"'<>`()\[\]{}|\\^]{2,300}+"
    # a path
    r"|(?<![\w./@+~-])(?>(?:~?/|\.{1,2}/)?)(?>(?:[\w@.+-]++/)+)[\w@.+-]*+"
    # a file
    rf"|(?<![\w-])[\w-]++\.(?:{_ENDINGS})\b(?![\w/(-])"
    # a name in code, as snake_case, camelCase or PascalCase
    r"|(?<!\w)(?:_*+[A-Za-z][A-Za-z0-9]*+_\w++|[a-z][a-z0-9]*+[A-Z]\w++|[A-Z][a-z0-9]++[A-Z]\w++)"
    # letters or signs with digits, such as an id, a date, or a commit
    r"|(?<![\w-])(?=[A-Za-z-]*+\d)[\w-]{6,64}+(?![\w-])"
    # figures
    r"|[$€£¥]\d[\d,]*+(?>(?:\.\d++)?)"
    r"|(?<![\w.,:/-])\d{1,3}(?:\.\d{1,5}){2,3}|(?<![\w.,:/-])\d{4,}+",
    re.ASCII,
)
_HINT: Final = re.compile(r"[\d/_]|\.\w|[a-z0-9][A-Z]", re.ASCII)
"""Every name has a digit, a slash, an underscore, a letter after a dot, or a capital within."""
_LINE: Final = re.compile(rf"[^\n]{{{LEAST_NAME},}}")
"""A line that is long enough for a name: a text may consist of empty ones."""
_BREAKS: Final = (" ", ",", ";")


class NamedLine(NamedTuple):
    """A line of a text that begins at the character `start`, and the names in it."""

    start: int
    text: str
    names: frozenset[str]


def names_in(text: str) -> frozenset[str]:
    """Return the names in a text."""
    # Names have no spaces. The long pattern tries each of its kinds at each character of a word.
    words = " ".join([word for word in text.split() if _HINT.search(word)])
    return frozenset(
        [name for match in _NAME.findall(words) if len(name := match.rstrip(".,;:-")) >= LEAST_NAME]
    )


def named_lines(text: str) -> Iterator[NamedLine]:
    """Yield each line with a name that no earlier line contains; a long line in pieces."""
    known: set[str] = set()
    for line in _LINE.finditer(text):
        for at, piece in _pieces(line[0]):
            # Every set contains the empty one, so a piece without names is skipped, too.
            if len(piece) >= LEAST_NAME and not known.issuperset(names := names_in(piece)):
                known |= names
                yield NamedLine(line.start() + at, piece, names)


def _pieces(line: str) -> Iterator[tuple[int, str]]:
    """Yield a line in pieces without spaces around them, divided at a space or after a comma."""
    at = 0
    while len(line) - at > LINE_CHARACTERS:
        middle, end = at + LINE_CHARACTERS // 2, at + LINE_CHARACTERS
        found = max(line.rfind(mark, middle, end) for mark in _BREAKS)
        end = found + 1 if found > 0 else end
        yield _stripped(at, line[at:end])
        at = end
    yield _stripped(at, line[at:])


def _stripped(at: int, piece: str) -> tuple[int, str]:
    return at + len(piece) - len(piece.lstrip()), piece.strip()
