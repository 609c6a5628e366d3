"""What reports of limits make of a model's window."""

from dataclasses import replace

import pytest

from turnfold.core.eviction.reported_limits import (
    LIMIT_AT_LEAST,
    MODELS_AT_MOST,
    LimitedModel,
    LimitReport,
    ModelCall,
    WindowChanges,
    changes_in_batch,
    limited_window,
    newest_limits,
    read_limits,
)
from turnfold.core.eviction.triggers import (
    FiredTrigger,
    SessionLoad,
    Trigger,
    TriggerLimits,
    trigger_of_plan,
)
from turnfold.core.policy.presets import Mode, Policy

POLICY = Policy(reserve_tokens=2_000, trigger_ratio=0.0, max_live_messages=0)


@pytest.mark.proves("R5")
@pytest.mark.parametrize(
    ("window", "limit", "expected"),
    [
        (128_000, None, 128_000),
        (128_000, 16_000, 16_000),
        (8_000, 16_000, 8_000),
        (128_000, 5, LIMIT_AT_LEAST),
        (0, 16_000, 0),
    ],
)
def test_the_smaller_window_counts_but_none_is_tiny(
    window: int, limit: int | None, expected: int
) -> None:
    assert limited_window(window, limit, POLICY) == expected


@pytest.mark.proves("R5")
def test_an_explicit_window_counts_alone() -> None:
    assert limited_window(32_000, 16_000, replace(POLICY, context_window=32_000)) == 32_000
    assert limited_window(0, 16_000, replace(POLICY, context_window=0)) == 0


@pytest.mark.proves("R5")
def test_the_newest_report_of_each_of_a_few_models_counts() -> None:
    reports = [LimitReport("a", 9, 16), LimitReport("b", 8, 4), LimitReport("a", 7, 8)]
    many = [LimitReport(f"m-{number}", -number, 9) for number in range(99)]

    assert newest_limits(reports) == {"a": reports[0], "b": reports[1]}
    assert list(newest_limits(many)) == [f"m-{number}" for number in range(MODELS_AT_MOST)]


@pytest.mark.proves("R5", "L3")
def test_events_of_a_batch_change_the_window_one_after_the_other() -> None:
    calls = [
        ModelCall(1, "a", None, 9_000),
        ModelCall(2, "a", 16_000, 0),
        ModelCall(3, "a", None, 16_000),
        ModelCall(4, "a", None, 17_000),
        ModelCall(5, "a", 8_000, 0),
    ]

    assert changes_in_batch("a", 0, {}, calls) == WindowChanges(
        LimitedModel("a"),
        {
            2: LimitedModel("a", 16_000),
            4: LimitedModel("a", 17_000),
            5: LimitedModel("a", 8_000),
        },
    )
    assert changes_in_batch("a", 0, {"a": 4_000}, calls[:1]) == WindowChanges(
        LimitedModel("a", 4_000), {1: LimitedModel("a", 9_000)}
    )


@pytest.mark.proves("R5", "L3")
def test_the_window_is_that_of_the_model_that_the_newest_event_names() -> None:
    calls = [
        ModelCall(2, "late", None, 9_000),
        ModelCall(5, "b", None, 9_000),
        ModelCall(7, "a", None, 0),
    ]

    changes = changes_in_batch("a", 4, {"a": 8_000}, calls)

    assert changes == WindowChanges(
        LimitedModel("a", 8_000), {5: LimitedModel("b"), 7: LimitedModel("a", 8_000)}
    )
    assert [changes.at(seq).model for seq in (4, 5, 6, 7)] == ["a", "b", "b", "a"]


def test_a_session_without_limits_has_none() -> None:
    assert read_limits(None) == {}
    assert read_limits('{"m": 16000}') == {"m": 16_000}


@pytest.mark.proves("R5", "E1")
def test_an_overflow_fires_before_everything_else_with_the_smaller_of_two_limits() -> None:
    limits = TriggerLimits.of(POLICY, model_window=10_000)

    assert limits.fired(SessionLoad(9, 20_000, is_overflow=True))[0] == FiredTrigger(
        Trigger.USAGE, 8_000
    )
    assert limits.fired(SessionLoad(9, 5_000, is_overflow=True)) == [
        FiredTrigger(Trigger.USAGE, 3_000)
    ]


@pytest.mark.proves("R5", "E1")
def test_an_overflow_fires_without_other_limits_but_not_where_nothing_evicts() -> None:
    load = SessionLoad(9, 5_000, is_overflow=True)
    untriggered = replace(POLICY, reserve_tokens=0)

    def fired(policy: Policy, window: int) -> list[FiredTrigger]:
        return TriggerLimits.of(policy, model_window=window).fired(load)

    assert fired(untriggered, 10_000) == [FiredTrigger(Trigger.USAGE, 3_000)]
    assert fired(untriggered, 0) == []
    assert fired(replace(untriggered, mode=Mode.MANUAL), 10_000) == []


@pytest.mark.proves("R5", "E1", "E7")
@pytest.mark.parametrize(
    ("window", "load", "limit"),
    [
        # A call of 5,000 counted tokens was too long.
        (10_000, SessionLoad(9, 5_000), 3_000),
        (10_000, SessionLoad(9, 4_000), None),
        (0, SessionLoad(9, 5_000), None),
        # A report was too large.
        (10_000, SessionLoad(9, 4_000, reported_tokens=8_001), 8_000),
        (20_000, SessionLoad(9, 4_000, reported_tokens=8_001), None),
    ],
)
def test_a_planned_eviction_by_usage_takes_place_as_long_as_the_next_call_would_be_too_long(
    window: int, load: SessionLoad, limit: int | None
) -> None:
    limits = TriggerLimits.of(POLICY, model_window=window)
    planned = FiredTrigger(Trigger.USAGE, 8_000 if load.reported_tokens else 3_000)

    fired = trigger_of_plan(planned, limits, load, POLICY, asked_tokens=0, is_idle=False)

    assert fired == (limit and FiredTrigger(Trigger.USAGE, limit))
