"""Keep the text of a message from reading like the labels of a recall block.

A block says who spoke at the start of a line, and texts have several lines: what a tool printed
could pass for the words of the user.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from turnfold.core.text.caches import cached_text

_ROLES: Final = "system|developer|user|human|assistant|ai|model|tool|function"
_ROLE: Final = re.compile(_ROLES, re.IGNORECASE)
_MAX_NAME_CHARACTERS: Final = 64


def speaker_name(body: Mapping[str, Any]) -> str | None:
    """Return the name that a message gives its author, unless it could pass for another label."""
    name = body.get("name")
    if not isinstance(name, str) or len(name) > _MAX_NAME_CHARACTERS:
        return None
    return name if _is_name(name) else None


@cached_text(maxsize=1_024)
def _is_name(text: str) -> bool:
    """Return whether a text is no role. Cached, because few names stand in many messages."""
    name = text.strip()
    return bool(name) and text.isprintable() and not _ROLE.fullmatch(name)


def label_pattern(names: Collection[str]) -> re.Pattern[str]:
    """Return what matches the end of a line before a label: a heading, a role, or one of the names.

    The module `re` caches the pattern.
    """
    speakers = "|".join([_ROLES, *map(re.escape, sorted(names))])
    return re.compile(
        r"[\n\r\x0b\x0c\x85\u2028\u2029]"
        r"(?=[ \u200b-\u200f\u2060\ufeff]?"
        r"(?:\[\d+[\],]"
        rf"|(?i:{speakers})"
        r"(?:[ \t]?[:：]|, in part:| called )"
        r"|\S{1,64} returned:))"
    )


def without_labels(text: str, labels: re.Pattern[str]) -> tuple[str, int]:
    """Quote each line, from the second on, that begins like a speaker or a heading of a block.

    Returns the text, and how many lines were quoted.
    """
    return (text, 0) if text.isprintable() else labels.subn(r"\g<0>> ", text)


def is_label(line: str, labels: re.Pattern[str]) -> bool:
    """Return whether a line would be quoted."""
    return labels.match(f"\n{line}") is not None
