"""Which result answers which call."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnfold.core.history.pairing import (
    WAITS,
    CallPosition,
    MatchedResult,
    ResultPosition,
    match_results,
)
from turnfold.messages import CallRef

COPY = MatchedResult(None, True)


def call(position: int, slot: int = 0) -> CallPosition:
    return CallPosition(position, slot)


def result(position: int, said: str = "42") -> ResultPosition:
    return ResultPosition(position, said.encode())


def to(position: int, slot: int = 0) -> MatchedResult:
    return MatchedResult(CallRef(position, slot), False)


@pytest.mark.proves("I1")
def test_a_result_answers_the_nearest_earlier_call() -> None:
    assert match_results([call(1), call(5)], [result(6)]) == {6: to(5)}


@pytest.mark.proves("I1")
def test_a_second_result_answers_the_call_before_that_one() -> None:
    assert match_results([call(1), call(5)], [result(6), result(7, "other")]) == {
        6: to(5),
        7: to(1),
    }


@pytest.mark.proves("I1")
def test_a_result_before_any_call_waits_for_the_next_one() -> None:
    assert match_results([], [result(1)]) == {1: WAITS}
    assert match_results([call(2)], [result(1)]) == {1: to(2)}


@pytest.mark.proves("I1")
def test_of_several_that_wait_the_one_that_waited_longest_is_taken_first() -> None:
    assert match_results([call(3), call(4)], [result(1, "one"), result(2, "two")]) == {
        1: to(3),
        2: to(4),
    }


@pytest.mark.proves("I1")
def test_the_same_said_again_is_a_copy() -> None:
    assert match_results([call(1)], [result(2), result(3), result(4)]) == {
        2: to(1),
        3: COPY,
        4: COPY,
    }


@pytest.mark.proves("I1")
def test_something_else_said_again_waits_for_the_next_call() -> None:
    assert match_results([call(1)], [result(2), result(3, "other")]) == {2: to(1), 3: WAITS}
    assert match_results([call(1), call(4)], [result(2), result(3, "other")]) == {
        2: to(1),
        3: to(4),
    }


@pytest.mark.proves("I1")
def test_a_result_published_early_and_again_with_its_turn_answers_once() -> None:
    assert match_results([call(2)], [result(1), result(3)]) == {1: to(2), 3: COPY}


@pytest.mark.proves("I2")
def test_calls_of_one_message_are_answered_slot_by_slot() -> None:
    assert match_results([call(1, 0), call(1, 3)], [result(2), result(3)]) == {
        2: to(1, 3),
        3: to(1, 0),
    }


@pytest.mark.proves("I2")
def test_an_id_used_again_in_later_turns_is_answered_each_time() -> None:
    assert match_results([call(1), call(3), call(5)], [result(2), result(4), result(6)]) == {
        2: to(1),
        4: to(3),
        6: to(5),
    }


def test_a_call_without_a_result_leaves_no_verdict() -> None:
    assert match_results([call(1)], []) == {}


seen = st.lists(st.tuples(st.booleans(), st.sampled_from(["42", "43"])), max_size=12)


def told(entries: list[tuple[bool, str]]) -> tuple[list[CallPosition], list[ResultPosition]]:
    calls = [call(position) for position, (is_call, _) in enumerate(entries) if is_call]
    return calls, [
        result(position, said) for position, (is_call, said) in enumerate(entries) if not is_call
    ]


@pytest.mark.proves("L1", "L5")
@given(seen)
def test_every_result_has_a_verdict_and_no_call_two_answers(
    entries: list[tuple[bool, str]],
) -> None:
    calls, results = told(entries)

    verdicts = match_results(calls, results)

    answered = [verdict.answers for verdict in verdicts.values() if verdict.answers]
    assert set(verdicts) == {one.position for one in results}
    assert len(set(answered)) == len(answered)
    assert {answer.position for answer in answered} <= {one.position for one in calls}
    assert not any(verdict.answers and verdict.is_copy for verdict in verdicts.values())


@pytest.mark.proves("L3")
@given(seen, st.randoms(use_true_random=False))
def test_the_order_of_arrival_changes_nothing(
    entries: list[tuple[bool, str]], random: Random
) -> None:
    calls, results = told(entries)

    shuffled = match_results(random.sample(calls, len(calls)), random.sample(results, len(results)))

    assert shuffled == match_results(calls, results)


@pytest.mark.proves("L11")
@given(seen, st.integers(0, 12))
def test_what_comes_later_takes_no_answer_away(
    entries: list[tuple[bool, str]], length: int
) -> None:
    before, after = match_results(*told(entries[:length])), match_results(*told(entries))

    assert all(
        after[position] == verdict for position, verdict in before.items() if verdict != WAITS
    )
    assert all(
        not after[position].is_copy for position, verdict in before.items() if verdict == WAITS
    )


@pytest.mark.proves("I1", "L5")
@given(seen)
def test_no_call_stays_open_while_a_result_waits(entries: list[tuple[bool, str]]) -> None:
    calls, results = told(entries)

    verdicts = match_results(calls, results)

    open_calls = len(calls) - sum(verdict.answers is not None for verdict in verdicts.values())
    assert not (open_calls and WAITS in verdicts.values())
