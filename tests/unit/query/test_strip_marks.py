"""The marks of a session's strip in the console."""

from typing import Any

import pytest

from turnfold_query.console.strips import MARKS_MOST, strip_of


@pytest.mark.proves("V3")
def test_the_newest_marks_are_drawn_whether_versions_or_undone_compactions() -> None:
    """V3: a session in which many compactions were undone still shows its newest versions."""
    undone: list[dict[str, Any]] = [
        {"ordinal": number, "restored_at": "2026-11-20T10:00:00.000Z", "last_position": number}
        for number in range(1, MARKS_MOST + 50)
    ]
    versions = [
        {"version": number, "last_position": 500 + number, "messages_covered": 500 + number}
        for number in range(1, 11)
    ]
    timeline = {
        "messages": 1_000,
        "parts": [
            {"state": "covered", "messages": 1, "first_position": number}
            for number in range(1, 1_001)
        ],
        "versions": versions,
        "compactions": undone,
        "in_force": 10,
    }

    marks = strip_of(timeline).marks

    assert [mark.version for mark in marks if mark.version] == list(range(1, 11))
    assert [mark.x for mark in marks] == sorted(mark.x for mark in marks)
    # The mark of the version in force is one of the newest.
    assert len(marks) == MARKS_MOST
