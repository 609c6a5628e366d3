"""Trims that make room for five turns, where ten fit."""

from itertools import pairwise
from statistics import median

import pytest

from tests.histories import History, Said, assistant, history, plan, system, tool, user, words
from turnfold.core.policy.presets import Policy
from turnfold.core.window.budget_shares import SessionTurns
from turnfold.core.window.views import ShownMessage
from turnfold.core.window.window import WindowRequest

TURNS = 60


def turn(number: int) -> list[Said]:
    call = f"c{number}"
    return [
        Said(user(f"{number} {words(20)}")),
        Said(assistant(None, call)),
        Said(tool(call, words(70))),
        Said(assistant(words(40 + number % 7))),
    ]


def turn_tokens(session: History) -> int:
    sizes = SessionTurns()
    for message in session.stored.messages:
        sizes.add(message)
    return sizes.median


def turns_between_trims(policy: Policy, turns_of_budget: int) -> float:
    """Return the median number of turns between two windows that begin otherwise."""
    said = [one for number in range(TURNS) for one in turn(number)]
    whole = history(said)
    budget = turns_of_budget * turn_tokens(whole)
    starts: list[str] = []
    each = len(said) // TURNS
    for number in range(1, TURNS + 1):
        request = WindowRequest(budget_tokens=budget, tells_omitted=False)
        made = plan(history(said[: number * each]).stored, request, policy)
        shown = (entry for entry in made.entries if isinstance(entry, ShownMessage))
        starts.append(next(shown).message.message_id)
    trims = [number for number, (last, now) in enumerate(pairwise(starts)) if last != now]
    return median(later - sooner for sooner, later in pairwise(trims))


@pytest.mark.proves("W3", "W14")
@pytest.mark.parametrize("recall_share", [0.0, 0.5])
@pytest.mark.parametrize("turns_of_budget", [11, 16])
def test_five_turns_fit_before_the_next_trim(turns_of_budget: int, recall_share: float) -> None:
    policy = Policy(recall_share=recall_share)

    assert turns_between_trims(policy, turns_of_budget) >= 5


@pytest.mark.parametrize(
    ("policy", "turns_of_budget"),
    [
        pytest.param(Policy(recall_share=0.0, low_water_ratio=0.9), 11, id="a set ratio"),
        pytest.param(Policy(recall_share=0.0), 8, id="ten turns do not fit"),
    ],
)
def test_otherwise_trims_come_sooner(policy: Policy, turns_of_budget: int) -> None:
    assert turns_between_trims(policy, turns_of_budget) < 5


def test_turns_are_measured_once_they_have_ended() -> None:
    sizes = SessionTurns()
    first, second = (history(turn(number)).stored.messages for number in (0, 1))

    assert (sizes.median, sizes.median_after_request) == (0, 0)
    for message in first:
        sizes.add(message)
    assert sizes.median == 0
    for message in (*second, first[0]):
        sizes.add(message)

    whole = [sum(message.tokens for message in one) for one in (first, second)]
    assert sizes.median == sum(whole) // 2
    asked = [one[0].tokens for one in (first, second)]
    assert sizes.median_after_request == (sum(whole) - sum(asked)) // 2


@pytest.mark.proves("L11", "W14")
def test_an_answer_that_stays_when_it_makes_room_stays_for_the_next_request() -> None:
    """A long system message leaves little room: otherwise each turn would be trimmed twice."""
    said = [Said(system(words(1_800)))]
    request = WindowRequest(budget_tokens=4_000, recall_share=0.5)
    kept: list[bool] = []

    for number in range(12):
        asked, *steps, _ = turn(number)
        said += [asked, *steps, Said(assistant(words(300)))]
        answered, next_asked = (
            plan(history(messages).stored, request, Policy()).entries
            for messages in (said, [*said, asked])
        )
        kept.append(answered == next_asked[:-1])

    assert all(kept)
