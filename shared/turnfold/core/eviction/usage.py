"""What providers report to have counted: the factor it teaches, and whether a window has become too full."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, NamedTuple

REPORTS_LOOKED_AT: Final = 60
DIFFERENCES_USED: Final = 20
DIFFERENCES_NEEDED: Final = 3
"""A single difference may be an accident: below so many nothing is learnt."""
COMPACTIONS_LOOKED_AT: Final = 8
FACTOR_AT_LEAST: Final = 0.5
FACTOR_AT_MOST: Final = 2.5
REPORT_AT_MOST: Final = 1_000_000_000
ESCALATIONS: Final = 2
"""After so many evictions in a row that a report set off, the second of them escalated, reports set off no more."""
NEVER_MS: Final = 1 << 60


class UsageReport(NamedTuple):
    """What a provider counted for the last call of a turn: all that it was sent, and what it wrote."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def tokens(self) -> int:
        """What the next call is sent at least, if nothing leaves the window."""
        return self.prompt_tokens + self.completion_tokens


def read_report(usage: Mapping[str, Any] | None) -> UsageReport | None:
    """The report in a turn's `usage`, in the words of OpenAI or of Anthropic; None where it says nothing that can be meant."""
    if not usage:
        return None
    prompt = _number(usage, "prompt_tokens")
    if prompt is None and (prompt := _number(usage, "input_tokens")) is not None:
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
    """By how much two reports of one session differ that follow each other, both of one model.

    `grown_tokens` is what the later one counted more, `counted_tokens` what was counted here for what stands between
    them: from the earlier answer to right before the later one. `since_ms` is when the call that the earlier one speaks
    of can have begun at the earliest, `until_ms` when the later report came, `seq` its place in the stream.
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
    """By how much a model counts more than the vocabulary does: the median of what the newest usable differences say.

    A difference is usable when the window grew and no compaction of its session began or ended meanwhile;
    `compactions_ms` are those moments of the newest compactions of each session. 1 is said where too little is known.
    """
    ratios: list[float] = []
    for one in newest_first:
        if (
            one.grown_tokens <= 0
            or one.counted_tokens <= 0
            or _saw_a_compaction(one, compactions_ms.get(one.session, ()))
        ):
            continue
        ratios.append(one.grown_tokens / one.counted_tokens)
        if len(ratios) == DIFFERENCES_USED:
            break
    if len(ratios) < DIFFERENCES_NEEDED:
        return 1.0
    return round(min(max(median(ratios), FACTOR_AT_LEAST), FACTOR_AT_MOST), 4)


def _saw_a_compaction(one: ReportDelta, moments: Sequence[int]) -> bool:
    """Whether one lies between the reports; where older ones are not known, what is older than those that are may have seen one."""
    if len(moments) >= COMPACTIONS_LOOKED_AT and one.since_ms < min(moments):
        return True
    return any(one.since_ms <= moment < one.until_ms for moment in moments)


# --- the trigger


def usage_trigger(reserve_tokens: int, *, model_window: int) -> int:
    """The reported tokens above which something has to leave; 0 when none do. At most half a window is kept in reserve."""
    if model_window <= 0 or not reserve_tokens:
        return 0
    return model_window - min(reserve_tokens, model_window // 2)


def usage_state(evictions: int) -> str:
    """In a word what came of the evictions in a row that reports set off; after `escalated` they set off no more."""
    return ("calm", "compacted", "escalated")[min(evictions, ESCALATIONS)]


class UsageState(NamedTuple):
    """How full a session's model said its window was, and what came of it.

    `factor` is the factor in force. `seq`, `at_ms` and `tokens` are those of the newest report by the order of the stream.
    `settled_ms` is when the last compaction was done, and far off while one is not: a report that is not younger
    speaks of a window that is no more. `evictions` counts the evictions in a row that reports set off.
    """

    factor: float = 1.0
    seq: int = 0
    at_ms: int = 0
    tokens: int = 0
    settled_ms: int = -1
    evictions: int = 0

    @property
    def fresh_tokens(self) -> int:
        """What the newest report says of the window as it is; 0 where it is stale, or where acting on it did not help."""
        return self.tokens if self.at_ms > self.settled_ms and self.evictions < ESCALATIONS else 0

    def told(self, reading: "UsageReading | None", limit: int) -> "UsageState":
        """After the report of one more event; one that is within the limit ends a row of evictions."""
        if reading is None or reading.seq <= self.seq:
            return self
        is_relieved = reading.at_ms > self.settled_ms and reading.tokens <= limit
        return self._replace(**reading._asdict(), evictions=0 if is_relieved else self.evictions)

    def moved(self, seq: int, to_seq: int, at_ms: int) -> "UsageState":
        """After the event with this sequence took an earlier place."""
        return self._replace(seq=to_seq, at_ms=at_ms) if self.seq == seq else self

    def evicted(self, *, by_report: bool, factor: float) -> "UsageState":
        """After an eviction: what was reported before is spent."""
        return self._replace(
            factor=factor, tokens=0, settled_ms=NEVER_MS, evictions=self.evictions + by_report
        )


class UsageReading(NamedTuple):
    """The tokens that an event's report gives, and where and when the stream took it."""

    seq: int
    at_ms: int
    tokens: int


@dataclass(frozen=True, slots=True)
class UsageInput:
    """What is known of a session's usage when a batch of its events is stored.

    `gauge` is from before the batch, `readings` are those of its events by stream sequence. `learn` says the factor after
    an eviction: given the newest sequence of the session and the moment (ms since 1970).
    """

    gauge: UsageState = field(default_factory=UsageState)
    readings: Mapping[int, UsageReading] = field(default_factory=dict)
    learn: Callable[[int, int], float] | None = None

    def after(self, seq: int, gauge: UsageState, limit: int) -> UsageState:
        """The gauge after all events of the batch, given what it was after the one with this sequence."""
        for later in sorted(self.readings):
            if later > seq:
                gauge = gauge.told(self.readings[later], limit)
        return gauge
