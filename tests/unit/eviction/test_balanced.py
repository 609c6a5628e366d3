"""When the default preset evicts, and how much it keeps."""

import pytest

from tests.unit.eviction.test_eviction import rounds, said
from turnfold.core.eviction.batch import plan_evictions
from turnfold.core.eviction.choose import first_eviction
from turnfold.core.eviction.triggers import FiredTrigger, SessionLoad, Trigger, TriggerLimits
from turnfold.core.eviction.usage import UsageInput, UsageState
from turnfold.core.policy.presets import DEFAULT_PRESET, PRESETS, Policy, Style, adjusted

BALANCED = PRESETS["balanced"]


def due(
    load: SessionLoad, policy: Policy = BALANCED, *, asked_tokens: int = 0, is_read: bool = True
) -> FiredTrigger | None:
    """The first trigger that fires with a model's window of 100,000 tokens."""
    limits = TriggerLimits.of(
        policy, model_window=100_000, asked_tokens=asked_tokens, is_read=is_read
    )
    return next(iter(limits.fired(load)), None)


@pytest.mark.proves("P6")
def test_balanced_is_the_default_and_takes_three_fifths_of_the_window_or_of_a_budget() -> None:
    assert (DEFAULT_PRESET, BALANCED.style) == ("balanced", Style.STRUCTURED)
    assert due(SessionLoad(1, 60_000)) is None
    assert due(SessionLoad(1, 60_001)) == FiredTrigger(Trigger.TOKENS, 60_000)
    assert due(SessionLoad(1, 6_001), asked_tokens=10_000) == (FiredTrigger(Trigger.BUDGET, 6_000))


@pytest.mark.proves("E1", "P6", "W14")
def test_balanced_counts_messages_only_above_a_fifth_of_its_limit_in_tokens() -> None:
    assert due(SessionLoad(1_000, 11_999)) is None
    assert due(SessionLoad(250, 12_000)) is None
    assert due(SessionLoad(251, 12_000)) == FiredTrigger(Trigger.MESSAGES, 60_000)
    # A number that somebody sets counts at any size.
    of_agent = adjusted(BALANCED, {"max_live_messages": 80})
    assert due(SessionLoad(81, 1), of_agent) == FiredTrigger(Trigger.MESSAGES, 60_000)


@pytest.mark.proves("E1", "P6")
def test_a_session_that_nobody_reads_leaves_at_fifty_messages_of_any_size() -> None:
    def is_due(messages: int, **overrides: int) -> bool:
        policy = adjusted(BALANCED, overrides)
        return due(SessionLoad(messages, 1), policy, is_read=False) is not None

    assert (is_due(50), is_due(51)) == (False, True)
    assert not is_due(80, max_live_messages=80)
    assert not is_due(1_000, max_live_messages=0)


@pytest.mark.proves("P6", "T5")
def test_of_what_balanced_exceeded_a_third_stays_and_at_least_ten_messages() -> None:
    live = said(*rounds(130), tokens=100)

    def stay(fired: FiredTrigger, policy: Policy = BALANCED, *, factor: float = 1.0) -> int:
        _, gone = first_eviction([fired], live, policy, now_ms=0, factor=factor)
        return len(live) - len(gone)

    assert stay(FiredTrigger(Trigger.TOKENS, 20_000)) == 66
    assert stay(FiredTrigger(Trigger.BUDGET, 600)) == 10
    assert stay(FiredTrigger(Trigger.MESSAGES, 100_000)) == 86
    # Of a model that bills twice the counted tokens, a third of the limit is half as many messages.
    assert stay(FiredTrigger(Trigger.TOKENS, 20_000), factor=2.0) == 34
    # A number that somebody sets counts instead, up to 25 messages.
    kept = adjusted(BALANCED, {"keep_tokens": 4_000})
    assert stay(FiredTrigger(Trigger.TOKENS, 20_000), kept) == 26


@pytest.mark.proves("P6", "T5")
@pytest.mark.parametrize("factor", [1.25, 2.0, 2.5])
def test_a_batch_keeps_a_third_of_the_limit_in_tokens_of_the_model(factor: float) -> None:
    live = said(*rounds(400), tokens=200)
    policy = adjusted(BALANCED, {"max_context_tokens": 20_000, "max_live_messages": 0})
    meter = UsageInput(gauge=UsageState(factor=factor), learn=lambda *_: factor)

    first, *_ = plan_evictions(
        live, [message.stream_seq for message in live], 0, policy, model_window=128_000, meter=meter
    )

    kept = sum([message.tokens for message in first.stays]) * factor
    assert not first.is_escalated
    assert kept <= first.due.budget_tokens * 0.33 + 5 * 200 * factor
