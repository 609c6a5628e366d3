"""Regular expressions match the same on every Python that is promised."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

from turnfold import core

# Python has no public parser of patterns.
_parser: Any = importlib.import_module("re._parser")
_constants: Any = importlib.import_module("re._constants")
SINGLE = {_constants.LITERAL, _constants.NOT_LITERAL, _constants.IN, _constants.ANY}


def repeated_possessively(parsed: Any) -> Iterator[Any]:
    """Yield what a pattern repeats without going back, at any depth."""
    if isinstance(parsed, tuple) and parsed and parsed[0] is _constants.POSSESSIVE_REPEAT:
        yield parsed[1][2]
    if isinstance(parsed, _parser.SubPattern | tuple | list):
        for part in parsed:
            yield from repeated_possessively(part)


def is_single(repeated: Any) -> bool:
    return len(repeated) == 1 and repeated[0][0] in SINGLE


def test_no_group_is_repeated_possessively() -> None:
    """Before Python 3.11.5, such a group matches too little; an atomic group does not."""
    patterns = [
        (f"{module.name}.{name}", value)
        for module in pkgutil.walk_packages(core.__path__, f"{core.__name__}.")
        for name, value in vars(importlib.import_module(module.name)).items()
        if isinstance(value, re.Pattern)
    ]
    assert len(patterns) > 50
    assert [
        name
        for name, pattern in patterns
        for repeated in repeated_possessively(_parser.parse(pattern.pattern, pattern.flags))
        if not is_single(repeated)
    ] == []
