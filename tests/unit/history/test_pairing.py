"""Which result answers which call."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnfold.core.history.pairing import (
    WAITS,
    CallPosition,
    MatchedResult,
    ResultPosition,
    has_later_answer,
    match_after_calls,
    match_results,
    match_since,
)
from turnfold.messages import MESSAGES_PER_EVENT, CallRef, position_of

COPY = MatchedResult(None, True)


def call(position: int, slot: int = 0, *, named: int | None = None) -> CallPosition:
    return CallPosition(position, slot, named)


def result(position: int, said: str = "42", *, named: int | None = None) -> ResultPosition:
    return ResultPosition(position, said.encode(), named)


def to(position: int, slot: int = 0, *, by: int | None = None) -> MatchedResult:
    return MatchedResult(CallRef(position, slot), False, by)


def at(seq: int) -> int:
    """Return the position of the first message of an event."""
    return position_of(seq, 0)


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


@pytest.mark.proves("I1", "I2")
def test_a_result_that_waits_takes_no_call_that_its_own_event_answers() -> None:
    """I2: ids are used again, and all later results would be one call late."""
    calls = [call(at(seq)) for seq in (1, 3, 5)]
    own = [result(at(seq) + 1, f"of {seq}") for seq in (1, 3, 5)]
    odd, early = result(at(2), "else"), result(at(4), "of 5")

    assert match_results(calls, [*own, odd]) == {
        **{at(seq) + 1: to(at(seq)) for seq in (1, 3, 5)},
        at(2): WAITS,
    }
    assert match_results(calls[1:], [own[1], odd, early, own[2]]) == {
        at(3) + 1: to(at(3)),
        at(2): WAITS,
        at(4): to(at(5)),
        at(5) + 1: COPY,
    }
    assert match_results([*calls, call(at(6))], [*own, odd])[at(2)] == to(at(6))


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


@pytest.mark.proves("G1")
def test_results_and_their_copies_follow_a_retracted_call_whenever_they_come() -> None:
    calls = [call(at(1), named=3)]

    for seqs in ((2, 4), (4, 5)):
        matches = match_results(calls, [result(at(seq)) for seq in seqs])
        assert matches[at(seqs[0])] == to(at(1), by=3)
    assert match_results(calls, [result(at(2)), result(at(2) + 1)]) == {
        at(2): to(at(1), by=3),
        at(2) + 1: MatchedResult(None, True, 3),
    }


@pytest.mark.proves("G1")
def test_a_result_retracted_before_its_call_frees_it_and_one_retracted_later_stays() -> None:
    late = result(at(5), "new")

    freed = match_results([call(at(1), named=4)], [result(at(2), named=3), late])
    kept = match_results([call(at(1), named=3)], [result(at(2), named=4), late])

    assert freed == {at(2): to(at(1), by=3), at(5): to(at(1), by=4)}
    assert kept == {at(2): to(at(1), by=3), at(5): WAITS}


@pytest.mark.proves("G1")
def test_the_first_copy_takes_the_place_of_a_retracted_result_or_the_oldest_that_waits() -> None:
    gone = result(at(2), named=5)

    assert match_results([call(at(1))], [gone, result(at(3)), result(at(4))]) == {
        at(2): to(at(1), by=5),
        at(3): to(at(1)),
        at(4): COPY,
    }
    assert match_results([call(at(1))], [gone, result(at(3), "a"), result(at(4), "b")]) == {
        at(2): to(at(1), by=5),
        at(3): to(at(1)),
        at(4): WAITS,
    }


@pytest.mark.proves("G1")
def test_results_that_one_retraction_names_do_not_answer_for_one_another() -> None:
    matches = match_results(
        [call(at(1))], [result(at(2), named=4), result(at(3), "other", named=4)]
    )

    assert matches == {at(2): to(at(1), by=4), at(3): WAITS._replace(retracted_seq=4)}


@pytest.mark.proves("G1")
def test_what_is_said_again_after_its_retraction_is_no_copy() -> None:
    calls = [call(at(1), named=3), call(at(5))]

    matches = match_results(calls, [result(at(2)), result(at(4))])

    assert matches == {at(2): to(at(1), by=3), at(4): to(at(5))}


def test_a_call_without_a_result_leaves_no_verdict() -> None:
    assert match_results([call(1)], []) == {}


seen = st.lists(st.tuples(st.booleans(), st.sampled_from(["42", "43"])), max_size=12)


def told(
    entries: list[tuple[bool, str]], *, per_event: int = 1
) -> tuple[list[CallPosition], list[ResultPosition]]:
    places = [position_of(n // per_event, n % per_event) for n in range(len(entries))]
    calls = [call(at) for at, (is_call, _) in zip(places, entries, strict=True) if is_call]
    return calls, [
        result(at, said) for at, (is_call, said) in zip(places, entries, strict=True) if not is_call
    ]


@pytest.mark.proves("L1", "L5")
@given(seen, st.integers(1, 12))
def test_every_result_has_a_verdict_and_no_call_two_answers(
    entries: list[tuple[bool, str]], per_event: int
) -> None:
    calls, results = told(entries, per_event=per_event)

    verdicts = match_results(calls, results)

    answered = [verdict.answers for verdict in verdicts.values() if verdict.answers]
    assert set(verdicts) == {one.position for one in results}
    assert len(set(answered)) == len(answered)
    assert {answer.position for answer in answered} <= {one.position for one in calls}
    assert not any(verdict.answers and verdict.is_copy for verdict in verdicts.values())


@pytest.mark.proves("L3")
@given(seen, st.integers(1, 12), st.randoms(use_true_random=False))
def test_the_order_of_arrival_changes_nothing(
    entries: list[tuple[bool, str]], per_event: int, random: Random
) -> None:
    calls, results = told(entries, per_event=per_event)

    shuffled = match_results(random.sample(calls, len(calls)), random.sample(results, len(results)))

    assert shuffled == match_results(calls, results)


@pytest.mark.proves("G1", "L5")
@given(seen, st.lists(st.one_of(st.none(), st.integers(1, 14)), min_size=12, max_size=12))
def test_a_live_result_answers_a_live_call_and_one_that_is_not_named_follows_its_call(
    entries: list[tuple[bool, str]], retractions: list[int | None]
) -> None:
    # Events have even sequences here, and retractions odd ones.
    named = [
        None if seq is None or seq <= place else 2 * seq - 1
        for place, seq in enumerate(retractions)
    ]
    places = [(at(2 * place), *entry, named[place]) for place, entry in enumerate(entries)]
    calls = [call(position, named=seq) for position, is_call, _, seq in places if is_call]
    results = [
        result(position, said, named=seq) for position, is_call, said, seq in places if not is_call
    ]

    matches = match_results(calls, results)

    by_call = {one.position: one.named_seq for one in calls}
    answered = []
    for one in results:
        match = matches[one.position]
        of_call = by_call[match.answers.position] if match.answers else None
        assert match.retracted_seq is not None or of_call is None
        if one.named_seq is None and match.answers:
            assert match.retracted_seq == of_call
        if match.answers and match.retracted_seq in (None, of_call):
            answered.append(match.answers)
    assert len(answered) == len(set(answered))
    waits = any(one == WAITS for one in matches.values())
    assert not waits or {ref.position for ref in answered} == set(by_call)


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
@given(seen, st.integers(1, 12))
def test_no_call_stays_open_while_a_result_waits(
    entries: list[tuple[bool, str]], per_event: int
) -> None:
    calls, results = told(entries, per_event=per_event)

    verdicts = match_results(calls, results)

    open_calls = len(calls) - sum(verdict.answers is not None for verdict in verdicts.values())
    assert not (open_calls and WAITS in verdicts.values())


@pytest.mark.proves("L3", "L5")
@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from(["42", "43"])), max_size=24),
    st.integers(1, 4),
    st.sets(st.integers(0, 23), min_size=1, max_size=4),
    st.integers(0, 3),
)
@example(
    # A result waits while others are answered within their events.
    [(False, "42"), (False, "42"), (True, ""), (False, "43"), (True, ""), (True, "")],
    2, {2}, 1,
)  # fmt: skip
def test_recent_calls_and_results_tell_what_all_would_or_that_they_are_too_few(
    entries: list[tuple[bool, str]], per_event: int, new: set[int], events_before: int
) -> None:
    calls, results = told(entries, per_event=per_event)
    first = at(min(new))
    start = at(max(0, min(new) - events_before))

    def are_old(seen: Sequence[Any]) -> list[Any]:
        return [one for one in seen if one.position // MESSAGES_PER_EVENT not in new]

    waits = dict.fromkeys([one.position for one in results], WAITS)
    known = waits | match_results(are_old(calls), are_old(results))
    recent_calls = [one for one in calls if one.position >= start]
    recent = [one for one in results if one.position >= start]
    if not recent_calls or not has_later_answer(
        recent_calls[0], {one.position: known[one.position] for one in recent}
    ):
        recent += [
            one
            for one in results
            if one.position < start
            and not known[one.position].is_copy
            and (known[one.position].answers or CallRef(start, 0)).position >= start
        ]
    matches = match_since(recent_calls, recent, known, start=start, first=first)

    if matches is not None:
        assert known | matches == match_results(calls, results)


@pytest.mark.proves("L3", "L8")
@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from(["42", "43"])), max_size=8),
    st.lists(st.sampled_from(["42", "43"]), min_size=1, max_size=12),
    st.sets(st.integers(0, 11), min_size=1, max_size=4),
    st.integers(1, 4),
)
@example([(True, ""), (True, "")], ["42", "42", "42", "43"], {3}, 1)
def test_recent_results_behind_the_last_call_tell_what_all_would_or_that_they_are_too_few(
    entries: list[tuple[bool, str]], later: list[str], new: set[int], before: int
) -> None:
    calls, results = told([*entries, *[(False, said) for said in later]])
    behind = [one for one in results if one.position >= at(len(entries))]
    added = [one for number, one in enumerate(behind) if number in new]
    first = min([one.position for one in added], default=0)
    waits = dict.fromkeys([one.position for one in results], WAITS)
    known = waits | match_results(calls, [one for one in results if one not in added])
    newest = [one for one in behind if one.position < first][-before:]

    matches = match_after_calls(
        [*newest, *[one for one in behind if one.position >= first]], known, first=first
    )

    if matches is not None:
        assert known | matches == match_results(calls, results)


def test_recent_calls_and_results_are_enough_while_each_call_is_answered_once() -> None:
    calls = [call(at(seq)) for seq in (10, 12, 14)]
    results = [result(at(seq)) for seq in (11, 13, 15)]
    known = {at(11): to(at(10)), at(13): to(at(12)), at(15): WAITS}

    matches = match_since(calls, results, known, start=at(10), first=at(14))

    assert matches == {at(11): to(at(10)), at(13): to(at(12)), at(15): to(at(14))}
    assert has_later_answer(calls[0], known)
    assert not has_later_answer(calls[2], known)
