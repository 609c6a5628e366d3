"""Messages are read for a block as far as it has room for them and what they are told with (F2)."""

import pytest

from turnfold.core.recall.question import question_of
from turnfold.operations.query.reading_room import ReadingRoom
from turnfold.ports.recall import SearchedSession

CALL, RESULT, SECOND_RESULT, ALONE = 1, 2, 3, 5
SIZES = [0, 30, 50, 50, 10, 40]


def room(tokens: int, shown: frozenset[int] = frozenset()) -> ReadingRoom:
    """Room in a session of six messages, of which one calls and two answer."""
    session = SearchedSession(
        question=question_of("lantern"),
        positions=range(6),
        tokens=SIZES,
        calls_before=[0, 0, 1, 2, 0, 0],
        masks=(),
        matches=(),
        spoken=None,
        look_up=lambda _lookups, _most: (),
        texts=lambda _: (),
        marked_lines=dict,
    )
    return ReadingRoom(session, shown, tokens)


@pytest.mark.proves("F2")
@pytest.mark.parametrize(
    ("ordinal", "left"),
    [
        (ALONE, 160),
        (CALL, 70),  # with both results
        (RESULT, 120),  # with the call
    ],
)
def test_a_message_takes_room_for_what_it_is_told_with(ordinal: int, left: int) -> None:
    one = room(200)

    one.take(ordinal)

    assert one.share_left == left / 200


@pytest.mark.proves("F2")
def test_a_result_whose_call_does_not_fit_is_not_read() -> None:
    one = room(SIZES[RESULT])

    one.take(RESULT)

    assert not one.taken


@pytest.mark.proves("F2")
def test_a_call_is_read_without_results_that_do_not_fit() -> None:
    one = room(SIZES[CALL])

    one.take(CALL)

    assert list(one.taken) == [CALL]
    assert not one.share_left


@pytest.mark.proves("F2")
def test_what_is_told_beside_a_message_takes_its_room_once() -> None:
    one = room(200)

    for ordinal in (RESULT, CALL, SECOND_RESULT):
        one.take(ordinal)

    assert list(one.taken) == [RESULT, CALL, SECOND_RESULT]
    assert one.share_left == (200 - sum(SIZES[CALL : SECOND_RESULT + 1])) / 200


@pytest.mark.proves("F2")
def test_what_is_shown_or_never_recalled_is_not_read() -> None:
    one = room(200, shown=frozenset({ALONE}))

    for ordinal in (ALONE, 0):
        one.take(ordinal)

    assert not one.taken
