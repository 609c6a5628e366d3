"""The rules of the core put together for the stores: one bundle of pure functions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from secrets import randbits

from turnfold.core.eviction.eviction import (
    Evict,
    Eviction,
    FiredTrigger,
    NoEviction,
    RestoreHold,
    SessionLoad,
    clamp_keep_tokens,
    decide_eviction,
    fired_triggers,
    plan_evictions,
)
from turnfold.core.eviction.usage import UsageInput
from turnfold.core.history.pairing import match_results
from turnfold.core.policy.allowance import DEFAULT_ALLOWANCE, Allowance
from turnfold.core.policy.overrides import PolicyOverrides, effective_policy
from turnfold.core.policy.presets import Policy
from turnfold.core.summary.digest import digest
from turnfold.core.summary.source_messages import sources_of
from turnfold.core.text.tokens import Count
from turnfold.messages import Message, Role
from turnfold.ports import Rules

DIGEST_MAX_TOKENS = 300
DIGEST_MESSAGES = 8
"""More lines would be too short to tell anything; older messages are counted in the digest's first line."""
PolicyOf = Callable[[PolicyOverrides, PolicyOverrides], Policy]


def policy_resolver(
    default_preset: str,
    policy_of: Callable[[str], Policy],
    allowance: Allowance = DEFAULT_ALLOWANCE,
) -> PolicyOf:
    """Whose wish counts under this installation's settings; no wish goes beyond its ceilings."""

    @lru_cache(maxsize=4_096)
    def policy(agent: PolicyOverrides, session: PolicyOverrides) -> Policy:
        return allowance.bounded(
            effective_policy(agent, session, default_preset=default_preset, policy_of=policy_of)
        )

    return policy


def digest_messages(evicted: Sequence[Message]) -> Sequence[Message]:
    """Those of these messages that their digest quotes."""
    return _spoken(evicted)[-DIGEST_MESSAGES:]


def _spoken(messages: Sequence[Message]) -> Sequence[Message]:
    return [
        message
        for message in messages
        if message.role is Role.USER or message.role is Role.ASSISTANT
    ]


def make_rules(
    policy: PolicyOf,
    *,
    model_window: Callable[[str | None, Policy], int],
    count: Count,
    max_sessions: int,
    allowance: Allowance = DEFAULT_ALLOWANCE,
) -> Rules:
    """What intake and eviction decide by."""

    def make_digest(evicted: Sequence[Message], texts: Mapping[int, str]) -> tuple[str, int]:
        counted: dict[str, int] = {}

        def counting(text: str) -> int:
            counted[text] = count(text)
            return counted[text]

        spoken = _spoken(evicted)
        told = spoken[-DIGEST_MESSAGES:]
        text = digest(
            sources_of([(message, texts[message.position], False) for message in told]),
            max_tokens=DIGEST_MAX_TOKENS,
            count=counting,
            older=len(spoken) - len(told),
            silent=len(evicted) - len(spoken),
        )
        return text, counted.get(text, 0)

    def triggers(load: SessionLoad, policy: Policy, window: int) -> Sequence[FiredTrigger]:
        return fired_triggers(load, policy, model_window=window)

    def replayed(
        live: Sequence[Message],
        new_seqs: Iterable[int],
        rounds: int,
        policy: Policy,
        window: int,
        meter: UsageInput,
        hold: RestoreHold,
    ) -> Sequence[Eviction]:
        return plan_evictions(
            live, new_seqs, rounds, policy, model_window=window, meter=meter, hold=hold
        )

    def decided(
        live: Sequence[Message], policy: Policy, found: FiredTrigger, now_ms: int
    ) -> Evict | NoEviction:
        return decide_eviction(live, clamp_keep_tokens(policy, found), found.trigger, now_ms=now_ms)

    return Rules(
        policy=policy,
        model_window=model_window,
        pair=match_results,
        fired=triggers,
        evictions=replayed,
        decide=decided,
        digest_messages=digest_messages,
        digest=make_digest,
        new_id=lambda: randbits(62),
        max_sessions=max_sessions,
        allowance=allowance,
    )
