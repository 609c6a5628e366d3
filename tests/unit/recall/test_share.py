"""How much of a budget stays free for recall when a request arrives (F2)."""

from typing import Any

import pytest

from tests.histories import Said, assistant, history, tool, user
from turnfold.core.policy.presets import Policy
from turnfold.core.recall.block import LEAST_ROOM
from turnfold.core.window.window import WindowRequest, build_window
from turnfold.operations.query.recall_decisions import RecallWish, deciding_message
from turnfold.operations.query.recall_room import (
    QUOTES_AT_REQUEST,
    is_at_work,
    room_for_recall,
    share_for_recall,
    share_of_quotes,
)

TALK = [user("Hello."), assistant("Hello."), user("Look."), assistant("I see.")]
CALL = [user("Read it."), assistant(None, "c1"), tool("c1", "42")]
TYPED: list[Any] = [
    user("Fix it."),
    assistant("THOUGHT: see what is there\n```bash\nls src\n```"),
    Said(user("<output>core.py</output>"), is_meta=True),
    assistant("```bash\nsed -n 1,80p src/core.py\n```"),
    Said(user("<output>def run(): ...</output>"), is_meta=True),
]
"""An agent without tool calls: a program runs what it writes."""


@pytest.mark.proves("F2", "L11")
def test_talk_leaves_more_room_for_recall_than_work() -> None:
    """Calls of the newest turn do not count, so that the beginning of its window stays."""
    policy = Policy(recall_share=0.5)

    shares = [
        share_for_recall(policy, history([*TALK, *more]).stored.messages, is_asked=False)
        for more in ([], CALL, [*CALL, assistant("42."), user("Thanks.")])
    ]

    assert shares == pytest.approx([0.65, 0.65, 0.5])


@pytest.mark.proves("F2")
def test_the_only_turn_of_a_session_is_taken_for_work() -> None:
    """An agent works on one task from its first request on, and needs its summary."""
    policy = Policy(recall_share=0.5)

    for said in (CALL, TALK[:1]):
        assert share_for_recall(policy, history(said).stored.messages, is_asked=True) == 0.5


@pytest.mark.proves("F2")
def test_an_agent_whose_commands_a_program_runs_is_at_work_without_tool_calls() -> None:
    """It needs names and figures for its next step; in talk, whole messages answer best."""
    policy = Policy(recall_share=0.5)
    asked = WindowRequest(budget_tokens=1_000, recall_share=0.5)

    def shares(said: list[Any]) -> tuple[float, float]:
        stored = history(said).stored
        window = build_window(stored, asked, policy)
        return (
            share_for_recall(policy, stored.messages, is_asked=False),
            share_of_quotes(window),
        )

    assert shares([*TYPED, user("Now the tests.")]) == (0.5, QUOTES_AT_REQUEST)
    assert shares(TYPED) == (0.5, 1.0)
    assert shares([*TALK, user("Thanks.")]) == pytest.approx((0.65, 0.0))


@pytest.mark.proves("F2")
def test_a_few_messages_of_programs_make_no_work_of_talk() -> None:
    reminder = Said(user("It is Monday."), is_meta=True)

    assert not is_at_work(history([*TALK, reminder]).stored.messages)
    assert not is_at_work(history([*TALK, *TYPED[:-1]]).stored.messages)
    assert is_at_work(history([user("Hello."), *TYPED]).stored.messages)
    assert not is_at_work(())


@pytest.mark.proves("F2")
def test_a_request_with_its_own_query_leaves_more_room_in_talk() -> None:
    talk = history(TALK).stored.messages

    assert share_for_recall(Policy(recall_share=0.5), talk, is_asked=True) == pytest.approx(0.9)


def test_a_policy_without_recall_leaves_no_room() -> None:
    assert (
        share_for_recall(Policy(recall_share=0.0), history(TALK).stored.messages, is_asked=True)
        == 0.0
    )


@pytest.mark.proves("F2", "W14")
@pytest.mark.parametrize(("budget", "share"), [(1_000, 1.0), (10_000, 0.75)])
def test_a_block_within_a_turn_is_not_halved_by_its_next_step(budget: int, share: float) -> None:
    """A block that takes all would be halved at once, and be gone half of the time.

    Small windows are trimmed again before it is gone.
    """
    asked = WindowRequest(budget_tokens=budget, recall_share=0.5)
    window = build_window(history([*TALK, *CALL]).stored, asked, Policy())

    room = room_for_recall(window, Policy(), RecallWish(), factor=1.0)

    assert room == int(share * (budget - window.total))


@pytest.mark.proves("F2")
def test_a_room_that_holds_no_block_worth_its_frame_is_none() -> None:
    asked = WindowRequest(budget_tokens=1_000, recall_share=0.5)
    window = build_window(history([*TALK, *CALL]).stored, asked, Policy())

    rooms = [
        room_for_recall(window, Policy(), RecallWish(tokens=tokens), factor=1.0)
        for tokens in (LEAST_ROOM - 1, LEAST_ROOM, LEAST_ROOM + 1)
    ]

    assert rooms == [0, LEAST_ROOM, LEAST_ROOM + 1]


@pytest.mark.proves("F2", "L11")
def test_the_block_of_a_running_turn_is_decided_at_its_request_or_at_a_later_trim() -> None:
    roomy = WindowRequest(budget_tokens=1_000, recall_share=0.5)
    tight = WindowRequest(budget_tokens=90, recall_share=0.5)
    said = [*TALK, *CALL, assistant(None, "c2"), tool("c2", "word " * 60)]
    stored = history(said).stored

    in_place = deciding_message(build_window(stored, roomy, Policy()))
    trimmed = deciding_message(build_window(stored, tight, Policy()))

    assert in_place == stored.messages[len(TALK)]
    assert trimmed == stored.messages[-1]
