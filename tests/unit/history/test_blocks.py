"""Messages that stay or leave together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnfold.core.history.blocks import Grouped, group, newest_request, pinned_message
from turnfold.messages import CallRef, EventId, Message, Role, ToolCall, position_of


def message(
    seq: int,
    role: str,
    *calls: str,
    answers: tuple[int, int] | None = None,
    tokens: int = 10,
    is_meta: bool = False,
) -> Message:
    made = tuple(ToolCall(slot, call, "look_up", 5) for slot, call in enumerate(calls))
    answer = CallRef(position_of(answers[0], 0), answers[1]) if answers else None
    return Message(
        position_of(seq, 0),
        EventId(f"e{seq}"),
        0,
        Role(role),
        tokens,
        calls=made,
        answers=answer,
        is_meta=is_meta,
    )


def shape(grouped: Grouped) -> list[list[int | None]]:
    """The sequences of each block's messages, None for a place that is open."""
    return [
        [block.head.stream_seq, *(one.stream_seq if one else None for one in block.results)]
        for block in grouped.blocks
    ]


@pytest.mark.proves("L5", "C2")
def test_a_call_and_all_its_results_are_one_block_in_the_order_of_the_calls() -> None:
    said = [
        message(1, "user"),
        message(2, "assistant", "a", "b"),
        message(3, "tool", answers=(2, 1)),
        message(4, "user"),
        message(5, "tool", answers=(2, 0)),
    ]

    grouped = group(said)

    assert shape(grouped) == [[1], [2, 5, 3], [4]]
    assert grouped.blocks[1].tokens == 30
    assert [one.stream_seq for one in grouped.blocks[1].stored] == [2, 5, 3]


@pytest.mark.proves("E4", "C6")
def test_a_call_without_a_result_leaves_its_place_open() -> None:
    grouped = group([message(1, "assistant", "a", "b"), message(2, "tool", answers=(1, 1))])

    assert shape(grouped) == [[1, None, 2]]


@pytest.mark.proves("I1", "C10")
def test_results_without_a_call_here_are_loose() -> None:
    waiting, late = message(1, "tool"), message(3, "tool", answers=(9, 0))

    grouped = group([waiting, message(2, "user"), late])

    assert grouped.loose == (waiting, late)
    assert shape(grouped) == [[2]]


@pytest.mark.proves("I1")
def test_a_result_before_its_call_stands_in_its_block() -> None:
    assert shape(group([message(1, "tool", answers=(2, 0)), message(2, "assistant", "a")])) == [
        [2, 1]
    ]


@pytest.mark.proves("I6")
def test_the_pinned_message_message_is_pinned_and_older_ones_are_loose() -> None:
    old, new = message(1, "system"), message(3, "developer")

    grouped = group([old, message(2, "user"), new])

    assert grouped.pinned is new
    assert grouped.loose == (old,)
    assert pinned_message([message(2, "user")]) is None


@pytest.mark.proves("I6")
def test_the_newest_request_is_that_of_a_person_where_there_is_one() -> None:
    person, machine = message(1, "user"), message(2, "user", is_meta=True)

    assert newest_request([person, machine]) is person
    assert newest_request([machine]) is machine
    assert newest_request([message(3, "assistant")]) is None


@pytest.mark.proves("L1")
def test_results_of_calls_that_stand_in_no_block_are_loose() -> None:
    pinned, odd = message(1, "system", "a"), message(3, "tool", "b")
    first, second = message(2, "tool", answers=(1, 0)), message(4, "tool", answers=(3, 0))

    grouped = group([pinned, first, odd, second])

    assert grouped.pinned is pinned
    assert grouped.loose == (first, odd, second)


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    said: list[Message] = []
    for seq in range(1, draw(st.integers(0, 14)) + 1):
        role = draw(st.sampled_from(["user", "assistant", "tool", "tool", "system"]))
        calls = draw(st.sampled_from([(), (), ("a",), ("a", "b")]))
        target = (
            (draw(st.integers(1, 15)), draw(st.integers(0, 2)))
            if role == "tool" and draw(st.booleans())
            else None
        )
        taken = {one.answers for one in said}
        if target is not None and CallRef(position_of(target[0], 0), target[1]) in taken:
            target = None
        said.append(message(seq, role, *calls, answers=target))
    return said


@pytest.mark.proves("L1")
@given(histories())
def test_grouping_loses_nothing_and_doubles_nothing(said: list[Message]) -> None:
    grouped = group(said)

    again = [
        *([grouped.pinned] if grouped.pinned else []),
        *(one for block in grouped.blocks for one in block.stored),
        *grouped.loose,
    ]

    assert sorted(again, key=lambda one: one.position) == said


@pytest.mark.proves("L5", "C1")
@given(histories())
def test_in_blocks_every_result_answers_the_call_in_whose_place_it_stands(
    said: list[Message],
) -> None:
    for block in group(said).blocks:
        assert block.head.role not in (Role.TOOL, Role.SYSTEM)
        for call, found in zip(block.head.calls, block.results, strict=True):
            assert found is None or found.answers == CallRef(block.head.position, call.slot)


@pytest.mark.proves("L3")
@given(histories())
def test_blocks_stand_in_the_order_of_the_stream(said: list[Message]) -> None:
    positions = [block.position for block in group(said).blocks]

    assert positions == sorted(positions)
