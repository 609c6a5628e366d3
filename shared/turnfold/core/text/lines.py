"""Make text fit to be shown: without control characters, and shortened to one line."""

import re
from typing import Any

from turnfold.core.text.defuse import defused
from turnfold.core.text.json_text import with_texts

_UNPRINTABLE = re.compile(
    r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufeff]"
)

# In a longer one, the search for its beginning ends.
_WORD_CHARACTERS = 400
_PATH = re.compile(r"\S*[/\\]\S*")


def printable(text: str) -> str:
    """Remove terminal codes, control characters and lone surrogates.

    Databases and models reject some of them.
    """
    return text if text.isascii() and text.isprintable() else _UNPRINTABLE.sub("", text)


def printable_json(value: Any) -> Any:
    """Remove from a JSON value the characters that `printable` removes; escapes may hide them."""
    return with_texts(value, printable, names=True)


def one_line(text: str, characters: int) -> str:
    """Return the text on one line, at most `characters` long."""
    line = " ".join(text.split())
    return line if len(line) <= characters else line[: characters - 1] + "…"


def whole_words(text: str, max_characters: int) -> str:
    """Return the beginning of a text, of at most this many characters, without half a word."""
    if len(text) <= max_characters or text[max_characters].isspace():
        return text[:max_characters]
    least = max(0, max_characters - _WORD_CHARACTERS)
    end = max(text.rfind(mark, least, max_characters) for mark in " \n\t")
    return text[: end if end >= 0 else max_characters]


def clip(text: str, max_characters: int) -> str:
    """Shorten a text to one line of at most this many characters, as `clip_exact` does."""
    return clip_exact(" ".join(text[: max_characters * 4].split()), max_characters)


def clip_exact(text: str, max_characters: int) -> str:
    """Shorten a text to at most this many characters, without changing the others.

    A cut shows as an ellipsis and prefers the end of a word. Markup is defused before the cut,
    because half a marker is not recognized afterwards.
    """
    text = text[: max_characters * 4].strip()
    if len(text) <= max_characters:
        return text
    cut = defused(text)[: max_characters - 1]
    least = max_characters * 2 // 3
    space = max(cut.rfind(" ", least), cut.rfind("\n", least))
    return (cut[:space] if space > 0 else cut).rstrip() + "…"


def clip_path(text: str, max_characters: int) -> str:
    """Shorten a text as `clip_exact` does, but a path or an address in its middle.

    Its end names the file. Otherwise all files of one folder would look like one.
    """
    if len(text) <= max_characters or not _PATH.fullmatch(text):
        return clip_exact(text, max_characters)
    path = defused(text)
    end = (max_characters - 1) // 3
    return f"{path[: max_characters - 1 - end]}…{path[len(path) - end :]}"
