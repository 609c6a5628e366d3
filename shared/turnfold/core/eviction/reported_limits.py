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


class LimitedModel(NamedTuple):
    """The model of a session, and the limit that was learned for it, if any."""

    model: str | None = None
    limit_tokens: int | None = None


class WindowChanges(NamedTuple):
    """A session's model and its limit before a batch of events, and after each that changes it."""

    before: LimitedModel = LimitedModel()
    after: Mapping[int, LimitedModel] = MappingProxyType({})

    def at(self, seq: int) -> LimitedModel:
        """Return the model and its limit after the event with this sequence."""
        # `after` is in order of the stream, so the last of the earlier changes is in force.
        earlier = [changed_seq for changed_seq in self.after if changed_seq <= seq]
        return self.after[earlier[-1]] if earlier else self.before


class ModelCall(NamedTuple):
    """An event that names a model: the limit that it reports, if any, and its successful call.

    `prompt_tokens` are those of the call, and 0 without one.
    """

    seq: int
    model: str
    limit_tokens: int | None
    prompt_tokens: int


def changes_in_batch(
    model: str | None, model_seq: int, limits: Mapping[str, int], calls: Iterable[ModelCall]
) -> WindowChanges:
    """Return how events change the model and its limit, in order of the stream.

    The event at `model_seq` named the model before; earlier ones do not change it.
    """
    known, after = dict(limits), {}
    before = current = LimitedModel(model, known.get(model or ""))
    for call in calls:
        if call.limit_tokens is not None:
            known[call.model] = call.limit_tokens
        elif call.prompt_tokens > known.get(call.model, call.prompt_tokens):
            # The call succeeded, so the model reads at least as much.
            known[call.model] = call.prompt_tokens
        name = call.model if call.seq >= model_seq else current.model
        limited = LimitedModel(name, known.get(name or ""))
        if limited != current:
            after[call.seq] = current = limited
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
