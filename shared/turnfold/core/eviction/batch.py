"""Plan the evictions of a batch of events, with their counts for the audit record.

The store calls `plan_evictions` in the transaction that stores the batch.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from turnfold.core.eviction.budgets import Budgets, largest_budget
from turnfold.core.eviction.choose import Keep, decide_eviction, kept_after
from turnfold.core.eviction.triggers import (
    FiredTrigger,
    SessionLoad,
    Trigger,
    TriggerLimits,
    load_of,
)
from turnfold.core.eviction.usage import UsageInput, UsageState, relief_limit
from turnfold.core.policy.presets import Policy
from turnfold.messages import MESSAGES_PER_EVENT, TOOL, Message, pinnable_in, position_of


@dataclass(frozen=True, slots=True)
class Eviction:
    """One eviction: its trigger, its messages, the load before, and its time (ms since 1970).

    `stays` are the messages that are still live. `gauge` is the usage state afterwards, `seq` the
    event that caused it. `is_escalated` if the fewest possible messages stayed.
    """

    due: FiredTrigger
    evicted: tuple[Message, ...]
    load: SessionLoad
    at_ms: int
    stays: tuple[Message, ...] = ()
    gauge: UsageState = field(default_factory=UsageState)
    seq: int = 0
    is_escalated: bool = False

    @property
    def is_over(self) -> bool:
        """Whether the messages that stayed are still over the limit, as far as counted."""
        return _is_over(self.due, self.load, self.evicted)

    def counts(self) -> dict[str, Any]:
        """Return the numbers for the audit row: the messages that left, and those that stayed."""
        blocks, calls, results = _tally(self.evicted)
        blocks_kept, calls_kept, results_kept = _tally(self.stays)
        return {
            "evicted": len(self.evicted),
            "kept": len(self.stays),
            "blocks_kept": blocks_kept,
            "blocks_dropped": blocks,
            "calls": calls,
            "calls_kept": calls_kept,
            "results": results,
            "results_kept": results_kept,
        }


def _tally(messages: Sequence[Message]) -> tuple[int, int, int]:
    """Count blocks, calls and results, without pinned messages; a call and its results are one."""
    results = len([message for message in messages if message.role is TOOL])
    calls = sum([len(message.calls) for message in messages if message.calls])
    return len(messages) - results - len(pinnable_in(messages)), calls, results


def _is_over(due: FiredTrigger, load: SessionLoad, evicted: Sequence[Message]) -> bool:
    if due.trigger not in (Trigger.TOKENS, Trigger.BUDGET):
        return False
    return (load.tokens - load_of(evicted).tokens) * load.factor > due.budget_tokens


def staying(live: Sequence[Message], evicted: Sequence[Message]) -> tuple[Message, ...]:
    """Return the live messages that stay; mostly the oldest ones leave."""
    if are_oldest(evicted, live):
        return tuple(live[len(evicted) :])
    gone = {message.position for message in evicted}
    return tuple([message for message in live if message.position not in gone])


def are_oldest(evicted: Sequence[Message], live: Sequence[Message]) -> bool:
    """Return whether evicted messages are the first of the live ones; both are in order."""
    most = len(evicted)
    return 0 < most <= len(live) and live[most - 1].position == evicted[-1].position


UNMETERED = UsageInput()


class RestoreHold(NamedTuple):
    """Restored messages stay until the session's `total_tokens` reach `to_tokens`."""

    to_tokens: int = 0
    total_tokens: int = 0


FREE = RestoreHold()
NO_CHANGES: Final[Mapping[int, int]] = MappingProxyType({})


def plan_evictions(
    live: Sequence[Message],
    new_seqs: Iterable[int],
    rounds: int,
    policy: Policy,
    *,
    model_window: int,
    meter: UsageInput = UNMETERED,
    hold: RestoreHold = FREE,
    windows: Mapping[int, int] = NO_CHANGES,
) -> tuple[Eviction, ...]:
    """Decide evictions event by event, so that a batch gives the result of its single events.

    `live` holds the live messages by position, including those of the new events. `rounds` counts
    all rounds since the last eviction. `model_window` is the window before the new events; those in
    `windows` change it, by sequence.
    """
    gauge = meter.gauge
    limits = _Limits(policy, meter.budgets, model_window)
    present, arriving = _before_batch(live, new_seqs, rounds)
    evictions: list[Eviction] = []
    # As it was before the batch: `total_tokens` counts its messages already.
    total = hold.total_tokens - sum(
        [message.tokens for arrived in arriving.values() for message in arrived]
    )
    for seq, arrived in arriving.items():
        at_ms = meter.time_of(seq, arrived)
        is_report = seq in meter.reports
        known = limits.at(at_ms).fired(present.load(gauge, is_overflow=False)) if is_report else ()
        # The event that reports a window is already examined with it.
        limits.window = windows.get(seq, limits.window)
        if seq in meter.readings:
            gauge = gauge.with_reading(meter.readings[seq], limits.relief)
        before = len(present.messages)
        present.add(arrived)
        total += sum([message.tokens for message in arrived])
        is_held = hold.to_tokens > 0 and total < hold.to_tokens
        load = present.load(gauge, is_overflow=meter.is_overflow(seq, gauge))
        fired = limits.at(at_ms).fired(load)
        # A report changes no counts, but may fire a trigger that they did not.
        is_news = is_report and (load.is_overflow or not set(fired) <= set(known))
        if is_held or not (is_news or is_examined(before, len(present.messages))):
            continue
        live_now = present.messages
        choice = _first_choice(
            fired, live_now, policy, load, at_ms=at_ms, is_again=gauge.evictions > 0
        )
        if choice is None:
            continue
        due, evicted, is_escalated = choice
        # The factor takes effect with the eviction, and includes the reports up to here.
        factor = meter.learn(live_now[-1].stream_seq, seq, at_ms) if meter.learn else gauge.factor
        gauge = gauge.evicted(by_report=due.trigger is Trigger.USAGE, factor=factor)
        stays = staying(live_now, evicted)
        eviction = Eviction(due, evicted, load, at_ms, stays, gauge, seq, is_escalated)
        evictions.append(eviction)
        present.remove(eviction)
    return tuple(evictions)


@dataclass(slots=True)
class _Limits:
    """The limits of the triggers over time; `window` is the model's at present."""

    policy: Policy
    budgets: Budgets
    window: int
    _known: dict[tuple[int, int], TriggerLimits] = field(default_factory=dict)

    @property
    def relief(self) -> int:
        """The reported tokens up to which evictions by reports have helped."""
        return relief_limit(self.policy.reserve_tokens, model_window=self.window)

    def at(self, at_ms: int) -> TriggerLimits:
        """Return the limits at a time, without budgets that have expired by then."""
        asked = largest_budget(self.budgets, self.policy, at_ms=at_ms) if self.budgets else 0
        if (self.window, asked) not in self._known:
            self._known[self.window, asked] = TriggerLimits.of(
                self.policy,
                model_window=self.window,
                asked_tokens=asked,
                is_read=bool(self.budgets),
            )
        return self._known[self.window, asked]


@dataclass(slots=True)
class _LiveMessages:
    """The live messages after each event, and their counts without pinned messages.

    Mutable, so that each event costs only its own messages.
    """

    messages: list[Message] = field(default_factory=list)
    count: int = 0
    tokens: int = 0
    rounds: int = 0

    def add(self, arrived: Sequence[Message]) -> None:
        """Add the messages of one event."""
        present = self.messages
        # Nearly always: sorting thousands of messages for each event would be quadratic.
        is_in_order = not present or not arrived or arrived[0].position > present[-1].position
        present += arrived
        if not is_in_order:
            present.sort(key=_position)
        for message in arrived:
            if message.index or not message.role.is_system:
                self.count += 1
                self.tokens += message.tokens
                self.rounds += message.is_request

    def load(self, gauge: UsageState, *, is_overflow: bool) -> SessionLoad:
        """Return the load that triggers examine."""
        return SessionLoad(
            self.count,
            self.tokens,
            self.rounds,
            gauge.factor,
            gauge.fresh_tokens,
            is_overflow,
        )

    def remove(self, eviction: Eviction) -> None:
        """Remove evicted messages and start counting rounds again."""
        left = load_of(eviction.evicted)
        self.messages = list(eviction.stays)
        self.count -= left.messages
        self.tokens -= left.tokens
        self.rounds = 0


def _before_batch(
    live: Sequence[Message], new_seqs: Iterable[int], rounds: int
) -> tuple[_LiveMessages, Mapping[int, list[Message]]]:
    """Separate the live messages from those of the new events, which are returned by sequence."""
    arriving: dict[int, list[Message]] = {seq: [] for seq in sorted(new_seqs)}
    first_seq = next(iter(arriving), 0)
    # Nearly all earlier messages also precede the first event of the batch.
    until = bisect_left(live, position_of(first_seq, 0), key=_position)
    old = list(live[:until])
    for message in live[until:]:
        arrived = arriving.get(message.position // MESSAGES_PER_EVENT)
        if arrived is not None:
            arrived.append(message)
            # The caller has counted it already, and `add` counts it with its event.
            rounds -= message.is_request
        else:
            old.append(message)
    before = load_of(old)
    return _LiveMessages(old, before.messages, before.tokens, rounds), arriving


def _first_choice(
    fired: Iterable[FiredTrigger],
    live: Sequence[Message],
    policy: Policy,
    load: SessionLoad,
    *,
    at_ms: int,
    is_again: bool,
) -> tuple[FiredTrigger, tuple[Message, ...], bool] | None:
    """Return the first trigger that gains enough, what leaves, and whether that is escalated.

    If they leave the limit exceeded, the choice is escalated. So is one by reports if `is_again`:
    reports have caused the eviction before this one. None if no trigger gains enough.
    """
    for due in fired:
        evicted: tuple[Message, ...] = ()
        is_escalated = due.trigger is Trigger.USAGE and is_again
        if not is_escalated:
            keep = kept_after(policy, due, len(live), load.factor)
            evicted = decide_eviction(live, policy, due.trigger, now_ms=at_ms, keep=keep)
            is_escalated = bool(evicted) and _is_over(due, load, evicted)
        if is_escalated:
            least = Keep(0, 0, policy.keep_at_most_messages)
            tight = decide_eviction(live, policy, due.trigger, now_ms=at_ms, keep=least)
            if tight:
                return due, tight, True
        if evicted:
            return due, evicted, False
    return None


_position = attrgetter("position")

EVERY_EVENT_BELOW: Final = 1_024
"""With more live messages, not every event is examined: each examination is linear in them."""


def is_examined(before: int, after: int) -> bool:
    """Return whether this growth of live messages is examined; if not, no part of it is.

    The decision depends on counts alone, so that it does not depend on the batch.
    """
    if after < EVERY_EVENT_BELOW:
        return True
    # Twice as many live messages are examined half as often: each message costs about the same.
    step = 1 << (after.bit_length() - EVERY_EVENT_BELOW.bit_length() + 1)
    return before // step != after // step
