"""Places for jobs go to who holds the fewest, and nobody holds them all."""

import pytest

from turnfold.core.summary.fair_share import JobSlots
from turnfold.messages import AgentId

ADA, BOB, EVE = AgentId("ada"), AgentId("bob"), AgentId("eve")


@pytest.mark.proves("X4", "S7")
def test_an_agent_alone_leaves_one_place_to_others() -> None:
    places = JobSlots.of(4, {})

    assert places.allocate([(number, ADA) for number in range(9)]) == [0, 1, 2]


def test_a_single_place_is_nobodys_in_particular() -> None:
    assert JobSlots.of(1, {}).allocate([(1, ADA), (2, BOB)]) == [1]


def test_who_holds_the_fewest_is_next_whoever_came_first() -> None:
    waiting = [(1, ADA), (2, ADA), (3, BOB), (4, EVE)]

    assert JobSlots.of(4, {ADA: 1, BOB: 1}).allocate(waiting) == [4, 1]


def test_the_last_place_goes_to_one_who_holds_none() -> None:
    places = JobSlots.of(4, {ADA: 3})

    assert places.allocate([(1, ADA), (2, ADA)]) == []
    assert places.allocate([(1, ADA), (2, BOB)]) == [2]
