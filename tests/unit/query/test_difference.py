"""What changed from one window of a session to another."""

from collections.abc import Mapping
from typing import Any

import pytest

from turnfold.operations.query.difference import WindowThen, difference

Json = dict[str, Any]


def window(
    as_of: str | None,
    forms: Mapping[str, str],
    states: Mapping[str, str],
    *,
    tokens: int = 10,
    version: int | None = None,
) -> WindowThen:
    """A window that shows these messages, of a history with these states."""
    answer: Json = {
        "entries": [{"id": name, "form": form} for name, form in forms.items()],
        "window": {"tokens": tokens},
        "account": {"total": len(states)},
        "summary": None if version is None else {"version": version},
    }
    messages = {
        name: {"position": int(name[1:]), "state": state, "role": "user"}
        for name, state in states.items()
    }
    return WindowThen(as_of, answer, messages)


LIVE = dict.fromkeys(["m1", "m2", "m3", "m4", "m5"], "live")
BEFORE = window(
    "e4#0",
    {"m1": "whole", "m2": "whole", "m3": "whole", "m4": "whole"},
    LIVE | {"m5": "covered"},
    tokens=40,
)
AFTER = window(
    None,
    {"m1": "whole", "m2": "cut", "m5": "whole", "m6": "whole"},
    LIVE | {"m4": "retracted", "m6": "live"},
    tokens=50,
    version=3,
)


@pytest.mark.proves("V1")
def test_each_message_says_what_became_of_it() -> None:
    told = difference(BEFORE, AFTER, limit=9)

    assert [(one["message_id"], one["change"]) for one in told["changes"]] == [
        ("m2", "changed"),
        ("m3", "folded"),
        ("m4", "gone"),
        ("m5", "returned"),
        ("m6", "added"),
    ]
    assert told["counts"] == {
        "added": 1, "folded": 1, "returned": 1, "gone": 1, "changed": 1, "same": 1,
    }  # fmt: skip
    assert told["changes"][0] == {
        "message_id": "m2",
        "position": 2,
        "role": "user",
        "change": "changed",
        "form_before": "whole",
        "form_after": "cut",
        "state_before": "live",
        "state_after": "live",
    }


@pytest.mark.proves("V1")
def test_both_moments_are_told_with_their_size_and_the_version_in_force() -> None:
    told = difference(BEFORE, AFTER, limit=9)

    assert told["before"] == {
        "as_of": "e4#0", "tokens": 40, "messages": 5, "summary_version": None,
    }  # fmt: skip
    assert told["after"] == {"as_of": None, "tokens": 50, "messages": 6, "summary_version": 3}


@pytest.mark.proves("V1")
def test_the_newest_changes_are_told_and_all_are_counted() -> None:
    told = difference(BEFORE, AFTER, limit=2)

    assert [one["message_id"] for one in told["changes"]] == ["m5", "m6"]
    assert sum(told["counts"].values()) == 6


@pytest.mark.proves("V1")
def test_what_was_written_for_a_window_is_no_message_and_an_unknown_one_has_no_role() -> None:
    before = window(None, {}, {})
    after = window(None, {"m1": "whole", "m9": "digest"}, {})

    told = difference(before, after, limit=9)

    assert [(one["message_id"], one["role"], one["position"]) for one in told["changes"]] == [
        ("m1", "", 0)
    ]


@pytest.mark.proves("V1", "G1")
def test_every_message_of_a_joined_entry_is_compared() -> None:
    joined = window(None, {}, {"m1": "live", "m2": "live"})
    joined.answer["entries"].append({"id": ["m1", None, "m2"], "form": "whole"})

    told = difference(window(None, {}, {}), joined, limit=9)

    assert [one["message_id"] for one in told["changes"]] == ["m1", "m2"]
