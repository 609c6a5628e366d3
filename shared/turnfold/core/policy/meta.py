"""Recognize user messages that a program wrote without marking them, by how they begin."""

from functools import lru_cache

from turnfold.core.policy.presets import Policy


def is_written_by_program(text: str, policy: Policy) -> bool:
    """Return whether a user message begins like one of the policy's `meta_prefixes`."""
    return text.lstrip().startswith(_prefixes(policy.meta_prefixes))


@lru_cache(maxsize=1_024)
def _prefixes(separated: str) -> tuple[str, ...]:
    # An empty prefix would match every message.
    return tuple(prefix for part in separated.split(";") if (prefix := part.strip()))
