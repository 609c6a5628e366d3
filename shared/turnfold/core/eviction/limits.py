"""The size of a model's window as providers report it."""

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

from turnfold.core.policy.presets import Policy

LIMIT_AT_LEAST: Final = 1_024
"""The smallest window that a report can set, in tokens."""
MODELS_AT_MOST: Final = 16
"""The most models of a session whose limits are known at once."""


class LimitReport(NamedTuple):
    """The size that a provider named for the window of a model, with the event's sequence."""

    model: str
    seq: int
    limit_tokens: int


def newest_limits(newest_first: Iterable[LimitReport]) -> Mapping[str, LimitReport]:
    """Return the newest report of each model, of at most `MODELS_AT_MOST` models."""
    newest: dict[str, LimitReport] = {}
    for report in newest_first:
        if len(newest) == MODELS_AT_MOST:
            break
        newest.setdefault(report.model, report)
    return newest


class WindowChanges(NamedTuple):
    """The limit of a session's model before a batch of events, and after each that changes it."""

    before: int | None = None
    after: Mapping[int, int] = MappingProxyType({})


def changes_in_batch(
    before: int | None, events: Iterable[tuple[int, int | None, int]]
) -> WindowChanges:
    """Return how events change the limit of a model, in order of the stream.

    Each event has its sequence, the limit that it reports, if any, and the prompt tokens of a call
    that succeeded (0 without one).
    """
    limit, after = before, {}
    for seq, limit_tokens, prompt_tokens in events:
        if limit_tokens is not None:
            limit = after[seq] = limit_tokens
        elif limit is not None and prompt_tokens > limit:
            limit = after[seq] = prompt_tokens
    return WindowChanges(before, after)


def limited_window(window_tokens: int, limit_tokens: int | None, policy: Policy) -> int:
    """Return the window of a model, given the limit that was learned for it in this session.

    The smaller of both counts. An explicit `context_window` of the policy counts alone.
    """
    if limit_tokens is None or policy.context_window is not None:
        return window_tokens
    return min(window_tokens, max(limit_tokens, LIMIT_AT_LEAST))


@lru_cache(maxsize=1_024)
def read_limits(stored: str | None) -> Mapping[str, int]:
    """Return the limits of a session by model, in tokens, from the JSON of its row."""
    return MappingProxyType(json.loads(stored) if stored else {})
