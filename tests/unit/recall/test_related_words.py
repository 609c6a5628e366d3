"""Messages in other words than the question's: in which sessions they are looked for."""

from collections.abc import Sequence

import pytest

from turnfold.core.recall.mask_ranking import MOST_MASKED, Mask, mask_of
from turnfold.core.recall.question import question_of
from turnfold.core.text.search import Lookup
from turnfold.operations.query.recall_decisions import ranked
from turnfold.ports.recall import SearchedSession

NAMED, RELATED = (7, 11), 400
"""The messages that hold the word of the question, and one that shares another word with them."""


def session(messages: int) -> SearchedSession:
    def look_up(lookups: Sequence[Lookup], most: int) -> Sequence[Mask]:
        return [mask_of([RELATED, NAMED[0]] if most else [], messages) for _ in lookups]

    return SearchedSession(
        question=question_of("lantern"),
        positions=range(messages),
        tokens=[20] * messages,
        masks=[mask_of(NAMED, messages)] if messages <= MOST_MASKED else None,
        matches=[sorted(NAMED, reverse=True)],
        speakers=(),
        look_up=look_up,
        texts=lambda ordinals: ["the lantern stands in the boathouse" for _ in ordinals],
        marked_lines=lambda *_: {},
    )


@pytest.mark.proves("F2", "X6")
@pytest.mark.parametrize(("messages", "is_found"), [(MOST_MASKED, True), (MOST_MASKED + 1, False)])
def test_words_of_the_best_messages_are_looked_up_in_a_session_of_at_most_so_many_messages(
    messages: int, *, is_found: bool
) -> None:
    found = list(ranked(session(messages), 1_000))

    assert set(NAMED) <= set(found)
    assert (RELATED in found) is is_found
