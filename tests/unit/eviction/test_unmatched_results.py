"""When results leave that stand beside no call: they have no block to leave with."""

from dataclasses import replace

import pytest

from tests.unit.eviction.test_eviction import HOUR_MS, POLICY, evicted, rounds, said
from turnfold.core.eviction.batch import plan_evictions
from turnfold.core.eviction.triggers import Trigger
from turnfold.messages import CallRef, Message, position_of

LATER_MS = 2 * HOUR_MS


def one_turn_and_results(number: int) -> list[Message]:
    """A question and its answer, then so many results."""
    return said("user", "assistant", *["tool"] * number)


@pytest.mark.proves("E3", "C4")
def test_the_oldest_leave_where_no_block_leaves_and_the_newest_stay() -> None:
    assert evicted(one_turn_and_results(30), now_ms=LATER_MS) == list(range(3, 29))
    assert evicted(said(*["tool"] * 30), now_ms=LATER_MS) == list(range(1, 27))


@pytest.mark.proves("E3")
def test_they_leave_from_among_the_blocks_that_stay() -> None:
    live = said(*rounds(10), *["tool"] * 30, *rounds(1))

    assert evicted(live, now_ms=LATER_MS) == [*range(1, 19), *range(21, 47)]


@pytest.mark.proves("E3")
def test_few_of_them_stay_with_the_blocks_around_them() -> None:
    live = said(*rounds(10), "tool", "tool", *rounds(1))

    assert evicted(live, now_ms=LATER_MS) == list(range(1, 19))


@pytest.mark.proves("E3")
def test_they_fill_what_the_blocks_leave_of_the_tokens_to_keep() -> None:
    live = one_turn_and_results(30)

    assert evicted(live, replace(POLICY, keep_tokens=1_000), now_ms=LATER_MS)[-1] == 24
    assert evicted(live, replace(POLICY, keep_tokens=300), now_ms=LATER_MS)[-1] == 28
    assert evicted(live, replace(POLICY, keep_tokens=10**6), now_ms=LATER_MS) == []
    at_most = replace(POLICY, keep_tokens=10**6, keep_at_most_messages=12)
    assert evicted(live, at_most, now_ms=LATER_MS)[-1] == 22


@pytest.mark.proves("E3", "I1")
def test_they_stay_as_long_as_a_call_may_follow_them() -> None:
    live = one_turn_and_results(30)

    assert evicted(live, now_ms=HOUR_MS) == []
    assert evicted(live, now_ms=HOUR_MS + 10) == list(range(3, 11))
    assert evicted(live, replace(POLICY, open_call_timeout_seconds=0))[-1] == 28


@pytest.mark.proves("E3", "I1")
def test_copies_and_results_of_evicted_calls_need_not_wait() -> None:
    live = one_turn_and_results(30)
    live[5] = replace(live[5], is_copy=True)
    live[7] = replace(live[7], answers=CallRef(position_of(1, 0), 0))

    assert evicted(live) == [6, 8]


@pytest.mark.proves("L3", "I1")
def test_a_batch_that_brings_the_call_later_evicts_no_result_of_it() -> None:
    live = said("user", *[f"tool c{index}" for index in range(30)], *rounds(1))
    live = [
        replace(one, answers=CallRef(position_of(40, 0), 0)) if one.role == "tool" else one
        for one in live
    ]

    batch = [message.stream_seq for message in live]

    assert plan_evictions(live, batch, 0, POLICY, model_window=0) == ()


@pytest.mark.proves("E5")
def test_superseded_instructions_leave_with_blocks_alone() -> None:
    live = said("user", *["system"] * 20, "assistant")

    assert evicted(live, trigger=Trigger.REQUEST, now_ms=LATER_MS) == []
