"""Triggers: the conditions that make an eviction due.

The store checks them after each batch, on counters of the session alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from turnfold.contracts.hints import BudgetHint
from turnfold.core.eviction.budgets import Budgets, largest_budget
from turnfold.core.eviction.usage import usage_trigger
from turnfold.core.policy.presets import Mode, Policy
from turnfold.messages import Message, pinnable_in

SUMMARY_DELAY_MS: Final = 150
"""The pause before a summary is written, so that windows go first and a burst makes one version."""


class Trigger(StrEnum):
    """The condition that made a compaction due."""

    MESSAGES = "messages"
    TOKENS = "tokens"
    BUDGET = "budget"
    USAGE = "usage"
    ROUNDS = "rounds"
    IDLE = "idle"
    REQUEST = "request"
    REGENERATE = "regenerate"
    STAND_IN = "stand_in"

    @property
    def rewrites(self) -> bool:
        """Whether such a compaction rewrites a version, and evicts nothing."""
        return self is Trigger.REGENERATE or self is Trigger.STAND_IN


OVERFLOW_FIFTHS: Final = 3
"""This many fifths of messages that were too long for a model are the limit of the next window."""


class SessionLoad(NamedTuple):
    """Counts of a session's live messages, and rounds since the last eviction.

    System messages do not count. `factor` is the calibration factor. `reported_tokens` is the last
    usage that the model reported. `is_overflow` if a call failed because it was too long.
    """

    messages: int
    tokens: int
    rounds: int = 0
    factor: float = 1.0
    reported_tokens: int = 0
    is_overflow: bool = False

    @property
    def billed_tokens(self) -> float:
        """The live tokens as the session's model counts them."""
        return self.tokens * self.factor


def load_of(messages: Sequence[Message]) -> SessionLoad:
    """Return what these messages add to the load of a session; each request is a round."""
    pinnable = pinnable_in(messages)
    return SessionLoad(
        len(messages) - len(pinnable),
        sum([message.tokens for message in messages])
        - sum([message.tokens for message in pinnable]),
        sum([message.is_request for message in messages]),
    )


@dataclass(frozen=True, slots=True)
class FiredTrigger:
    """A trigger that fired, and its limit in tokens (0 without one)."""

    trigger: Trigger
    budget_tokens: int


class TriggerLimits(NamedTuple):
    """The limits of the triggers; 0 means no limit. `window` is the model's.

    `messages` count only above `least_tokens`. `by_budget` if `tokens` is a share of the largest
    recent budget, and not of the model's window.
    """

    tokens: int = 0
    messages: int = 0
    rounds: int = 0
    reported: int = 0
    window: int = 0
    by_budget: bool = False
    least_tokens: float = 0.0

    @classmethod
    def of(
        cls, policy: Policy, *, model_window: int, asked_tokens: int = 0, is_read: bool = True
    ) -> "TriggerLimits":
        """Return the limits of a policy; none if it evicts nothing by itself.

        `asked_tokens` is the largest recent budget of the session's windows, 0 without one.
        `is_read` if any window of the session was requested.
        """
        if policy.mode is not Mode.AUTO:
            return cls()
        tokens = token_trigger(policy, model_window=model_window)
        followed = budget_trigger(policy, asked_tokens, model_window=model_window)
        by_budget = followed > 0 and (followed < tokens or not tokens)
        limit = followed if by_budget else tokens
        messages, ratio = policy.max_live_messages, policy.messages_ratio
        if messages and policy.max_unread_messages and not is_read:
            messages, ratio = min(messages, policy.max_unread_messages), 0.0
        usage = usage_trigger(policy.reserve_tokens, model_window=model_window)
        return cls(
            limit, messages, policy.every_rounds, usage, model_window, by_budget, ratio * limit
        )

    def fired(self, load: SessionLoad) -> list[FiredTrigger]:
        """Return the fired triggers; if one gains too little, the next may gain enough."""
        fired: list[FiredTrigger] = []
        # First, because the next call fails as well unless enough leaves now.
        if load.is_overflow and self.window:
            fired.append(FiredTrigger(Trigger.USAGE, self.overflow_limit(load)))
        if self.tokens and load.billed_tokens > self.tokens:
            trigger = Trigger.BUDGET if self.by_budget else Trigger.TOKENS
            fired.append(FiredTrigger(trigger, self.tokens))
        is_worth_it = load.billed_tokens >= self.least_tokens
        if self.messages and load.messages > self.messages and is_worth_it:
            fired.append(FiredTrigger(Trigger.MESSAGES, self.tokens))
        if self.rounds and load.rounds >= self.rounds:
            fired.append(FiredTrigger(Trigger.ROUNDS, self.tokens))
        if self.reported and load.reported_tokens > self.reported:
            fired.append(FiredTrigger(Trigger.USAGE, self.reported))
        return fired

    def overflow_limit(self, load: SessionLoad) -> int:
        """Return the limit after an overflow: the window may be unknown, so part of the load."""
        reduced = int(load.billed_tokens) * OVERFLOW_FIFTHS // 5
        return max(1, min(self.reported or self.window, reduced))


def triggers_of_hints(
    budgets: Budgets,
    hints: Sequence[BudgetHint],
    load: SessionLoad,
    policy: Policy,
    *,
    model_window: int,
    at_ms: int,
) -> Sequence[FiredTrigger]:
    """Return the trigger that hints fire; `budgets` hold theirs already.

    A window that left messages out makes a compaction due if no larger budget is remembered.
    """
    asked = largest_budget(budgets, policy, at_ms=at_ms)
    limits = TriggerLimits.of(
        policy, model_window=model_window, asked_tokens=asked, is_read=bool(budgets)
    )
    if limits.window and any(hint.folded and hint.tokens >= asked for hint in hints):
        return (FiredTrigger(Trigger.BUDGET, _folded_limit(limits, policy, asked)),)
    # Hints change budgets alone; all other triggers were checked with the newest event.
    return [fired for fired in limits.fired(load) if fired.trigger is Trigger.BUDGET]


def _folded_limit(limits: TriggerLimits, policy: Policy, asked_tokens: int) -> int:
    """Return the limit after a window with the largest budget left messages out."""
    share = int((policy.trigger_ratio or 1) * asked_tokens)
    return min(share, limits.tokens or share)


def trigger_of_plan(
    planned: FiredTrigger,
    limits: TriggerLimits,
    load: SessionLoad,
    policy: Policy,
    *,
    asked_tokens: int,
    is_idle: bool,
) -> FiredTrigger | None:
    """Return the trigger that fires now for a planned eviction: its own if it can, or another.

    None if none fires any more. `asked_tokens` is as for `TriggerLimits.of`.
    """
    trigger = planned.trigger
    if trigger is Trigger.REQUEST or (trigger is Trigger.IDLE and is_idle):
        return planned
    # No count shows that a window left messages out or a call failed. Both hold until the limit has
    # grown: a larger budget was requested, or the model has a larger window.
    if trigger is Trigger.BUDGET and limits.window and policy.follow_budget:
        # There is none if no window was requested since: then none was larger.
        limit = _folded_limit(limits, policy, asked_tokens) or planned.budget_tokens
        if limit <= planned.budget_tokens:
            return FiredTrigger(trigger, limit)
    is_usage = trigger is Trigger.USAGE and limits.window > 0
    if is_usage and planned.budget_tokens <= limits.overflow_limit(load):
        return planned
    fired = limits.fired(load)
    own = [due for due in fired if due.trigger is trigger]
    return next(iter(own + fired), None)


def is_allowed(trigger: Trigger, mode: Mode) -> bool:
    """Return whether a session in this mode may evict because of a trigger."""
    return mode is Mode.AUTO or (mode is Mode.MANUAL and trigger is Trigger.REQUEST)


def budget_trigger(policy: Policy, asked_tokens: int, *, model_window: int) -> int:
    """Return the tokens above which live messages fire because of a budget; 0 if none does.

    Without a ratio, messages leave only when a window with this budget has left some out.
    """
    if model_window <= 0 or not policy.follow_budget:
        return 0
    return int(policy.trigger_ratio * asked_tokens)


def idle_at_ms(last_event_at_ms: int, policy: Policy) -> int | None:
    """Return when a session becomes idle after its last event; None if the policy has no limit."""
    if policy.mode is not Mode.AUTO or not policy.idle_seconds:
        return None
    return last_event_at_ms + 1_000 * policy.idle_seconds


def token_trigger(policy: Policy, *, model_window: int) -> int:
    """Return the tokens above which live messages fire; 0 if no number does.

    Without a number and a ratio, the limit is the model's window minus its reserve. The share of a
    window that the ratio states is also taken of `max_context_tokens`.
    """
    if model_window <= 0:
        return 0
    ceiling = policy.max_context_tokens or 0
    limits = [
        policy.trigger_tokens,
        int(policy.trigger_ratio * model_window),
        int((policy.trigger_ratio or 1) * ceiling),
    ]
    reserved = usage_trigger(policy.reserve_tokens, model_window=model_window)
    return min((limit for limit in limits if limit > 0), default=reserved)
