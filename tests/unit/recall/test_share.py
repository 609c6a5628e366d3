"""How much of a budget stays free for recall when a request arrives (F2)."""

from typing import Any

import pytest

from tests.histories import Said, assistant, history, plan, tool, user, words
from turnfold.core.policy.presets import Policy
from turnfold.core.recall.block import LEAST_ROOM
from turnfold.core.window.builder import WindowBuilder
from turnfold.core.window.window import WindowRequest, build_window
from turnfold.operations.query.recall_decisions import RecallWish, deciding_message
from turnfold.operations.query.recall_room import (
    QUOTES_AT_REQUEST,
    room_for_recall,
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
REMINDER = Said(user("It is Monday."), is_meta=True)


def window(said: list[Any], **asked: Any) -> WindowBuilder:
    values: dict[str, Any] = {"budget_tokens": 1_000, "recall_share": 0.5, **asked}
    return build_window(history(said).stored, WindowRequest(**values), Policy())


def share(said: list[Any], **asked: Any) -> float:
    """The share of its budget that a window leaves free."""
    limits = window(said, **asked).limits
    return 1 - limits.arrival_tokens / limits.tokens


@pytest.mark.proves("F2", "L11")
def test_talk_leaves_more_room_for_recall_than_work() -> None:
    """Calls of the newest turn do not count, so that the beginning of its window stays."""
    shares = [share(said) for said in (TALK, [*TALK, *CALL], [*TALK, *CALL, user("Thanks.")])]

    assert shares == [0.65, 0.65, 0.5]


@pytest.mark.proves("F2")
def test_the_only_turn_of_a_session_is_taken_for_work() -> None:
    """An agent works on one task from its first request on, and needs its summary."""
    assert [share(said, is_asked=True) for said in (CALL, TALK[:1])] == [0.5, 0.5]


@pytest.mark.proves("F2")
@pytest.mark.parametrize(
    ("said", "expected"),
    [
        pytest.param([*TYPED, user("Now the tests.")], (0.5, QUOTES_AT_REQUEST), id="a request"),
        pytest.param(TYPED, (0.5, 1.0), id="its turn"),
        pytest.param([*TALK, user("Thanks.")], (0.65, 0.0), id="talk"),
        pytest.param([*TALK, REMINDER, user("Thanks.")], (0.65, 0.0), id="one of a program"),
        pytest.param([*TALK, *TYPED[:-1], user("So?")], (0.65, 0.0), id="fewer than half"),
        pytest.param([user("Hello."), *TYPED, user("So?")], (0.5, 0.0), id="half"),
    ],
)
def test_an_agent_whose_commands_a_program_runs_is_at_work_without_tool_calls(
    said: list[Any], expected: tuple[float, float]
) -> None:
    """It needs names and figures for its next step; in talk, whole messages answer best."""
    assert (share(said), share_of_quotes(window(said))) == expected


@pytest.mark.proves("F2")
def test_a_request_with_its_own_query_leaves_more_room_in_talk() -> None:
    assert share(TALK, is_asked=True) == pytest.approx(0.9, abs=0.002)


def test_a_policy_without_recall_leaves_no_room() -> None:
    assert share(TALK, recall_share=0.0, is_asked=True) == 0.0


@pytest.mark.proves("L11", "F2")
def test_a_session_that_begins_to_act_keeps_what_earlier_trims_left() -> None:
    """A request after the first call changes the share for recall, but not the trims before it."""
    said = [one for _ in range(20) for one in (user(words(20)), assistant(words(60)))]
    acting = [*said, *CALL, assistant("42.")]

    before, after = [
        plan(
            history(one).stored, WindowRequest(budget_tokens=1_000, recall_share=0.5), Policy()
        ).positions
        for one in (acting, [*acting, user("Thanks.")])
    ]

    assert after[:-1] == before


@pytest.mark.proves("F2", "W14")
@pytest.mark.parametrize(("budget", "share"), [(1_000, 1.0), (10_000, 0.75)])
def test_a_block_within_a_turn_is_not_halved_by_its_next_step(budget: int, share: float) -> None:
    """A block that takes all would be halved at once, and be gone half of the time.

    Small windows are trimmed again before it is gone.
    """
    grown = window([*TALK, *CALL], budget_tokens=budget)

    room = room_for_recall(grown, Policy(), RecallWish(), factor=1.0)

    assert room == int(share * (budget - grown.total))


@pytest.mark.proves("F2")
@pytest.mark.parametrize("before", [[], CALL], ids=["talk", "work"])
def test_only_an_agent_that_acts_keeps_room_for_its_turn(before: list[Any]) -> None:
    """In talk, the next message decides another block."""
    asked = window([*before, *([user("So?"), assistant(words(20))] * 3), user("And?")])
    left = asked.limits.tokens - asked.total

    room = room_for_recall(asked, Policy(), RecallWish(), factor=1.0)

    assert left - room == (asked.turns.median_after_request if before else 0)


@pytest.mark.proves("F2")
def test_a_room_that_holds_no_block_worth_its_frame_is_none() -> None:
    grown = window([*TALK, *CALL])

    rooms = [
        room_for_recall(grown, Policy(), RecallWish(tokens=tokens), factor=1.0)
        for tokens in (LEAST_ROOM - 1, LEAST_ROOM, LEAST_ROOM + 1)
    ]

    assert rooms == [0, LEAST_ROOM, LEAST_ROOM + 1]


@pytest.mark.proves("F2", "L11")
def test_the_block_of_a_running_turn_is_decided_at_its_request_or_at_a_later_trim() -> None:
    said = [*TALK, *CALL, assistant(None, "c2"), tool("c2", "word " * 60)]
    stored = history(said).stored

    in_place = deciding_message(window(said))
    trimmed = deciding_message(window(said, budget_tokens=90))

    assert in_place == stored.messages[len(TALK)]
    assert trimmed == stored.messages[-1]
