"""Context windows of models, from litellm's model map or the shipped copy of its windows.

litellm itself is never imported.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, Final

UNKNOWN_WINDOW_TOKENS: Final = 128_000
NAME_CHARACTERS: Final = 300
CHATTING: Final = frozenset({"chat", "responses", "completion", None})

EDITION = re.compile(
    r"([-@]\d{4}-\d\d-\d\d|[-@]\d{8}|-latest|-v\d+(:\d+)?|:[\w.-]*|\[\w+\]|@\w+)$", re.ASCII
)
PROVIDER = re.compile(r"[a-z][a-z_-]*:(?=[a-z])")
"""Matches `openai:gpt-4.1`, which litellm spells `openai/gpt-4.1`."""
VENDOR = re.compile(r"[a-z][a-z-]*\.(?=[a-z])")


SHIPPED_MAP: Final = Path(__file__).with_name("model_windows.json")
"""Names and windows of the locked litellm's map; `scripts/model-windows` writes it."""


def installed_map() -> Path:
    """Return the path of the map of an installed litellm, which may be newer, or of ours."""
    return litellm_map() or SHIPPED_MAP


def litellm_map() -> Path | None:
    """Return the path of litellm's model map; None if it is not installed."""
    try:
        spec = find_spec("litellm")
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(folder, "model_prices_and_context_window_backup.json")
        if file.is_file():
            return file
    return None


class ModelWindows:
    """The context window of any model, in tokens. Unknown models have 128,000.

    The map is reduced to names and numbers. It is read at the first call if `read` was not called.
    """

    def __init__(self, *, locate: Callable[[], Path] = installed_map) -> None:
        self._locate = locate
        self._known: Mapping[str, int] | None = None

    def __call__(self, model: str | None, *, override: int | None = None) -> int:
        """Return the window of a model, as a provider, a gateway or a person spells it.

        `override` replaces the map; 0 is a valid window.
        """
        if override is not None:
            return override
        known = self.known(model)
        return UNKNOWN_WINDOW_TOKENS if known is None else known

    def read(self) -> Mapping[str, int]:
        """Return the map; the first call takes about 30 ms, and 2 MB."""
        if self._known is None:
            self._known = _with_aliases(read_map(self._locate()))
        return self._known

    def known(self, model: str | None) -> int | None:
        """Return the window that the map has for a model; None if it has none."""
        if not isinstance(model, str) or len(model) > NAME_CHARACTERS:
            return None
        known, name = self.read(), model.strip().lower()
        without = PROVIDER.match(name)
        names = chain(_spellings(name[without.end() :]) if without else (), _spellings(name))
        return next((known[spelling] for spelling in names if spelling in known), None)


@cache
def installed_windows() -> ModelWindows:
    """Return the windows of `installed_map`, once for the process and its copies."""
    return ModelWindows()


def read_map(file: Path) -> Mapping[str, tuple[int, bool]]:
    """Return each name of a map with its window, and whether it is a chat model.

    Empty if the map cannot be read.
    """
    try:
        entries = json.loads(file.read_bytes(), object_hook=_reduced)
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(entries, dict):
        return {}
    return {name.lower(): entry for name, entry in entries.items() if isinstance(entry, tuple)}


def _reduced(entry: dict[str, Any]) -> Any:
    """Return the needed part of one entry, so that its many prices are dropped while reading."""
    for key in ("max_input_tokens", "max_tokens"):
        tokens = entry.get(key)
        if isinstance(tokens, int) and tokens > 0:
            return tokens, entry.get("mode") in CHATTING
    return entry if any(isinstance(value, tuple) for value in entry.values()) else None


def _with_aliases(entries: Mapping[str, tuple[int, bool]]) -> Mapping[str, int]:
    """Add aliases. If providers differ on an alias, the smallest window is the safe one."""
    known = {name: tokens for name, (tokens, _) in entries.items()}
    aliases: dict[str, int] = {}
    for name, (tokens, talks) in entries.items():
        if talks:
            for alias in _spellings(name):
                if alias not in known:
                    aliases[alias] = min(tokens, aliases.get(alias, tokens))
    return {**aliases, **known}


def _spellings(name: str) -> Iterator[str]:
    """Yield spellings to try, the most exact first: as given, without provider, without edition."""
    parts = name.split("/")
    paths = ["/".join(parts[start:]) for start in range(len(parts))]
    yield from paths
    stem = paths[-1].removeprefix("ft:")
    while True:
        yield stem
        bare = stem
        while vendor := VENDOR.match(bare):
            bare = bare[vendor.end() :]
            yield bare
        yield bare.replace(".", "-")
        shorter = EDITION.sub("", stem)
        if shorter == stem or not shorter:
            return
        stem = shorter
