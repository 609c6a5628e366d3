"""Messages are read for a block as far as it has room for them (F2)."""

import pytest

from turnfold.core.recall.question import question_of
from turnfold.operations.query.reading_room import ReadingRoom
from turnfold.ports.recall import SearchedSession

LARGE, LARGER, ALONE, HUGE = 1, 2, 3, 4
SIZES = [0, 50, 60, 40, 550]


def room(tokens: int, shown: frozenset[int] = frozenset()) -> ReadingRoom:
    """Room in a session of five messages."""
    session = SearchedSession(
        question=question_of("lantern"),
        positions=range(5),
        tokens=SIZES,
        masks=(),
        matches=(),
        speakers=(),
        look_up=lambda _lookups, _most: (),
        texts=lambda _: (),
        marked_lines=lambda *_: {},
    )
    return ReadingRoom(session, shown, tokens)


@pytest.mark.proves("F2")
def test_what_is_taken_takes_its_room_once() -> None:
    one = room(100)

    for ordinal in (ALONE, LARGE, ALONE, LARGER):
        one.take(ordinal)

    assert list(one.taken) == [ALONE, LARGE]
    assert one.share_left == (110 - SIZES[ALONE] - SIZES[LARGE]) / 110


@pytest.mark.proves("F2")
def test_a_message_too_large_for_the_block_leaves_its_room_to_others() -> None:
    """The room for reading is larger than that of the block: a message that takes both is a gap."""
    one = room(520)

    for ordinal in (HUGE, LARGE):
        one.take(ordinal)

    assert list(one.taken) == [LARGE]


@pytest.mark.proves("F2")
def test_what_is_shown_or_never_recalled_is_not_read() -> None:
    one = room(200, shown=frozenset({ALONE}))

    for ordinal in (ALONE, 0):
        one.take(ordinal)

    assert not one.taken
