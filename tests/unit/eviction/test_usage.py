"""What reports of usage teach, and when they set off an eviction."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnfold.core.eviction.batch import Eviction, plan_evictions
from turnfold.core.eviction.triggers import FiredTrigger, SessionLoad, Trigger, TriggerLimits
from turnfold.core.eviction.usage import (
    COMPACTIONS_LOOKED_AT,
    ReportDelta,
    UsageInput,
    UsageReading,
    UsageState,
    calibration_factor,
    read_report,
    usage_trigger,
)
from turnfold.core.policy.presets import PRESETS, Policy
from turnfold.messages import EventId, Message, Role, ToolCall, position_of

WINDOW = 10_000
POLICY = Policy(
    max_live_messages=0, trigger_tokens=10**9, trigger_ratio=0.0, reserve_tokens=2_000, keep_messages=4, keep_tokens=2_000, keep_ratio=0.0, keep_at_most_messages=0,
    min_gain_tokens=500,
)  # fmt: skip
FULL = 9_000


def due(load: SessionLoad, policy: Policy, *, model_window: int) -> FiredTrigger | None:
    """The first trigger that fires."""
    return next(iter(TriggerLimits.of(policy, model_window=model_window).fired(load)), None)


def differences(*ratios: float, counted_tokens: int = 1_000) -> list[ReportDelta]:
    """Differences of one session, the newest first, one a second."""
    seqs = range(len(ratios), 0, -1)
    return [
        ReportDelta(
            1, seq, 1_000 * (seq - 1), 1_000 * seq, round(ratio * counted_tokens), counted_tokens
        )
        for seq, ratio in zip(seqs, ratios, strict=True)
    ]


# --- reading


@pytest.mark.proves("T4", "I7")
@pytest.mark.parametrize(
    ("usage", "told"),
    [
        ({"prompt_tokens": 1_200, "completion_tokens": 80, "total_tokens": 1_280}, (1_200, 80)),
        ({"prompt_tokens": 7}, (7, 0)),
        (
            {
                "input_tokens": 3,
                "cache_read_input_tokens": 900,
                "cache_creation_input_tokens": 90,
                "output_tokens": 5,
            },
            (993, 5),
        ),
        ({"prompt_tokens": 50, "input_tokens": 3, "completion_tokens": -1}, (50, 0)),
        ({"prompt_tokens": 0}, None),
        ({"prompt_tokens": -7}, None),
        ({"prompt_tokens": True}, None),
        ({"prompt_tokens": "1200"}, None),
        ({"prompt_tokens": 1.5}, None),
        ({"prompt_tokens": 10**30}, None),
        ({"total_tokens": 1_280}, None),
        ({}, None),
        (None, None),
    ],
)
def test_a_report_is_read_in_the_words_of_any_provider_and_nonsense_is_none(
    usage: Any, told: Any
) -> None:
    assert read_report(usage) == told


# --- the factor


@pytest.mark.proves("T4")
def test_the_factor_is_the_median_of_the_newest_twenty_differences() -> None:
    assert calibration_factor(differences(*[1.25] * 20, *[2.0] * 30), {}) == 1.25
    assert calibration_factor(differences(1.2, 40.0, 1.3), {}) == 1.3
    assert calibration_factor(differences(*[1.0] * 9, *[1.4] * 11), {}) == 1.4


@pytest.mark.proves("T4")
def test_the_factor_stays_between_a_half_and_two_and_a_half() -> None:
    assert calibration_factor(differences(*[9.0] * 5), {}) == 2.5
    assert calibration_factor(differences(*[0.1] * 5), {}) == 0.5


@pytest.mark.proves("T4")
def test_where_little_is_known_nothing_is_corrected() -> None:
    assert calibration_factor([], {}) == 1.0
    assert calibration_factor(differences(2.0, 2.0), {}) == 1.0
    assert calibration_factor(differences(2.0, 2.0, 2.0), {}) == 2.0


@pytest.mark.proves("T4")
def test_a_window_that_shrank_and_one_without_text_teach_nothing() -> None:
    assert calibration_factor(differences(1.2, -3.0, 1.2, 0.0, 1.2), {}) == 1.2
    assert (
        calibration_factor(
            differences(1.2, 1.2, 1.2) + differences(5.0, 5.0, 5.0, counted_tokens=0), {}
        )
        == 1.2
    )


@pytest.mark.proves("T4")
def test_a_difference_with_a_compaction_between_teaches_nothing() -> None:
    known = differences(1.2, 1.2, 1.2, 5.0, 5.0, 5.0, 5.0)

    assert calibration_factor(known, {1: [0, 1_500, 2_500, 3_999]}) == 1.2
    assert calibration_factor(known, {2: [0, 1_500, 2_500, 3_999]}) == 2.5
    # Of more compactions than are looked at, the older ones may lie anywhere.
    assert calibration_factor(known, {1: [4_000 - 1] * COMPACTIONS_LOOKED_AT}) == 1.2


# --- the trigger


@pytest.mark.proves("I7", "E1")
def test_reported_usage_above_the_window_less_its_reserve_fires_and_at_it_does_not() -> None:
    assert due(SessionLoad(9, 9, 0, 1.0, 8_000), POLICY, model_window=WINDOW) is None
    assert due(SessionLoad(9, 9, 0, 1.0, 8_001), POLICY, model_window=WINDOW) == FiredTrigger(
        Trigger.USAGE, 8_000
    )


@pytest.mark.proves("I7", "E1", "T1")
def test_the_reserve_is_at_most_half_the_window_and_zero_of_either_switches_the_trigger_off() -> (
    None
):
    assert usage_trigger(16_384, model_window=128_000) == 111_616
    assert usage_trigger(16_384, model_window=20_000) == 10_000
    assert usage_trigger(0, model_window=20_000) == 0
    assert usage_trigger(16_384, model_window=0) == 0
    assert due(SessionLoad(9, 9, 0, 1.0, 10**9), POLICY, model_window=0) is None


@pytest.mark.proves("P2", "E1")
def test_a_token_budget_is_used_up_by_what_is_counted_as_by_what_is_reported() -> None:
    policy = PRESETS["token-budget"]

    assert due(SessionLoad(9, 111_616, 0, 1.0, 111_616), policy, model_window=128_000) is None
    assert due(SessionLoad(9, 111_617), policy, model_window=128_000) == FiredTrigger(
        Trigger.TOKENS, 111_616
    )
    assert due(SessionLoad(9, 9, 0, 1.0, 111_617), policy, model_window=128_000) == FiredTrigger(
        Trigger.USAGE, 111_616
    )
    assert due(
        SessionLoad(9, 8_001), replace(policy, trigger_tokens=8_000), model_window=128_000
    ) == FiredTrigger(Trigger.TOKENS, 8_000)


@pytest.mark.proves("I7", "P1", "P6")
def test_the_default_keeps_a_reserve_and_the_static_buffer_counts_messages_alone() -> None:
    assert PRESETS["balanced"].reserve_tokens == 16_384
    assert PRESETS["static-buffer"].reserve_tokens == 0


@pytest.mark.proves("T5", "E1")
def test_the_token_trigger_counts_as_the_model_does() -> None:
    policy = replace(POLICY, trigger_tokens=1_000)

    assert due(SessionLoad(9, 900), policy, model_window=WINDOW) is None
    assert due(SessionLoad(9, 900, 0, 1.25), policy, model_window=WINDOW) == FiredTrigger(
        Trigger.TOKENS, 1_000
    )
    assert due(SessionLoad(9, 1_100, 0, 0.8), policy, model_window=WINDOW) is None


# --- what comes of a report


def said(number: int, tokens: int = 200, first_seq: int = 1) -> list[Message]:
    """So many events of one message each, in turns a question and an answer."""
    roles = (Role.USER, Role.ASSISTANT)
    return [
        Message(
            position_of(seq, 0),
            EventId(f"e{seq}"),
            0,
            roles[seq % 2 == 0],
            tokens,
            created_at_ms=seq,
        )
        for seq in range(first_seq, first_seq + number)
    ]


def replayed(
    live: Sequence[Message],
    readings: dict[int, int],
    gauge: UsageState | None = None,
    policy: Policy = POLICY,
) -> list[Eviction]:
    """What leaves when these reports come with the events of these sequences; the compaction of each eviction is done at once."""
    gauge, kept, done = gauge or UsageState(), [], []
    for message in live:
        kept.append(message)
        seq = message.stream_seq
        reading = {seq: UsageReading(seq, seq, readings[seq])} if seq in readings else {}
        meter = UsageInput(gauge, reading)
        found = plan_evictions(kept, [seq], 0, policy, model_window=WINDOW, meter=meter)
        gauge = meter.after(0, gauge, usage_trigger(policy.reserve_tokens, model_window=WINDOW))
        for eviction in found:
            gone = {one.position for one in eviction.evicted}
            kept = [one for one in kept if one.position not in gone]
            gauge = eviction.gauge._replace(settled_ms=seq)
            done.append(eviction)
    return done


@pytest.mark.proves("I7", "E1", "E5")
def test_a_report_of_a_full_window_evicts_what_counting_alone_would_have_kept() -> None:
    (eviction,) = replayed(said(20), {20: FULL})

    assert eviction.due == FiredTrigger(Trigger.USAGE, 8_000)
    assert [message.stream_seq for message in eviction.evicted] == list(range(1, 11))


@pytest.mark.proves("I7", "E5")
def test_a_report_is_not_trusted_where_too_little_could_leave() -> None:
    assert replayed(said(12), {12: FULL}) == []
    assert replayed(said(12, tokens=20), {12: FULL}) == []


@pytest.mark.proves("C29", "I7")
def test_a_report_from_before_the_last_compaction_sets_off_nothing() -> None:
    live = said(40)
    stale = UsageState(seq=39, at_ms=39, tokens=FULL, settled_ms=39)

    assert plan_evictions(live, [40], 0, POLICY, model_window=WINDOW, meter=UsageInput(stale)) == ()
    assert (
        len(
            plan_evictions(
                live,
                [40],
                0,
                POLICY,
                model_window=WINDOW,
                meter=UsageInput(stale._replace(settled_ms=38)),
            )
        )
        == 1
    )


@pytest.mark.proves("C29", "I7")
def test_a_report_that_comes_late_does_not_take_a_newer_ones_place() -> None:
    newer = UsageState(seq=30, at_ms=30, tokens=100)

    assert newer.with_reading(UsageReading(29, 29, FULL), 8_000) == newer


@pytest.mark.proves("C31")
def test_a_window_still_full_after_its_compaction_escalates_once_and_then_rests() -> None:
    always_full = dict.fromkeys(range(20, 200), FULL)

    first, second = replayed(said(200), always_full)

    assert (first.is_escalated, second.is_escalated) == (False, True)
    assert (first.gauge.evictions, second.gauge.evictions) == (1, 2)
    # Of the ten messages that the first kept for their tokens, the second keeps four, from a question on.
    assert (len(first.stays), len(second.stays)) == (10, 5)


@pytest.mark.proves("I7", "X6")
def test_of_thousands_of_live_messages_only_a_report_that_fires_another_trigger_is_examined() -> (
    None
):
    call = ToolCall(0, "c", "search", 10)
    live = [replace(message, role=Role.ASSISTANT, calls=(call,)) for message in said(1_100)]
    told = {1_101: FULL, 1_102: FULL, 1_103: 1_000, 1_104: FULL}
    # From the second report on, the open calls have timed out, so that most messages may leave.
    times = {1_101: 2_000, 1_102: 10**7, 1_103: 10**7 + 1, 1_104: 10**7 + 2}
    readings = {seq: UsageReading(seq, times[seq], tokens) for seq, tokens in told.items()}
    meter = UsageInput(UsageState(), readings, times=times, reports=frozenset(told))

    (eviction,) = plan_evictions(live, told, 0, POLICY, model_window=WINDOW, meter=meter)

    assert (eviction.due.trigger, eviction.seq) == (Trigger.USAGE, 1_104)


@pytest.mark.proves("C31", "I7")
def test_a_report_within_the_limit_ends_the_rest() -> None:
    readings = (
        dict.fromkeys(range(20, 80), FULL) | {80: 1_000} | dict.fromkeys(range(81, 200), FULL)
    )

    done = replayed(said(200), readings)

    assert [one.is_escalated for one in done] == [False, True, False, True]


@pytest.mark.proves("C31", "E5")
def test_more_tokens_than_the_limit_after_an_eviction_escalate_it_at_once_and_are_told_when_that_is_not_enough() -> (
    None
):
    policy = replace(POLICY, reserve_tokens=0, trigger_tokens=1_000, keep_tokens=0, keep_rounds=4)

    enough = plan_evictions(said(20), range(20, 21), 0, policy, model_window=WINDOW)
    too_long = plan_evictions(said(20, tokens=400), range(20, 21), 0, policy, model_window=WINDOW)

    assert [(one.is_escalated, one.is_over, len(one.stays)) for one in enough] == [(True, False, 4)]
    assert [(one.is_escalated, one.is_over, len(one.stays)) for one in too_long] == [
        (True, True, 4)
    ]


sizes = st.lists(st.integers(1, 3_000), min_size=1, max_size=80)
policies = st.builds(
    lambda tokens, ratio, keep, keep_tokens, gain: replace(
        POLICY, trigger_tokens=tokens, trigger_ratio=ratio, keep_messages=keep, keep_tokens=keep_tokens, min_gain_tokens=gain
    ),
    st.sampled_from([10**9, 500, 6_000]), st.sampled_from([0.0, 0.6]), st.integers(0, 12), st.sampled_from([0, 2_000, 20_000]),
    st.sampled_from([1, 500, 2_000]),
)  # fmt: skip


@pytest.mark.proves("E5", "C31")
@given(sizes, policies, st.data())
def test_no_compaction_loop_is_possible(
    tokens: list[int], policy: Policy, data: st.DataObject
) -> None:
    live = [
        replace(message, tokens=size)
        for message, size in zip(said(len(tokens)), tokens, strict=True)
    ]
    readings = data.draw(
        st.dictionaries(
            st.integers(1, len(live)),
            st.sampled_from([FULL, FULL, FULL, 10**6, 7_999]),
            max_size=len(live),
        )
    )

    done = replayed(live, readings, policy=policy)

    # Each eviction wins what makes it worth it, so there are never more than messages can pay for;
    won = [sum(message.tokens for message in one.evicted) for one in done]
    assert all(gain >= policy.min_gain_tokens for gain in won)
    assert sum(won) <= sum(tokens)
    # and no report sets off a third in a row.
    relieved = [seq for seq, told in readings.items() if told == 7_999]
    assert len([one for one in done if one.due.trigger is Trigger.USAGE]) <= 2 * (1 + len(relieved))


@pytest.mark.proves("L3", "I7")
@given(sizes, policies, st.data())
def test_a_batch_with_reports_evicts_what_its_events_would_have_evicted_one_by_one(
    tokens: list[int], policy: Policy, data: st.DataObject
) -> None:
    live = [
        replace(message, tokens=size)
        for message, size in zip(said(len(tokens)), tokens, strict=True)
    ]
    told = data.draw(
        st.dictionaries(
            st.integers(1, len(live)), st.sampled_from([FULL, 7_999]), max_size=len(live)
        )
    )
    readings = {seq: UsageReading(seq, seq, tokens) for seq, tokens in told.items()}
    limit = usage_trigger(policy.reserve_tokens, model_window=WINDOW)

    together = plan_evictions(
        live,
        [one.stream_seq for one in live],
        0,
        policy,
        model_window=WINDOW,
        meter=UsageInput(UsageState(), readings),
    )

    gauge, kept = UsageState(), list[Message]()
    alone: list[Eviction] = []
    for message in live:
        kept.append(message)
        meter = UsageInput(
            gauge, {seq: one for seq, one in readings.items() if seq == message.stream_seq}
        )
        found = plan_evictions(
            kept, [message.stream_seq], 0, policy, model_window=WINDOW, meter=meter
        )
        gauge = found[-1].gauge if found else meter.after(0, gauge, limit)
        alone += found
        kept = [one for one in kept if not any(one in eviction.evicted for eviction in found)]
    # How many rounds began is counted by the session, and not asked here.
    assert [replace(one, load=one.load._replace(rounds=0)) for one in together] == [
        replace(one, load=one.load._replace(rounds=0)) for one in alone
    ]
