"""Recognize unmarked user messages of programs by their first words."""

from functools import lru_cache
from typing import Any

from turnfold.core.policy.presets import Policy
from turnfold.messages import META_MARK, Json


def is_written_by_program(text: str, policy: Policy) -> bool:
    """Return whether a user message begins like one of the policy's `meta_prefixes`."""
    return text.lstrip().startswith(_prefixes(policy.meta_prefixes))


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
