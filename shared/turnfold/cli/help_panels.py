"""The groups of the help, with the commands that are used most often first."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

COMPLETE_VARIABLE = "_TURNFOLD_COMPLETE"
"""The environment variable with which a shell asks the command for completions."""
GROUPS: Mapping[str, tuple[str, ...]] = {
    "Start": ("up", "demo", "replay", "console", "proxy"),
    "Inspect sessions": ("sessions", "context", "history", "search", "summaries", "audit"),
    "Change sessions": ("compact", "restore", "policy", "erase"),
    "Operate": ("doctor", "deadletters", "keys", "migrate", "worker", "query"),
    "Connect": ("mcp", "completion"),
}
PANELS: Mapping[str, str] = {name: panel for panel, names in GROUPS.items() for name in names}
"""The group of each command."""
_ORDER = {name: number for number, name in enumerate(PANELS)}


def sort_key(name: str) -> tuple[int, str]:
    """Return the place of a command in the help; unknown ones come last."""
    return _ORDER.get(name, len(_ORDER)), name


def close_names(name: str, names: Iterable[str]) -> str:
    """Return a question that suggests similar names; empty if there are none."""
    close = [repr(known) for known in get_close_matches(name, list(names), n=3)]
    return f"did you mean {' or '.join(close)}? " if close else ""
