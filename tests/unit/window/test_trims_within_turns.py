"""Trims that make room for recall while a turn runs that has outgrown its window."""

from itertools import pairwise

import pytest

from tests.histories import Said, assistant, history, tool, user, words
from turnfold.core.policy.presets import Policy
from turnfold.core.window.budget_shares import (
    MOST_KEPT_OF_SMALL,
    MOST_KEPT_WITH_RECALL,
    ROOM_OF_SMALL,
    ROOM_WITHIN_TURN,
)
from turnfold.core.window.growth import LEAST_GROWTH
from turnfold.core.window.window import WindowRequest, build_window

STEP_WORDS = 90


def totals(budget: int, steps: int, recall_share: float = 0.5) -> list[int]:
    """The sizes of the windows of one turn, after each result."""
    said: list[Said] = [Said(user("Find the file that holds the key."))]
    asked = WindowRequest(budget_tokens=budget, recall_share=recall_share)
    found = []
    for number in range(steps):
        said += [
            Said(assistant(None, f"c{number}", arguments=f'{{"path": "/srv/part_{number}.py"}}')),
            Said(tool(f"c{number}", words(STEP_WORDS))),
        ]
        found.append(build_window(history(said).stored, asked, Policy()).total)
    return found


@pytest.mark.proves("W13", "W14")
@pytest.mark.parametrize(
    ("budget", "kept", "share"),
    [
        (4_000, MOST_KEPT_OF_SMALL, ROOM_OF_SMALL),
        (8_000, MOST_KEPT_WITH_RECALL, ROOM_WITHIN_TURN),
    ],
)
def test_a_window_keeps_room_for_lines_once_its_turn_has_outgrown_it(
    budget: int, kept: float, share: float
) -> None:
    room, step, outgrown = share * (1 - kept), 2 * STEP_WORDS, budget // 90

    sizes = totals(budget, 2 * outgrown)

    assert max(sizes[:outgrown]) > budget - step
    assert max(sizes[outgrown:]) <= (1 - room) * budget + step


@pytest.mark.proves("L11")
def test_it_is_not_trimmed_at_each_step() -> None:
    sizes = totals(4_000, 90)

    freed = [now for last, now in pairwise(sizes) if now < last]
    assert LEAST_GROWTH * 4_000 * len(freed) <= 90 * 3 * STEP_WORDS
    assert len(freed) < 30


@pytest.mark.proves("W14")
@pytest.mark.parametrize("budget", [4_000, 8_000])
def test_windows_without_recall_grow_until_they_are_full(budget: int) -> None:
    sizes = totals(budget, 120, recall_share=0.0)

    assert max(sizes[-60:]) > budget - 3 * STEP_WORDS


@pytest.mark.proves("L11")
def test_a_turn_that_its_request_made_room_for_is_not_trimmed_before_the_window_is_full() -> None:
    said: list[Said] = []
    asked = WindowRequest(budget_tokens=8_000, recall_share=0.5)
    trimmed_at = []
    for turn in range(40):
        said += [
            Said(user(f"What is in part {turn}?")),
            Said(assistant(None, f"c{turn}", arguments=f'{{"path": "/srv/part_{turn}.py"}}')),
        ]
        before = build_window(history(said).stored, asked, Policy()).total
        said.append(Said(tool(f"c{turn}", words(6 * STEP_WORDS))))
        if build_window(history(said).stored, asked, Policy()).total < before:
            trimmed_at.append(before)
        said.append(Said(assistant("It is a list.")))

    assert trimmed_at
    assert min(trimmed_at) > 8_000 - 7 * STEP_WORDS


@pytest.mark.proves("L11", "W14")
@pytest.mark.parametrize("budget", range(90, 300, 10))
def test_room_for_recall_never_makes_a_window_larger_than_its_budget(budget: int) -> None:
    said: list[Said] = []
    for turn in range(8):
        said += [
            Said(user(f"Can you look up the weather of tomorrow in town {turn} for me?")),
            Said(assistant("I do.", f"c{turn}", arguments=f'{{"town": "Upper town {turn}"}}')),
            Said(tool(f"c{turn}", words(90))),
            Said(assistant("It stays dry until the evening.")),
        ]
    asked = WindowRequest(budget_tokens=budget, recall_share=0.5)

    for length in range(1, len(said) + 1):
        stored = history(said[:length]).stored
        window = build_window(stored, asked, Policy())

        # A window that had to be trimmed once more at the end is not continued by the next.
        assert window.can_continue, length
        assert window.total <= budget
