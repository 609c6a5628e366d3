"""English words find their other forms, and few words that only look alike (F2)."""

import pytest

from turnfold.core.recall.question import question_of
from turnfold.core.recall.word_forms import stem_of
from turnfold.core.text.words import word_term


def finds(asked: str, said: str) -> bool:
    """Whether a question for one word finds another."""
    terms = [term for lookup in question_of(asked).lookups for term in lookup]
    return any(term.matches(word_term(said)) for term in terms)


def test_a_stem_never_is_empty() -> None:
    assert all(stem_of(word) for word in ("s", "es", "ing", "ed", "ies", "y", "ää", "ly"))


@pytest.mark.proves("F2")
@pytest.mark.parametrize(
    "words",
    [
        "city cities", "movie movies", "hobby hobbies", "family families", "class classes",
        "pass passes passing", "play plays played playing", "stay stayed", "try tries tried trying",
        "use uses used using", "run runs running", "plan planned", "fill filled", "visit visited",
        "control controlled", "letter letters", "dinner dinners", "wedding weddings", "kid kids",
        "speed speeds", "agree agreed agreement", "business businesses", "apply applied applies",
        "worry worries worried", "reply replied", "weld welded welding welder", "see sees seeing",
        "free frees freed freeing", "ski skis skied skiing",
    ],
)  # fmt: skip
def test_regular_forms_of_a_word_find_each_other(words: str) -> None:
    forms = words.split()
    missing = [(asked, said) for asked in forms for said in forms if not finds(asked, said)]

    assert missing == []


@pytest.mark.proves("F2")
@pytest.mark.parametrize("words", ["career car", "letter let", "summer sum", "business bus"])
def test_a_word_that_ends_like_another_finds_no_shorter_one(words: str) -> None:
    asked, said = words.split()

    assert not finds(asked, said)
