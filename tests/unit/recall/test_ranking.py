"""Which words a question looks up, and which messages its places put first (F2)."""

from collections.abc import Sequence

import pytest

from turnfold.core.recall.english import SIMILAR_WORDS
from turnfold.core.recall.mask_ranking import RELATED, SIMILAR, add_words, mask_of, score_masks
from turnfold.core.recall.question import (
    MOST_LOOKUPS,
    question_of,
    related_lookups,
    similar_lookups,
)
from turnfold.core.recall.ranking import Matches, Speaker, rank, score
from turnfold.core.recall.region import STRETCH
from turnfold.core.text.words import word_term


@pytest.mark.proves("F2")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("went", "going"),
        ("buying", "bought"),
        ("children", "child"),
        ("seen", "saw"),
        ("lantern", "lanterns"),
        ("welding", "welded"),
        ("stories", "story"),
        ("running", "runs"),
        ("quickly", "quick"),
        ("Häusern", "häuser"),
    ],
)
def test_forms_of_a_word_share_a_lookup(one: str, other: str) -> None:
    (first,), (second,) = question_of(one).lookups, question_of(other).lookups

    def finds(lookup: tuple[tuple[str, bool], ...], word: str) -> bool:
        term = f"x{word.lower()}"
        return any(
            term.startswith(text) if is_prefix else term == text for text, is_prefix in lookup
        )

    assert finds(first, other)
    assert finds(second, one)


@pytest.mark.proves("F2")
@pytest.mark.parametrize("word", ["bus", "ox", "42", "ß", "x86"])
def test_short_words_and_numbers_are_not_looked_up_by_their_beginning(word: str) -> None:
    assert not any(term.is_prefix for lookup in question_of(word).lookups for term in lookup)


@pytest.mark.proves("F2")
def test_a_word_is_looked_up_once_whatever_its_form() -> None:
    assert len(question_of("went goes going gone").lookups) == 1


@pytest.mark.proves("F2")
def test_words_that_only_make_a_sentence_are_not_looked_up() -> None:
    asked = question_of("What did she do together with the lantern since, and where is it now?")

    assert asked.lookups == question_of("lantern").lookups
    assert "she" in asked.words, "it may be the name of a speaker"


@pytest.mark.proves("F2")
def test_the_name_of_a_speaker_is_looked_up_only_where_nothing_else_is_asked() -> None:
    asked = question_of("Which lantern does Marta own?")

    assert asked.lookups_without(asked.words & {"marta", "otto"}) == [
        *question_of("lantern own").lookups
    ]
    assert asked.lookups_without(()) == list(asked.lookups)
    alone = question_of("Who is Marta?")
    assert alone.lookups_without({"marta"}) == alone.lookups


@pytest.mark.proves("F2")
def test_chinese_text_is_looked_up_by_its_pairs() -> None:
    texts = [term.text for lookup in question_of("备用钥匙").lookups for term in lookup]

    assert texts == ["x备用", "x用钥", "x钥匙"]


@pytest.mark.proves("F2", "X6")
def test_a_pasted_file_asks_for_no_more_than_a_question() -> None:
    lookups = question_of(" ".join(f"identifier{number:05d}" for number in range(50_000))).lookups

    assert len(lookups) == MOST_LOOKUPS


@pytest.mark.proves("F2")
def test_an_exact_value_is_looked_up_first() -> None:
    first, *_ = question_of("where is /srv/app/main.py used in the whole project").lookups

    assert first[0].text.startswith("y")


SIZES = [50] * 100
ROOM = 4_000


def best_of(
    lookups: Sequence[Matches], sizes: Sequence[int], until: int, speakers: Sequence[Speaker] = ()
) -> list[int]:
    return rank(score(lookups, range(until), sizes, ROOM, speakers), sizes, speakers)


def spoken(*ordinals: int) -> Speaker:
    speaker = Speaker(set(), {})
    for ordinal in ordinals:
        speaker.add(ordinal)
    return speaker


@pytest.mark.proves("F2")
def test_words_that_the_best_messages_share_find_what_the_question_does_not_name() -> None:
    asked = question_of("Which instruments does she play?")
    shared = related_lookups(
        ["I play the clarinet on Sundays.", "My clarinet is old, I play it.", "She plays well."],
        asked,
    )
    assert shared[0] == question_of("clarinet").lookups[0]
    assert question_of("plays").lookups[0] not in shared

    scores = score_masks([mask_of([10, 5], 100)], SIZES, 100, ROOM)
    shared_by = [mask_of(found, 100) for found in ([90, 10], range(40))]
    add_words(scores, shared_by, 100, RELATED)

    ranked = rank(scores, SIZES, ())
    assert ranked[0] == 10
    assert 90 in ranked
    assert 30 not in ranked, "every second message holds that one"


@pytest.mark.proves("F2")
@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Does she have kids?", "son"),
        ("What has she bought?", "purchased"),
        ("a journey", "trips"),
        ("Where has he moved?", "relocation"),
        ("joys", "happy"),
    ],
)
def test_words_similar_to_the_questions_are_looked_up(question: str, answer: str) -> None:
    similar = similar_lookups(question_of(question))

    assert question_of(answer).lookups[0] in similar
    assert not {*similar} & {*question_of(question).lookups}


@pytest.mark.proves("F2")
def test_a_word_has_no_words_similar_to_one_of_another_stem() -> None:
    """F2: `later` is a form of `late`, for which `postpone` is looked up."""
    assert question_of("postpone").lookups[0] in similar_lookups(question_of("late"))
    assert similar_lookups(question_of("later")) == []


@pytest.mark.proves("F2")
@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Which cities has he visited?", "chicago"),
        ("What martial arts did she do?", "kickboxing"),
        ("all my hobbies", "painted"),
        ("Which database did we take?", "sqlite"),
    ],
)
def test_any_example_of_the_kind_that_a_question_names_is_looked_up(
    question: str, answer: str
) -> None:
    similar = similar_lookups(question_of(question))

    assert any(term.matches(word_term(answer)) for lookup in similar for term in lookup)
    assert len(similar) < 12, "one lookup has all examples of a kind"


@pytest.mark.proves("L8")
def test_a_question_of_many_everyday_words_has_few_lookups_more() -> None:
    asked = question_of(" ".join(words[0] for words in SIMILAR_WORDS))

    assert len(similar_lookups(asked)) == len(asked.lookups) == MOST_LOOKUPS


@pytest.mark.proves("F2")
def test_a_similar_word_counts_less_than_the_questions_own() -> None:
    scores = score_masks([mask_of([10], 100)], SIZES, 100, ROOM)
    add_words(scores, [mask_of([90], 100)], 100, SIMILAR)

    ranked = rank(scores, SIZES, ())

    assert ranked[0] == 10
    assert 90 in ranked


@pytest.mark.proves("F2")
def test_a_rare_word_counts_more_than_a_frequent_one() -> None:
    rare, frequent = [10], list(range(90, 60, -1))

    assert best_of([frequent, rare], SIZES, 100)[0] == 10


@pytest.mark.proves("F2")
def test_two_words_near_each_other_count_together() -> None:
    apart = [[80, 20], [60, 22]]

    best = best_of(apart, SIZES, 100)

    assert set(best[:2]) == {20, 22}


@pytest.mark.proves("F2")
def test_a_long_message_counts_less() -> None:
    sizes = list(SIZES)
    sizes[30] = 5_000

    assert best_of([[60, 30]], sizes, 100)[0] == 60


@pytest.mark.proves("F2")
def test_in_a_talk_messages_near_better_ones_count_more() -> None:
    """F2: the results of an agent at work are too long to raise each other."""
    scores = {30: 1.0, 31: 0.85, 60: 0.9}
    assert 30 // STRETCH == 31 // STRETCH

    assert rank(scores, SIZES, (), is_talk=True) == [30, 31, 60]
    assert rank(scores, SIZES, ()) == [30, 60, 31]


@pytest.mark.proves("F2")
def test_the_speaker_in_question_counts_more() -> None:
    assert best_of([[60, 30]], SIZES, 100, [spoken(30)])[0] == 30


@pytest.mark.proves("F2")
def test_beside_a_match_a_message_counts_more_if_the_question_names_a_speaker() -> None:
    def beside(*speakers: Speaker) -> float:
        scores = score([[5]], range(10), [50] * 10, ROOM, speakers)
        return scores[6] / scores[5]

    assert beside(spoken(5)) > beside()


@pytest.mark.proves("F2")
def test_each_speaker_in_question_counts_more() -> None:
    best = best_of([[80, 60, 40, 20]], SIZES, 100, [spoken(20), spoken(60)])

    assert best[:2] == [60, 20]


@pytest.mark.proves("F2")
def test_what_others_say_beside_the_speaker_in_question_counts_more_than_other_talks() -> None:
    beside, elsewhere = 30, 60
    assert beside // STRETCH == 32 // STRETCH

    best = best_of([[elsewhere, beside]], SIZES, 100, [spoken(32)])

    assert best.index(beside) < best.index(elsewhere)


@pytest.mark.proves("F2", "L11")
def test_a_speaker_counts_only_as_far_as_the_session_was_known() -> None:
    known, later = 50, 50
    assert later // STRETCH == 49 // STRETCH

    order = best_of([[49, 20]], SIZES[:known], known)

    assert best_of([[49, 20]], SIZES[:known], known, [spoken(later)]) == order
    assert not spoken(later).speaks_before(known)
    assert spoken(later).speaks_before(known + 1)


@pytest.mark.proves("F2")
@pytest.mark.parametrize("is_short", [True, False])
def test_among_many_matches_those_of_the_speaker_in_question_are_promising(
    is_short: bool,
) -> None:
    number, said = 4_000, 402
    # The older, the longer: by itself, what was said so early is not promising.
    sizes = [50 + (number - ordinal) // 10 for ordinal in range(number)]
    found = sorted([said, *range(number - 1, 0, -10)], reverse=True)
    speakers = [spoken(said)]

    scores = (
        score_masks([mask_of(found, number)], sizes, number, 1_000, speakers)
        if is_short
        else score([found], range(number), sizes, 1_000, speakers)
    )

    assert rank(scores, sizes, speakers)[0] == said


@pytest.mark.proves("F2")
@pytest.mark.parametrize("number", [20_000, 3_000], ids=["long", "after the moment"])
def test_a_short_message_is_promising_beside_hundreds_of_others_with_more_of_the_words(
    number: int,
) -> None:
    """The others are long results of tools, or came later."""
    short, others = 1_000, [*range(19_000, 4_000, -50)]
    sizes = [4_000 if ordinal in others else 60 for ordinal in range(number)]

    scores = score([[*others, short], others], range(number), sizes, 2_000)

    assert rank(scores, sizes, ())[0] == short


@pytest.mark.proves("F2")
def test_nothing_after_the_moment_and_nothing_without_a_size_is_ranked() -> None:
    sizes = list(SIZES)
    sizes[48] = 0

    ranked = best_of([[49]], sizes, 50)

    assert 48 not in ranked
    assert max(ranked) == 49


@pytest.mark.proves("F2", "X6")
def test_of_many_matches_those_are_ranked_that_are_near_the_best() -> None:
    everywhere = list(range(9_990, 0, -20))
    others = [[number] for number in (5_010, 5_012, 5_050)]

    ranked = best_of([everywhere, *others], [50] * 10_000, 10_000)

    assert set(ranked[:3]) == {5_010, 5_012, 5_050}
    assert len(ranked) < 1_000


@pytest.mark.proves("F2")
@pytest.mark.parametrize(
    ("rare", "is_ranked"), [(-STRETCH - 1, False), (-STRETCH, True), (2 * STRETCH - 1, True), (2 * STRETCH, False)]
)  # fmt: skip
def test_of_many_matches_an_old_one_is_ranked_if_an_adjacent_stretch_has_a_rare_one(
    rare: int, is_ranked: bool
) -> None:
    old = 180 * STRETCH
    frequent = range(9_000, 0, -3 * STRETCH)

    ranked = best_of([[old + rare], frequent], [50] * 10_000, 10_000)

    assert old in frequent
    assert (old in ranked) is is_ranked
    assert frequent[0] in ranked, "of equals the newest are ranked"


@pytest.mark.proves("F2", "X6")
def test_of_many_matches_in_a_long_session_a_brief_one_needs_no_rarest_word() -> None:
    number, brief = 10_000, 5_025
    rare, frequent = range(9_990, 0, -30), [*range(9_985, 0, -30), brief]
    # Long enough to count less than a brief message with a more frequent word.
    sizes = [400] * number
    sizes[brief] = 40

    def ranked(*speakers: Speaker) -> list[int]:
        lookups = [rare, sorted(frequent, reverse=True)]
        return rank(score(lookups, range(number), sizes, 1_000, speakers), sizes, speakers)

    assert ranked()[0] == brief
    assert ranked(spoken(brief))[0] == brief
    assert ranked(spoken(1))[0] == brief


@pytest.mark.proves("F2")
def test_a_message_between_two_matches_counts_for_the_nearer_one_only() -> None:
    order = best_of([[10, 6]], [50] * 20, 20)

    assert set(order[:2]) == {6, 10}
    assert order.index(8) > max(order.index(7), order.index(9))


@pytest.mark.proves("F2")
def test_a_single_chinese_character_is_looked_up_by_what_begins_with_it() -> None:
    assert question_of("琥").lookups == ((("x琥", True),),)
