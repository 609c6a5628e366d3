"""Which budgets are remembered, for how long, and when they make messages leave."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnfold.contracts.hints import BudgetHint
from turnfold.core.eviction.budgets import (
    BUDGETS_AT_MOST,
    NO_BUDGETS,
    AskedBudget,
    Budgets,
    budgets_json,
    is_hint_due,
    is_remembered,
    largest_budget,
    read_budgets,
    with_budget,
    without_forgotten,
)
from turnfold.core.eviction.triggers import (
    FiredTrigger,
    SessionLoad,
    Trigger,
    TriggerLimits,
    triggers_of_hints,
)
from turnfold.core.policy.presets import PRESETS, Mode, Policy
from turnfold.core.policy.retention import DAY_MS

POLICY = Policy(trigger_ratio=0.5, reserve_tokens=0, max_live_messages=0, budget_memory_seconds=600)
MINUTE_MS = 60_000


def asked(*budgets: tuple[int, int], policy: Policy = POLICY) -> Budgets:
    """The memory after budgets of so many tokens, each with its minute."""
    remembered = NO_BUDGETS
    for minute, tokens in budgets:
        remembered = with_budget(remembered, AskedBudget(minute * MINUTE_MS, tokens), policy)
    return remembered


def largest(budgets: Budgets, minute: int, policy: Policy = POLICY) -> int:
    return largest_budget(budgets, policy, at_ms=minute * MINUTE_MS)


@pytest.mark.proves("E8")
def test_the_largest_budget_of_the_last_ten_minutes_decides() -> None:
    budgets = asked((0, 200_000), (4, 3_000), (8, 8_000))

    assert [largest(budgets, minute) for minute in (8, 10, 11, 18, 19)] == [
        200_000,
        200_000,
        8_000,
        8_000,
        0,
    ]
    # One that is more than a day later was requested while a clock was ahead.
    edges = (-DAY_MS - 1, -DAY_MS, 10 * MINUTE_MS, 10 * MINUTE_MS + 1)
    first = asked((0, 200_000))
    assert [largest_budget(first, POLICY, at_ms=at_ms) for at_ms in edges] == [
        0,
        200_000,
        200_000,
        0,
    ]


@pytest.mark.proves("E8")
def test_a_smaller_and_older_budget_need_not_be_remembered() -> None:
    assert asked((0, 3_000), (1, 8_000)) == (AskedBudget(MINUTE_MS, 8_000),)
    assert asked((0, 8_000), (1, 8_000)) == (AskedBudget(MINUTE_MS, 8_000),)
    assert asked((0, 9_000), (20, 8_000)) == (AskedBudget(20 * MINUTE_MS, 8_000),)


@pytest.mark.proves("E8")
@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 50)), max_size=60).map(sorted),
    st.integers(0, 10),
)
@example([(minute, 20 - minute) for minute in range(10)], 8)
def test_few_budgets_are_remembered_and_the_largest_is_never_understated(
    given_: list[tuple[int, int]], later: int
) -> None:
    budgets = asked(*given_)
    now = (given_[-1][0] if given_ else 0) + later

    recent = [tokens for minute, tokens in given_ if minute >= now - 10]

    assert len(budgets) <= BUDGETS_AT_MOST
    assert largest(budgets, now) >= max(recent, default=0)
    if len({tokens for _, tokens in given_}) <= BUDGETS_AT_MOST:
        assert largest(budgets, now) == max(recent, default=0)
    assert read_budgets(budgets_json(budgets)) == budgets


@pytest.mark.proves("E8", "E1")
def test_of_expired_budgets_only_that_a_window_was_asked_for_is_remembered() -> None:
    budgets = asked((0, 9_000), (4, 8_500), (8, 8_000))

    def kept(minute: int) -> Budgets:
        return without_forgotten(budgets, POLICY, at_ms=minute * MINUTE_MS)

    assert kept(10) == budgets
    assert kept(18) == budgets[2:]
    assert kept(19) == (AskedBudget(8 * MINUTE_MS, 0),)
    assert without_forgotten(NO_BUDGETS, POLICY, at_ms=0) == NO_BUDGETS


@pytest.mark.proves("E8")
def test_a_budget_is_stored_again_when_half_of_its_time_is_over() -> None:
    budgets = asked((0, 8_000))

    def is_known(tokens: int, at_ms: int) -> bool:
        return is_remembered(budgets, tokens, POLICY, at_ms=at_ms)

    half_ms = 5 * MINUTE_MS
    assert is_known(8_000, half_ms)
    assert is_known(3_000, half_ms)
    assert not is_known(8_001, half_ms)
    assert not is_known(8_000, half_ms + 1)
    assert [is_known(8_000, at_ms) for at_ms in (-DAY_MS, -DAY_MS - 1)] == [True, False]


@pytest.mark.proves("E8")
def test_windows_repeat_a_hint_until_a_worker_has_acted() -> None:
    def is_due(budgets: Budgets, hint: BudgetHint, policy: Policy = POLICY) -> bool:
        return is_hint_due(budgets, hint, policy, at_ms=MINUTE_MS)

    small = BudgetHint(3_000, folded=20)

    assert is_due(NO_BUDGETS, BudgetHint(8_000))
    assert not is_due(asked((0, 8_000)), BudgetHint(8_000))
    assert is_due(asked((0, 3_000)), small)
    assert not is_due(asked((0, 200_000)), small)
    deaf = replace(POLICY, follow_budget=False)
    assert is_due(NO_BUDGETS, small, replace(deaf, max_unread_messages=1))
    assert not is_due(asked((0, 0)), small, deaf)
    assert not is_due(NO_BUDGETS, small, replace(deaf, max_unread_messages=0))
    assert not is_due(NO_BUDGETS, small, replace(POLICY, mode=Mode.MANUAL))


@pytest.mark.proves("E8", "E1")
@pytest.mark.parametrize(
    ("tokens", "budget", "expected"),
    [
        (4_001, 8_000, FiredTrigger(Trigger.BUDGET, 4_000)),
        (4_000, 8_000, None),
        (50_001, 8_000, FiredTrigger(Trigger.BUDGET, 4_000)),
        (50_001, 200_000, FiredTrigger(Trigger.TOKENS, 50_000)),
        (50_001, 0, FiredTrigger(Trigger.TOKENS, 50_000)),
    ],
)
def test_the_token_trigger_is_a_share_of_the_smaller_of_window_and_budget(
    tokens: int, budget: int, expected: FiredTrigger | None
) -> None:
    limits = TriggerLimits.of(POLICY, model_window=100_000, asked_tokens=budget)

    assert limits.fired(SessionLoad(9, tokens)) == ([expected] if expected else [])


@pytest.mark.proves("E8", "T5")
def test_budgets_count_as_the_model_counts() -> None:
    limits = TriggerLimits.of(POLICY, model_window=100_000, asked_tokens=8_000)

    assert limits.fired(SessionLoad(9, 3_500, factor=1.25))
    assert not limits.fired(SessionLoad(9, 3_500, factor=1.0))


@pytest.mark.proves("E8", "E1")
@pytest.mark.parametrize(
    "policy",
    [replace(POLICY, follow_budget=False), replace(POLICY, mode=Mode.MANUAL)],
)
def test_a_policy_may_leave_budgets_alone(policy: Policy) -> None:
    limits = TriggerLimits.of(policy, model_window=100_000, asked_tokens=8_000)
    hints = [BudgetHint(8_000, folded=9)]
    budgets = asked((0, 8_000))
    load = SessionLoad(9, 20_000)

    assert limits.fired(load) == []
    assert largest(budgets, 0, policy) == 0
    assert not triggers_of_hints(
        budgets, hints, load, replace(policy, mode=Mode.MANUAL), model_window=100_000, at_ms=0
    )


@pytest.mark.proves("E8")
def test_a_window_of_0_switches_the_budget_trigger_off() -> None:
    hints = [BudgetHint(8_000, folded=9)]

    assert not triggers_of_hints(
        asked((0, 8_000)), hints, SessionLoad(9, 20_000), POLICY, model_window=0, at_ms=0
    )


@pytest.mark.proves("E8")
@pytest.mark.parametrize(
    ("preset", "limit"),
    [("static-buffer", 8_000), ("token-budget", 8_000), ("selective", 6_800), ("balanced", 4_800)],
)
def test_a_window_that_left_messages_out_fires_under_every_preset(preset: str, limit: int) -> None:
    """A summary, or a long instruction, may leave less room than the live messages need."""
    budgets, load = asked((0, 8_000)), SessionLoad(9, 4_500)

    def fired(*hints: BudgetHint) -> list[FiredTrigger]:
        policy = PRESETS[preset]
        return list(triggers_of_hints(budgets, hints, load, policy, model_window=128_000, at_ms=0))

    assert fired(BudgetHint(8_000, folded=9)) == [FiredTrigger(Trigger.BUDGET, limit)]
    assert fired(BudgetHint(3_000, folded=9)) == []
    assert fired(BudgetHint(8_000)) == []


@pytest.mark.proves("E8")
def test_views_alone_follow_no_budget() -> None:
    assert [name for name, policy in PRESETS.items() if not policy.follow_budget] == ["adaptive"]
