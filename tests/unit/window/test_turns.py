"""The sizes of turns, by which a window is trimmed."""

import pytest

from tests.histories import assistant, history, user, words
from turnfold.core.window.budget_shares import SessionTurns


@pytest.mark.proves("W3")
def test_a_turn_is_measured_from_its_request_to_the_next_one() -> None:
    said = [assistant("Hello."), user("a")]
    for tokens in (30, 90, 60):
        said += [assistant(words(tokens)), assistant("So."), user("and?")]
    messages = history(said).stored.messages
    request = next(message.tokens for message in messages[2:] if message.is_request)
    answers = [sum(one.tokens for one in messages[at : at + 2]) for at in (2, 5, 8)]
    sizes = SessionTurns()

    empty = (sizes.median, sizes.median_after_request)
    for message in messages:
        sizes.add(message)

    assert empty == (0, 0)
    assert sizes.median_after_request == sorted(answers)[1]
    assert 0 <= sizes.median - sizes.median_after_request <= request
    assert answers[0] < sizes.median < answers[1]
