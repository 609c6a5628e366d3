"""A question about who asks it, or about what the agent told, prefers their messages (F2).

Wishes of the user for every answer count for any question.
"""

from collections import defaultdict

import pytest

from turnfold.core.recall.mask_ranking import MOST_WISHES, add_wishes, mask_of
from turnfold.core.recall.question import WISHES, question_of
from turnfold.core.recall.ranking import Speaker
from turnfold.operations.query.recall_decisions import ranked
from turnfold.ports.recall import SearchedSession

MESSAGES = 100
OF_USER, OF_AGENT = 40, 61
"""A message of each that holds the word of the question; the agent's is newer."""
WISH_OF_USER, WISH_OF_AGENT = 20, 81


def session(question: str, *speakers: Speaker) -> SearchedSession:
    wishes = mask_of([WISH_OF_USER, WISH_OF_AGENT], MESSAGES)
    return SearchedSession(
        question=question_of(question),
        positions=range(MESSAGES),
        tokens=[50] * MESSAGES,
        masks=[mask_of([OF_USER, OF_AGENT], MESSAGES)],
        matches=(),
        speakers=speakers,
        look_up=lambda lookups, _: [wishes if lookup == WISHES else 0 for lookup in lookups],
        texts=lambda ordinals: ["" for _ in ordinals],
        marked_lines=lambda *_: {},
        is_own=bytearray(ordinal % 2 for ordinal in range(MESSAGES)),
    )


@pytest.mark.proves("F2")
@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("How much is my rent?", False),
        ("When did I say I met Laura?", False),
        ("What did you recommend for my resume?", True),
        ("Which steps have you suggested to me?", True),
        ("the plan that you've outlined", True),
        ("Can you list what I planned?", False),
        ("What would you need?", None),
        ("Which lantern does Marta own?", None),
    ],
)
def test_a_question_tells_whose_messages_it_is_about(
    question: str, *, expected: bool | None
) -> None:
    assert question_of(question).is_about_agent is expected


@pytest.mark.proves("F2")
@pytest.mark.parametrize(
    ("question", "first"),
    [
        ("Where is my lantern?", OF_USER),
        ("Which lantern did you suggest?", OF_AGENT),
        ("Which lantern burns?", OF_AGENT),
    ],
)
def test_messages_of_whom_a_question_is_about_come_first(question: str, first: int) -> None:
    assert next(ranked(session(question), 1_000, is_talk=True)) == first


@pytest.mark.proves("F2")
def test_who_asks_matters_neither_to_an_agent_at_work_nor_where_a_speaker_is_named() -> None:
    assert next(ranked(session("Where is my lantern?"), 1_000)) == OF_AGENT
    named = session("Where is my lantern, Marta?", Speaker({OF_AGENT}, {OF_AGENT // 6: OF_AGENT}))
    assert next(ranked(named, 1_000, is_talk=True)) == OF_AGENT
    assert WISH_OF_USER not in [*ranked(named, 1_000, is_talk=True)]


@pytest.mark.proves("F2")
def test_a_wish_of_the_user_for_every_answer_counts_for_any_question() -> None:
    ordinals = [*ranked(session("Which lantern burns?"), 1_000, is_talk=True)]

    assert WISH_OF_USER in ordinals[:3]
    assert WISH_OF_AGENT not in ordinals
    assert WISH_OF_USER not in [*ranked(session("Which lantern burns?"), 1_000)]


@pytest.mark.proves("F2")
def test_of_many_wishes_only_the_newest_count() -> None:
    scores: defaultdict[int, float] = defaultdict(float)

    add_wishes(scores, mask_of(range(2 * MOST_WISHES), 1_000), bytearray(1_000), 1_000)

    assert [*scores] == [*range(MOST_WISHES, 2 * MOST_WISHES)]
