"""A session's messages as groups of one state: in order, each message once, and no more groups than asked for."""

import pytest

from turnfold.messages import State
from turnfold.operations.query.inspection import StripPart, strip_parts
from turnfold.ports.inspection import CompactionRow, SessionStrip


def compaction(
    ordinal: int, first: int, messages: int, *, is_covered: bool = True, restored: bool = False
) -> CompactionRow:
    """An eviction of neighboring messages, whose positions count by one."""
    return CompactionRow(
        compaction_id=ordinal, agent_id="support", session_id="s", ordinal=ordinal,
        trigger="messages", status="committed", is_covered=is_covered, is_regeneration=False,
        first_position=first, last_position=first + messages - 1, messages=messages, tokens=10,
        tokens_before=20, tokens_after=10, attempts=1, reason=None, version=ordinal, actor=None,
        requested_at_ms=1, evicted_at_ms=1, finished_at_ms=2, next_attempt_at_ms=1,
        restored_at_ms=3 if restored else None,
    )  # fmt: skip


def strip(*rows: CompactionRow, live: range, retracted: tuple[int, ...] = ()) -> SessionStrip:
    return SessionStrip(
        live=[position for position in live if position not in retracted],
        retracted=retracted,
        compactions=rows,
        versions=(),
        in_force=None,
    )


@pytest.mark.proves("V3")
def test_states_follow_each_other_in_the_order_of_the_messages() -> None:
    parts = strip_parts(
        strip(
            compaction(1, 1, 40),
            compaction(2, 41, 20, is_covered=False),
            compaction(3, 500, 9, restored=True),
            live=range(61, 101),
            retracted=(70, 71, 90),
        ),
        1,
    )

    assert parts == [
        StripPart(State.COVERED, 40, 1, 40),
        StripPart(State.PENDING, 20, 41, 60),
        StripPart(State.LIVE, 9, 61, 69),
        StripPart(State.RETRACTED, 2, 70, 71),
        StripPart(State.LIVE, 18, 72, 89),
        StripPart(State.RETRACTED, 1, 90, 90),
        StripPart(State.LIVE, 10, 91, 100),
    ]


@pytest.mark.proves("V3")
@pytest.mark.parametrize("most", [1, 7, 240])
def test_a_hundred_thousand_messages_are_few_groups(most: int) -> None:
    rows = [compaction(number + 1, 1 + 50 * number, 50) for number in range(1_000)]

    parts = strip_parts(strip(*rows, live=range(50_001, 100_001)), most)

    assert sum(part.messages for part in parts) == 100_000
    assert len(parts) <= 2 * most + 2
    assert [part.first_position for part in parts] == sorted(part.first_position for part in parts)
