"""Scores of short sessions, many of which one number holds, are those of the weights (F2)."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnfold.core.recall.mask_ranking import (
    RELATED,
    Mask,
    add_words,
    mask_of,
    newest_in,
    score_masks,
)
from turnfold.core.recall.ranking import LEAST_PROMISING, rank, rarity_of, score
from turnfold.core.recall.region import STRETCH

ROOM = 1_000


@st.composite
def sessions(draw: st.DrawFn) -> tuple[list[int], list[set[int]]]:
    """Sizes of messages, few enough that all are scored, and the matches of lookups."""
    number = draw(st.integers(1, LEAST_PROMISING))
    lookups = st.lists(st.sets(st.integers(0, number - 1)), max_size=24)
    return draw(st.lists(st.integers(0, 5_000), min_size=number, max_size=number)), draw(lookups)


def masks(found: Sequence[set[int]], number: int) -> list[Mask]:
    """The masks of these matches."""
    return [mask_of(places, number) for places in found]


def falling(found: Sequence[set[int]]) -> list[list[int]]:
    """The same as positions, in a session whose positions are its ordinals."""
    return [sorted(places, reverse=True) for places in found]


@pytest.mark.proves("F2")
@given(sessions())
def test_masks_and_positions_count_the_same(made: tuple[list[int], list[set[int]]]) -> None:
    sizes, lookups = made
    number = len(sizes)

    counted = score_masks(masks(lookups, number), sizes, number, ROOM)

    expected = score(falling(lookups), range(number), sizes, ROOM)
    assert counted == pytest.approx(
        {at: value for at, value in expected.items() if value}, rel=1e-3
    )


@pytest.mark.proves("F2")
@given(sessions())
def test_a_word_that_the_question_lacks_counts_for_messages_that_hold_it(
    made: tuple[list[int], list[set[int]]],
) -> None:
    sizes, lookups = made
    number = len(sizes)
    scores = score_masks([], sizes, number, ROOM)

    add_words(scores, masks(lookups, number), number, RELATED)

    few = [places for places in lookups if len(places) <= number / 10]
    assert scores == pytest.approx(
        {
            at: sum(RELATED * rarity_of(len(found), number) for found in few if at in found)
            for at in set[int]().union(*few)
        }
    )


@pytest.mark.proves("F2")
@pytest.mark.parametrize("seed", range(3))
def test_of_many_matches_the_best_messages_are_those_that_positions_find(seed: int) -> None:
    """The scored stretches may differ, because masks add rounded rarities."""
    random = Random(seed)
    number = 1_500
    sizes = [random.randint(10, 300) for _ in range(number)]
    lookups = [
        {at for at in range(number) if random.random() < share}
        for share in (0.3, 0.2, 0.1, 0.03, 0.01)
    ]

    by_masks = score_masks(masks(lookups, number), sizes, number, ROOM)
    by_positions = score(falling(lookups), range(number), sizes, ROOM)

    assert len(by_masks) < number
    first = rank(by_masks, sizes, ())[:20]
    assert len(set(first) & set(rank(by_positions, sizes, ())[:20])) >= 15


@pytest.mark.proves("F2")
def test_what_is_far_from_every_match_is_not_scored() -> None:
    number = 50 * STRETCH

    counted = score_masks([mask_of([3, number - 2], number)], [50] * number, number, ROOM)

    assert set(counted) == {*range(9), *range(number - 7, number)}


@pytest.mark.proves("F2")
@given(st.sets(st.integers(0, 99)))
def test_a_mask_has_the_bit_of_each_match(places: set[int]) -> None:
    mask = mask_of(places, 100)

    assert {ordinal for ordinal in range(100) if mask >> ordinal & 1} == places


@pytest.mark.proves("F2")
@given(st.sets(st.integers(0, 300)), st.integers(1, 20))
def test_the_newest_of_a_mask_are_its_greatest_ordinals(held: set[int], most: int) -> None:
    newest = newest_in(mask_of(held, 301), most)

    assert newest == mask_of(sorted(held)[-most:], 301)
