"""Plan the evictions of a batch of events, with their counts for the audit record.

The store calls `plan_evictions` in the transaction that stores the batch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from turnfold.core.eviction.budgets import Budgets, largest_budget
from turnfold.core.eviction.decide import Evict, clamp_keep_tokens, decide_eviction
from turnfold.core.eviction.triggers import FiredTrigger, SessionLoad, Trigger, TriggerLimits
from turnfold.core.eviction.usage import UsageInput, UsageState, relief_limit
from turnfold.core.policy.presets import Policy
from turnfold.messages import MESSAGES_PER_EVENT, Message, Role


@dataclass(frozen=True, slots=True)
class Eviction:
    """One eviction: its trigger, its messages, the load before, and its time (ms since 1970).

    `gauge` is the usage state afterwards, `seq` the event that caused it. `is_escalated` if as few
    messages stayed as possible. `stays` are the messages that are still live.
    """

    due: FiredTrigger
    evicted: tuple[Message, ...]
    live: int
    load: SessionLoad
    at_ms: int
    gauge: UsageState = field(default_factory=UsageState)
    seq: int = 0
    is_escalated: bool = False
    stays: tuple[Message, ...] = ()

    @property
    def tokens(self) -> int:
        """Count the tokens of the evicted messages, without system messages."""
        return sum([message.tokens for message in self.evicted if not message.is_pinnable])

    @property
    def is_over(self) -> bool:
        """Whether the messages that stayed are still over the limit, as far as counted."""
        left = self.load.tokens - self.tokens
        is_counted = self.due.trigger in (Trigger.TOKENS, Trigger.BUDGET)
        return is_counted and left * self.load.factor > self.due.budget_tokens

    def seen_at(self, live: Sequence[Message], load: SessionLoad, at_ms: int) -> "Eviction":
        """Return the same eviction with counts of these live messages at this moment."""
        gone = {message.position for message in self.evicted}
        stays = tuple([message for message in live if message.position not in gone])
        return replace(self, live=len(live), load=load, at_ms=at_ms, stays=stays)

    def counts(self) -> dict[str, Any]:
        """Return the numbers for the audit row: the messages that left, and those that stayed."""
        return {
            "evicted": len(self.evicted),
            "kept": len(self.stays),
            "blocks_kept": _blocks(self.stays),
            "blocks_dropped": _blocks(self.evicted),
            "calls": _calls(self.evicted),
            "calls_kept": _calls(self.stays),
            "results": _results(self.evicted),
            "results_kept": _results(self.stays),
        }


def _blocks(messages: Iterable[Message]) -> int:
    """Return the number of blocks; a call with its results is one, pinned messages are none."""
    return sum([message.role is not Role.TOOL and not message.is_pinnable for message in messages])


def _calls(messages: Iterable[Message]) -> int:
    return sum([len(message.calls) for message in messages])


def _results(messages: Iterable[Message]) -> int:
    return sum([message.role is Role.TOOL for message in messages])


UNMETERED = UsageInput()
NO_TRIGGER: Final = FiredTrigger(Trigger.REQUEST, 0)


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
        limits.window = windows.get(seq, limits.window)
        if seq in meter.readings:
            gauge = gauge.with_reading(meter.readings[seq], limits.relief)
        before = len(present.messages)
        present.add(arrived)
        total += sum([message.tokens for message in arrived])
        is_held = hold.to_tokens and total < hold.to_tokens
        # Events without messages change no counts, but report usage.
        is_examined = seq in meter.times or _is_examined(before, len(present.messages))
        if is_held or not is_examined:
            continue
        at_ms = max([message.created_at_ms for message in arrived], default=meter.times.get(seq, 0))
        load = present.load(gauge, is_overflow=meter.is_overflow(seq, gauge))
        # Most events fire nothing: an eviction of nothing is made only for those that do.
        fired = limits.at(at_ms).fired(load)
        if not fired:
            continue
        moment = Eviction(NO_TRIGGER, (), len(present.messages), load, at_ms, gauge, seq)
        eviction = _first_eviction(fired, moment, present.messages, policy)
        if eviction is None:
            continue
        # The factor takes force with the eviction, and knows the reports up to here.
        newest_seq = present.messages[-1].stream_seq
        factor = meter.learn(newest_seq, eviction.at_ms) if meter.learn else gauge.factor
        gauge = gauge.evicted(by_report=eviction.due.trigger is Trigger.USAGE, factor=factor)
        eviction = replace(
            eviction.seen_at(present.messages, eviction.load, eviction.at_ms), gauge=gauge
        )
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
        """Return the limits at a time: old budgets are forgotten."""
        asked = largest_budget(self.budgets, self.policy, at_ms=at_ms) if self.budgets else 0
        if (self.window, asked) not in self._known:
            self._known[self.window, asked] = TriggerLimits.of(
                self.policy, model_window=self.window, asked_tokens=asked
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
            if not message.is_pinnable:
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
        self.messages = list(eviction.stays)
        counted = [message.tokens for message in eviction.evicted if not message.is_pinnable]
        self.count -= len(counted)
        self.tokens -= sum(counted)
        self.rounds = 0


def _before_batch(
    live: Sequence[Message], new_seqs: Iterable[int], rounds: int
) -> tuple[_LiveMessages, Mapping[int, list[Message]]]:
    """Separate the live messages from those of the new events, which are returned by sequence."""
    arriving: dict[int, list[Message]] = {seq: [] for seq in sorted(new_seqs)}
    present = _LiveMessages()
    for message in live:
        arrived = arriving.get(message.position // MESSAGES_PER_EVENT)
        if arrived is not None:
            arrived.append(message)
            rounds -= message.is_request
            continue
        present.messages.append(message)
        if not message.is_pinnable:
            present.count += 1
            present.tokens += message.tokens
    present.rounds = rounds
    return present, arriving


def _first_eviction(
    fired: Iterable[FiredTrigger], moment: Eviction, live: Sequence[Message], policy: Policy
) -> Eviction | None:
    """Return the eviction of the first fired trigger that gains enough; None without one.

    `moment` is an eviction of nothing, with the load at this moment.
    """
    for due in fired:
        eviction = _choose_evicted(replace(moment, due=due), live, policy)
        if eviction.evicted:
            return eviction
    return None


_position = attrgetter("position")

EVERY_EVENT_BELOW: Final = 1_024
"""With more live messages, not every event is examined: each examination is linear in them."""


def _is_examined(before: int, after: int) -> bool:
    """Return whether this growth of live messages is examined.

    The decision depends on counts alone, so that it does not depend on the batch.
    """
    if after < EVERY_EVENT_BELOW:
        return True
    step = 1 << (after.bit_length() - EVERY_EVENT_BELOW.bit_length() + 1)
    return before // step != after // step


def _choose_evicted(eviction: Eviction, live: Sequence[Message], policy: Policy) -> Eviction:
    """Return what this eviction takes; escalate if the usual one leaves the limit exceeded."""
    due = eviction.due
    is_escalated = due.trigger is Trigger.USAGE and eviction.gauge.evictions > 0
    if not is_escalated:
        usual = decide_eviction(
            live, clamp_keep_tokens(policy, due), due.trigger, now_ms=eviction.at_ms
        )
        eviction = replace(eviction, evicted=usual.evicted if isinstance(usual, Evict) else ())
        is_escalated = bool(eviction.evicted) and eviction.is_over
    if not is_escalated:
        return eviction
    tight = decide_eviction(
        live, replace(policy, keep_tokens=0, keep_rounds=0), due.trigger, now_ms=eviction.at_ms
    )
    if not isinstance(tight, Evict):
        return eviction
    return replace(eviction, evicted=tight.evicted, is_escalated=True)
