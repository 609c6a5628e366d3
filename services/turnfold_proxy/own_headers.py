"""Headers that the proxy reads and adds; none of them reaches the provider."""

from collections.abc import Mapping
from typing import Final

AGENT: Final = "x-turnfold-agent"
SESSION: Final = "x-turnfold-session"
BUDGET: Final = "x-turnfold-budget"
TOOLS: Final = "x-turnfold-tools"
TOKENS: Final = "x-turnfold-tokens"
VERSION: Final = "x-turnfold-version"
BYPASSED: Final = "x-turnfold-bypassed"
LOOKUPS: Final = "x-turnfold-lookups"
PREFIX: Final = "x-turnfold-"


def identifier(headers: Mapping[str, str], name: str) -> str | None:
    """Return the id in a header: UTF-8 as in paths, or Latin-1, as some clients write."""
    text = headers.get(name)
    try:
        # Servers read every header as Latin-1.
        return text if text is None else text.encode("latin-1").decode()
    except UnicodeDecodeError:
        return text


def wants_tools(headers: Mapping[str, str], *, default: bool) -> bool:
    """Return whether the model of a call may look things up."""
    match headers.get(TOOLS, "").strip().lower():
        case "on" | "1":
            return True
        case "off" | "0":
            return False
        case _:
            return default


def budget(headers: Mapping[str, str]) -> int | None:
    """Return the tokens that a call may have, or None if its header says nothing valid."""
    text = headers.get(BUDGET, "").strip()
    return int(text) if text.isascii() and text.isdecimal() and 0 < len(text) < 10 else None
