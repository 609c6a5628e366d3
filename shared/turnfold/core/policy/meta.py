"""Recognize unmarked user messages of programs by their first words."""

import re
from functools import lru_cache
from typing import Any, Final

from turnfold.core.policy.presets import Policy
from turnfold.messages import META_MARK, Json

_ESCAPED: Final = re.compile(r'["\\/\x00-\x1f]')
"""The characters that JSON escapes, or may escape, otherwise than by `\\u`."""


def is_written_by_program(text: str, policy: Policy) -> bool:
    """Return whether a user message begins like one of the policy's `meta_prefixes`."""
    return text.lstrip().startswith(_prefixes(policy.meta_prefixes))


def may_be_written_by_program(body: str, policy: Policy) -> bool:
    """Return False if the JSON of a user message excludes that it begins like one of them.

    Parsing each message would take a tenth of the time of storing it.
    """
    # Any character of a prefix may be escaped, and the prefix is then not found as text.
    if "\\u" in body:
        return True
    return any(prefix in body for prefix in _verbatim(policy.meta_prefixes))


def without_mark(body: Json) -> dict[str, Any]:
    """Return a copy of a message without `is_meta`.

    A member of this name that is not a boolean is not ours, and stays.
    """
    return {
        name: value
        for name, value in body.items()
        if name != META_MARK or not isinstance(value, bool)
    }


@lru_cache(maxsize=1_024)
def _prefixes(separated: str) -> tuple[str, ...]:
    # An empty prefix would match every message.
    return tuple(prefix for part in separated.split(";") if (prefix := part.strip()))


@lru_cache(maxsize=1_024)
def _verbatim(separated: str) -> tuple[str, ...]:
    # Only up to the first character that JSON may escape; an empty beginning is in every body.
    return tuple({_ESCAPED.split(prefix, 1)[0] for prefix in _prefixes(separated)})
