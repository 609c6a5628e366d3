"""Decide when old messages leave the window, and which ones."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final, NamedTuple

from turnfold.core.eviction.usage import UsageInput, UsageState, usage_trigger
from turnfold.core.history.blocks import Block, group, newest_request
from turnfold.core.policy.presets import Mode, Policy
from turnfold.messages import MESSAGES_PER_EVENT, Message, Role

SUMMARY_DELAY_MS: Final = 150
"""The pause before a summary is written, so that windows go first and a burst makes one version."""


class Trigger(StrEnum):
    """The condition that made a compaction due."""

    MESSAGES = "messages"
    TOKENS = "tokens"
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


COOLDOWN_MS: Final = 8_000
COOLDOWN_MAX_MS: Final = 300_000


def cooldown_ms(failures: int) -> int:
    """Return the cooldown after this many failed compactions in a row."""
    return min(COOLDOWN_MS * 2 ** (failures - 1), COOLDOWN_MAX_MS) if failures else 0


class SessionLoad(NamedTuple):
    """Counts of a session's live messages, and rounds since the last eviction.

    System messages do not count. `factor` is the calibration factor. `reported_tokens` is the last
    usage that the model reported.
    """

    messages: int
    tokens: int
    rounds: int = 0
    factor: float = 1.0
    reported_tokens: int = 0

    @property
    def billed_tokens(self) -> float:
        """The live tokens as the session's model counts them."""
        return self.tokens * self.factor


def load_of(live: Iterable[Message]) -> SessionLoad:
    """Return the load of these live messages; each request is a round."""
    counted = [message for message in live if not message.role.is_system]
    return SessionLoad(
        len(counted),
        sum([message.tokens for message in counted]),
        sum([message.is_request for message in counted]),
    )


@dataclass(frozen=True, slots=True)
class FiredTrigger:
    """A trigger that fired, and its limit in tokens (0 without one)."""

    trigger: Trigger
    budget_tokens: int


@dataclass(frozen=True, slots=True)
class NoEviction:
    """No message leaves."""


@dataclass(frozen=True, slots=True)
class Evict:
    """These messages leave, in order of position."""

    evicted: tuple[Message, ...]


class TriggerLimits(NamedTuple):
    """The limits of the triggers; 0 means no limit."""

    tokens: int = 0
    messages: int = 0
    rounds: int = 0
    reported: int = 0

    @classmethod
    def of(cls, policy: Policy, *, model_window: int) -> "TriggerLimits":
        """Return the limits of a policy; none if it evicts nothing by itself."""
        if policy.mode is not Mode.AUTO:
            return cls()
        budget = token_trigger(policy, model_window=model_window)
        reported = usage_trigger(policy.reserve_tokens, model_window=model_window)
        return cls(budget, policy.max_live_messages, policy.every_rounds, reported)

    def fired(self, load: SessionLoad) -> list[FiredTrigger]:
        """Return the fired triggers; if one gains too little, the next may gain enough."""
        found: list[FiredTrigger] = []
        if self.tokens and load.billed_tokens > self.tokens:
            found.append(FiredTrigger(Trigger.TOKENS, self.tokens))
        if self.messages and load.messages > self.messages:
            found.append(FiredTrigger(Trigger.MESSAGES, self.tokens))
        if self.rounds and load.rounds >= self.rounds:
            found.append(FiredTrigger(Trigger.ROUNDS, self.tokens))
        if self.reported and load.reported_tokens > self.reported:
            found.append(FiredTrigger(Trigger.USAGE, self.reported))
        return found


def fired_triggers(
    load: SessionLoad, policy: Policy, *, model_window: int
) -> Sequence[FiredTrigger]:
    """Return the triggers that these live messages fire under this policy."""
    return TriggerLimits.of(policy, model_window=model_window).fired(load)


def idle_at_ms(last_event_at_ms: int, policy: Policy) -> int | None:
    """Return when a session becomes idle after its last event; None if the policy has no limit."""
    if policy.mode is not Mode.AUTO or not policy.idle_seconds:
        return None
    return last_event_at_ms + 1_000 * policy.idle_seconds


def token_trigger(policy: Policy, *, model_window: int) -> int:
    """Return the tokens above which live messages fire; 0 if no number does.

    Without a number and a ratio, the limit is the model's window minus its reserve.
    """
    if model_window <= 0:
        return 0
    limits = [policy.trigger_tokens, int(policy.trigger_ratio * model_window)]
    reserved = usage_trigger(policy.reserve_tokens, model_window=model_window)
    return min((limit for limit in limits if limit > 0), default=reserved)


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
        return sum([message.tokens for message in self.evicted if not message.role.is_system])

    @property
    def is_over(self) -> bool:
        """Whether the messages that stayed are still over the limit, as far as counted."""
        left = self.load.tokens - self.tokens
        return (
            self.due.trigger is Trigger.TOKENS and left * self.load.factor > self.due.budget_tokens
        )

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
    """Return the number of blocks; a call with its results is one, system messages are none."""
    return sum(
        [message.role is not Role.TOOL and not message.role.is_system for message in messages]
    )


def _calls(messages: Iterable[Message]) -> int:
    return sum([len(message.calls) for message in messages])


def _results(messages: Iterable[Message]) -> int:
    return sum([message.role is Role.TOOL for message in messages])


UNMETERED = UsageInput()


class RestoreHold(NamedTuple):
    """Restored messages stay until the session's `total_tokens` reach `to_tokens`."""

    to_tokens: int = 0
    total_tokens: int = 0


FREE = RestoreHold()


def plan_evictions(
    live: Sequence[Message],
    new_seqs: Iterable[int],
    rounds: int,
    policy: Policy,
    *,
    model_window: int,
    meter: UsageInput = UNMETERED,
    hold: RestoreHold = FREE,
) -> tuple[Eviction, ...]:
    """Decide evictions event by event, so that a batch gives the result of its single events.

    `live` holds the live messages by position, including those of the new events. `rounds` counts
    all rounds since the last eviction.
    """
    gauge, usage_limit = (
        meter.gauge,
        usage_trigger(policy.reserve_tokens, model_window=model_window),
    )
    limits = TriggerLimits.of(policy, model_window=model_window)
    arriving: dict[int, list[Message]] = {seq: [] for seq in sorted(new_seqs)}
    present: list[Message] = []
    messages = tokens = 0
    for message in live:
        arrived = arriving.get(message.position // MESSAGES_PER_EVENT)
        if arrived is not None:
            arrived.append(message)
            rounds -= message.is_request
            continue
        present.append(message)
        if not message.role.is_system:
            messages += 1
            tokens += message.tokens
    done: list[Eviction] = []
    total = hold.total_tokens - sum(
        [message.tokens for arrived in arriving.values() for message in arrived]
    )
    for seq, arrived in arriving.items():
        if seq in meter.readings:
            gauge = gauge.told(meter.readings[seq], usage_limit)
        before = len(present)
        is_in_order = not present or not arrived or arrived[0].position > present[-1].position
        present += arrived
        if not is_in_order:
            present.sort(key=_position)
        for message in arrived:
            total += message.tokens
            if not message.role.is_system:
                messages += 1
                tokens += message.tokens
                rounds += message.is_request
        if (hold.to_tokens and total < hold.to_tokens) or not _is_looked_at(before, len(present)):
            continue
        load = SessionLoad(messages, tokens, rounds, gauge.factor, gauge.fresh_tokens)
        for found in limits.fired(load):
            at_ms = max([message.created_at_ms for message in arrived], default=0)
            eviction = _relieved(
                Eviction(found, (), len(present), load, at_ms, gauge, seq), present, policy
            )
            if not eviction.evicted:
                continue
            factor = meter.learn(present[-1].stream_seq, at_ms) if meter.learn else gauge.factor
            gauge = gauge.evicted(by_report=found.trigger is Trigger.USAGE, factor=factor)
            eviction = replace(eviction.seen_at(present, load, at_ms), gauge=gauge)
            done.append(eviction)
            present = list(eviction.stays)
            counted = [message.tokens for message in eviction.evicted if not message.role.is_system]
            messages -= len(counted)
            tokens -= sum(counted)
            rounds = 0
            break
    return tuple(done)


EVERY_EVENT_BELOW: Final = 1_024
"""With more live messages, not every event is examined: each examination is linear in them."""


def _is_looked_at(before: int, after: int) -> bool:
    """Return whether this growth of live messages is examined.

    The decision depends on counts alone, so that it does not depend on the batch.
    """
    if after < EVERY_EVENT_BELOW:
        return True
    step = 1 << (after.bit_length() - EVERY_EVENT_BELOW.bit_length() + 1)
    return before // step != after // step


def _relieved(eviction: Eviction, live: Sequence[Message], policy: Policy) -> Eviction:
    """Return what this eviction takes; escalate if the usual one leaves the limit exceeded."""
    found = eviction.due
    is_escalated = found.trigger is Trigger.USAGE and eviction.gauge.evictions > 0
    if not is_escalated:
        usual = decide_eviction(
            live, clamp_keep_tokens(policy, found), found.trigger, now_ms=eviction.at_ms
        )
        eviction = replace(eviction, evicted=usual.evicted if isinstance(usual, Evict) else ())
        is_escalated = bool(eviction.evicted) and eviction.is_over
    if not is_escalated:
        return eviction
    tight = decide_eviction(
        live, replace(policy, keep_tokens=0, keep_rounds=0), found.trigger, now_ms=eviction.at_ms
    )
    return (
        replace(eviction, evicted=tight.evicted, is_escalated=True)
        if isinstance(tight, Evict)
        else eviction
    )


def clamp_keep_tokens(policy: Policy, found: FiredTrigger) -> Policy:
    """Return the policy with `keep_tokens` clamped to half of the limit that fired."""
    limit = found.budget_tokens
    if not limit or policy.keep_tokens + policy.min_gain_tokens <= limit:
        return policy
    return replace(policy, keep_tokens=min(policy.keep_tokens, limit // 2))


_position = attrgetter("position")


def decide_eviction(
    live: Sequence[Message], policy: Policy, trigger: Trigger, *, now_ms: int
) -> Evict | NoEviction:
    """Choose the messages that leave when a trigger has fired.

    The newest stay as far as the policy keeps them, extended to a safe boundary. The system
    message, the newest request and blocks with open calls stay. A gain below the minimum evicts
    nothing.
    """
    grouped = group(live)
    blocks = grouped.blocks
    first_kept = _boundary(blocks, policy)
    old = (*blocks[:first_kept], *_surplus(blocks[first_kept:], policy))
    if not old:
        return NoEviction()
    request = newest_request(live)
    border = blocks[first_kept].position if first_kept < len(blocks) else None
    leaving = [
        message
        for block in old
        if block.head is not request and not _may_be_answered(block, policy, now_ms)
        for message in block.stored
    ]
    leaving += [message for message in grouped.loose if border is None or message.position < border]
    evicted = tuple(sorted(leaving, key=_position))
    return Evict(evicted) if _is_worth_it(evicted, policy, trigger) else NoEviction()


def _boundary(blocks: Sequence[Block], policy: Policy) -> int:
    """Return the index of the first block that stays: at a user message if one is near."""
    needed = len(blocks)
    messages = tokens = rounds = 0
    least = max(policy.keep_messages, 1)
    while needed and (messages < least or not _is_enough(messages, tokens, rounds, policy)):
        needed -= 1
        block = blocks[needed]
        messages += len(block.stored) if block.results else 1
        tokens += block.tokens
        rounds += block.head.is_request
    allowed = max(policy.keep_messages, messages // 2)
    extra = 0
    for index in range(needed, -1, -1):
        if index < needed:
            extra += len(blocks[index].stored)
        if extra > allowed:
            break
        if index < len(blocks) and blocks[index].head.role is Role.USER:
            return index
    return needed


def _surplus(kept: Sequence[Block], policy: Policy) -> Sequence[Block]:
    """Return the oldest tool blocks above the number that is kept."""
    tools = [block for block in kept if block.results]
    return tools[: -policy.max_live_tool_blocks] if policy.max_live_tool_blocks else ()


def _is_enough(messages: int, tokens: int, rounds: int, policy: Policy) -> bool:
    if rounds < policy.keep_rounds:
        return False
    if policy.keep_at_most_messages and messages >= policy.keep_at_most_messages:
        return True
    return tokens >= policy.keep_tokens


def _may_be_answered(block: Block, policy: Policy, now_ms: int) -> bool:
    age_ms = now_ms - block.head.created_at_ms
    return (
        bool(block.results)
        and bool(block.open_calls)
        and age_ms < policy.open_call_timeout_seconds * 1000
    )


def _is_worth_it(evicted: Sequence[Message], policy: Policy, trigger: Trigger) -> bool:
    if trigger in (Trigger.REQUEST, Trigger.ROUNDS):
        return bool(evicted)
    if trigger is Trigger.MESSAGES:
        return len(evicted) >= max(policy.min_gain_messages, 1)
    return bool(evicted) and sum(message.tokens for message in evicted) >= policy.min_gain_tokens


def first_eviction(
    triggers: Sequence[FiredTrigger], live: Sequence[Message], policy: Policy, *, now_ms: int
) -> tuple[FiredTrigger | None, tuple[Message, ...]]:
    """Return the first trigger for which enough messages would leave, and those messages."""
    for trigger in triggers:
        decision = decide_eviction(
            live, clamp_keep_tokens(policy, trigger), trigger.trigger, now_ms=now_ms
        )
        if isinstance(decision, Evict):
            return trigger, decision.evicted
    return None, ()
