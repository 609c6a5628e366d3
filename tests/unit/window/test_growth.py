"""A window that grows is trimmed as often as its trims are cheap."""

import pytest

from tests.histories import assistant, history, user, words
from tests.unit.window.windows import BALANCED, tool_rounds
from turnfold.core.window import growth
from turnfold.core.window.window import WindowRequest, build_window


@pytest.mark.proves("W3", "X4")
def test_a_trim_that_examines_few_parts_in_vain_delays_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A window whose trim was delayed cannot be continued: the next one is built anew."""
    # No part is examined for free: so short a session stands for one of hundreds of parts.
    monkeypatch.setattr(growth, "FREE_LOOKS", 0)
    long_messages = [said for _ in range(4) for said in (user(words(500)), assistant(words(500)))]
    session = history([user("go"), *tool_rounds(10, 150), *long_messages])
    asked = WindowRequest(budget_tokens=2_500)
    known = len(session.stored.messages) - len(long_messages)
    window = build_window(session.until(known + 2).stored, asked, BALANCED)

    for number in range(known + 3, len(session.stored.messages) + 1):
        later = build_window(session.until(number).stored, asked, BALANCED, window)
        assert later is window
        assert later.total <= 2_500
