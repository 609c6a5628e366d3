"""Headers for the proxy and of it; none of them reaches the provider."""

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
