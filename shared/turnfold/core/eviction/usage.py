"""Reported token usage: the calibration factor, and the trigger for a full window."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import median
from typing import Any, Final, NamedTuple

from turnfold.core.eviction.budgets import NO_BUDGETS, Budgets
from turnfold.messages import Message

REPORTS_LOOKED_AT: Final = 60
DIFFERENCES_USED: Final = 20
DIFFERENCES_NEEDED: Final = 3
"""The fewest differences from which a factor is learned."""
COMPACTIONS_LOOKED_AT: Final = 64
FACTOR_AT_LEAST: Final = 0.5
FACTOR_AT_MOST: Final = 2.5
REPORT_AT_MOST: Final = 1_000_000_000
ESCALATIONS: Final = 2
"""After this many evictions in a row by reports, reports fire no more; the second is escalated."""
NEVER_MS: Final = 1 << 60


class UsageReport(NamedTuple):
    """The provider's count for the last call of a turn: its input and its output."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def tokens(self) -> int:
        """The least tokens of the next call if nothing leaves the window."""
        return self.prompt_tokens + self.completion_tokens


def read_report(usage: Mapping[str, Any] | None) -> UsageReport | None:
    """Read a turn's `usage` in the format of OpenAI or Anthropic; None if it is unusable."""
    if not usage:
        return None
    prompt = _number(usage, "prompt_tokens")
    if prompt is None and (prompt := _number(usage, "input_tokens")) is not None:
        # Anthropic counts cached input apart; it fills the window all the same.
        prompt += sum(
            _number(usage, name) or 0
            for name in ("cache_read_input_tokens", "cache_creation_input_tokens")
        )
    if not prompt:
        return None
    written = _number(usage, "completion_tokens")
    return UsageReport(
        prompt, (_number(usage, "output_tokens") if written is None else written) or 0
    )


def _number(usage: Mapping[str, Any], name: str) -> int | None:
    value = usage.get(name)
    is_number = (
        isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= REPORT_AT_MOST
    )
    return value if is_number else None


# --- the factor


class ReportDelta(NamedTuple):
    """The difference between two consecutive reports of one session and one model.

    `grown_tokens` is the growth by the provider's count, `counted_tokens` by ours. `since_ms` is
    the earliest time at which the first call can have begun, `until_ms` the time of the later
    report, `seq` its stream sequence.
    """

    session: int
    seq: int
    since_ms: int
    until_ms: int
    grown_tokens: int
    counted_tokens: int


def calibration_factor(
    newest_first: Sequence[ReportDelta], compactions_ms: Mapping[int, Sequence[int]]
) -> float:
    """Return the ratio of the provider's count to ours: the median of the newest differences.

    A difference is usable if the window grew, and no compaction of its session began or ended in
    between. `compactions_ms` are the times of the newest compactions per session. Returns 1 if too
    little is known.
    """
    usable = (
        difference.grown_tokens / difference.counted_tokens
        for difference in newest_first
        if difference.grown_tokens > 0
        and difference.counted_tokens > 0
        and not _saw_a_compaction(difference, compactions_ms.get(difference.session, ()))
    )
    ratios = list(islice(usable, DIFFERENCES_USED))
    if len(ratios) < DIFFERENCES_NEEDED:
        return 1.0
    # Bounded, because reports come from clients, and the median, because one may be forged.
    return round(min(max(median(ratios), FACTOR_AT_LEAST), FACTOR_AT_MOST), 4)


def _saw_a_compaction(difference: ReportDelta, moments: Sequence[int]) -> bool:
    """Return whether a compaction may lie between two reports."""
    # Older compactions were not read, and one of them may lie in between.
    if len(moments) >= COMPACTIONS_LOOKED_AT and difference.since_ms < min(moments):
        return True
    return any(difference.since_ms <= moment < difference.until_ms for moment in moments)


# --- the trigger


def usage_trigger(reserve_tokens: int, *, model_window: int) -> int:
    """Return the reported tokens above which messages leave; 0 without a limit.

    At most half of a window is kept in reserve.
    """
    if model_window <= 0 or not reserve_tokens:
        return 0
    return model_window - min(reserve_tokens, model_window // 2)


def relief_limit(reserve_tokens: int, *, model_window: int) -> int:
    """Return the reported tokens up to which a series of evictions by reports has helped.

    Without a limit of the policy, an overflow may still have begun one: then the model's window.
    """
    return usage_trigger(reserve_tokens, model_window=model_window) or model_window


def usage_state(evictions: int) -> str:
    """Return the state of evictions by reports; after `escalated` reports fire no more."""
    return ("calm", "compacted", "escalated")[min(evictions, ESCALATIONS)]


class UsageState(NamedTuple):
    """The newest report of a session, and the evictions that reports caused.

    `seq`, `at_ms` and `tokens` belong to the newest report in stream order. `settled_ms` is when
    the last compaction ended, or far in the future while one is open: older reports describe
    another window. `evictions` counts evictions in a row.
    """

    factor: float = 1.0
    seq: int = 0
    at_ms: int = 0
    tokens: int = 0
    settled_ms: int = -1
    evictions: int = 0

    @property
    def fresh_tokens(self) -> int:
        """The newest reported tokens; 0 if stale, or if evicting did not help."""
        return self.tokens if self.at_ms > self.settled_ms and self.evictions < ESCALATIONS else 0

    def with_reading(self, reading: "UsageReading", limit: int) -> "UsageState":
        """Return the state after one more report; a report within the limit ends a series."""
        # An event that arrives late says nothing about the present window.
        if reading.seq <= self.seq:
            return self
        is_relieved = reading.at_ms > self.settled_ms and reading.tokens <= limit
        # The fields of a reading have the names of the fields here that they replace.
        return self._replace(**reading._asdict(), evictions=0 if is_relieved else self.evictions)

    def moved(self, newest: "UsageReading") -> "UsageState":
        """Return the state after the newest report moved to an earlier sequence."""
        # After an eviction or a retraction, no report before it counts.
        return self._replace(**newest._replace(tokens=newest.tokens * (self.tokens > 0))._asdict())

    def evicted(self, *, by_report: bool, factor: float) -> "UsageState":
        """Return the state after an eviction, which makes earlier reports stale."""
        return self._replace(
            factor=factor, tokens=0, settled_ms=NEVER_MS, evictions=self.evictions + by_report
        )


class UsageReading(NamedTuple):
    """Reported tokens, with the event's stream sequence and time."""

    seq: int
    at_ms: int
    tokens: int


@dataclass(frozen=True, slots=True)
class UsageInput:
    """Usage of a session when a batch of its events is stored.

    `gauge` is the state before the batch. `readings` are reports by stream sequence. `times` are
    the times of events by sequence (ms since 1970); those in `reports` report usage alone, those in
    `overflows` that a call was too long. `learn` returns the factor after an eviction, given the
    sequences of the newest live message and of the event, and the time. `budgets` are those of
    the session's requested windows.
    """

    gauge: UsageState = field(default_factory=UsageState)
    readings: Mapping[int, UsageReading] = field(default_factory=dict)
    learn: Callable[[int, int, int], float] | None = None
    times: Mapping[int, int] = field(default_factory=dict)
    reports: frozenset[int] = frozenset()
    overflows: frozenset[int] = frozenset()
    budgets: Budgets = NO_BUDGETS

    def time_of(self, seq: int, arrived: Sequence[Message]) -> int:
        """Return the time of an event, given its messages (ms since 1970)."""
        return arrived[-1].created_at_ms if arrived else self.times.get(seq, 0)

    def is_overflow(self, seq: int, gauge: UsageState) -> bool:
        """Return whether this event reports an overflow that no compaction has answered yet."""
        return seq in self.overflows and self.times[seq] > gauge.settled_ms

    def after(self, seq: int, gauge: UsageState, limit: int) -> UsageState:
        """Return the state after the batch, given the state after the event with this sequence."""
        for later in sorted(self.readings):
            if later > seq:
                gauge = gauge.with_reading(self.readings[later], limit)
        return gauge
