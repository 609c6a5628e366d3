"""Keep the text of a message from reading like the labels of a recall block.

A block says who spoke at the start of a line, and texts have several lines: what a tool printed
could pass for the words of the user.
"""

import re
from typing import Final

_LABEL: Final = re.compile(
    r"[\n\r\x0b\x0c\x85\u2028\u2029]"
    r"(?=[ \u200b-\u200f\u2060\ufeff]?"
    r"(?:\[\d+[\],]"
    r"|(?i:system|developer|user|human|assistant|ai|model|tool|function)"
    r"(?:[ \t]?[:：]|, in part:| called )"
    r"|\S{1,64} returned:))"
)


def without_labels(text: str) -> tuple[str, int]:
    """Quote each line, from the second on, that begins like a speaker or a heading of a block.

    Returns the text, and how many lines were quoted.
    """
    return (text, 0) if text.isprintable() else _LABEL.subn(r"\g<0>> ", text)


def is_label(line: str) -> bool:
    """Return whether a line would be quoted."""
    return _LABEL.match(f"\n{line}") is not None
