"""Words of a session's newest messages find those that the texts name (F2)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnfold.core.text.search import Lookup, Term, TextWords
from turnfold.store.query.session_order import MOST_NEWEST, MOST_WORDS, NewestWords

ALPHABET = "ab1_-\\ntr é猫 "
ALL: Lookup = (Term("x", is_prefix=True),)


def added(words: NewestWords, texts: dict[int, str], indexed: int, end: int) -> NewestWords:
    """The words with these texts added, as a window does it."""
    words.prepare(indexed, end, has_known=True)
    words.add({at: json.dumps({"content": text}) for at, text in texts.items()}, end)
    return words


@pytest.mark.proves("F2")
@given(
    st.lists(st.text(ALPHABET, max_size=30), max_size=4),
    st.lists(st.tuples(st.text("ab1ntré猫", min_size=1, max_size=3), st.booleans()), max_size=3),
)
def test_messages_match_as_their_texts_do(texts: list[str], asked: list[tuple[str, bool]]) -> None:
    # Lookups have CJK characters in pairs, or one by one as beginnings.
    asked = [(word, begins) for word, begins in asked if "猫" not in word or word == "猫"]
    lookup = tuple(Term(f"x{word}", is_prefix or word == "猫") for word, is_prefix in asked)
    held = [TextWords(text) for text in texts]
    expected = sum(
        1 << at
        for at, words in enumerate(held)
        if any(words.hold(word, ends=not is_prefix) for word, is_prefix in asked)
    )

    words = added(NewestWords(), dict(enumerate(texts)), 0, len(texts))

    assert words.matches(lookup) == words.unindexed(lookup, len(texts)) == expected


@pytest.mark.proves("F2", "L11")
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 90)), max_size=12))
def test_messages_that_the_index_lacks_are_found_however_they_were_added(
    windows: list[tuple[int, int]],
) -> None:
    """Each window finds new messages, of which the index has some; another server sees all anew."""
    words, indexed, end = NewestWords(), 0, 0
    for new, indexed_more in windows:
        texts = {at: f"same number{at}" for at in range(end, end + new)}
        end += new
        indexed = min(end, indexed + indexed_more)
        words.prepare(indexed, end, has_known=True)
        texts = {at: f"same number{at}" for at in range(words.end, end)}
        added(words, texts, indexed, end)

        missing = (1 << end) - (1 << indexed)
        assert words.unindexed((Term("xsame"),), end) == missing
        assert words.unindexed_ordinals((Term("xsame"),), end) == list(range(indexed, end))
        assert (
            words.matches((Term("xsame"),)) >> words.whole_from == (1 << end - words.whole_from) - 1
        )
        assert words.first <= indexed


@pytest.mark.proves("F2")
def test_after_a_long_message_lookups_are_not_brought_up_to_date() -> None:
    words = added(NewestWords(), {5: "five", 7: "seven"}, 5, 8)

    assert (words.first, words.whole_from, words.end) == (5, 7, 8)
    assert words.matches(ALL) == 1 << 5 | 1 << 7


@pytest.mark.proves("X6")
def test_few_words_are_remembered() -> None:
    words, end = NewestWords(), 0
    for _ in range(20):
        texts = {at: f"word{at} again{at}" for at in range(end, end + MOST_NEWEST // 4)}
        end += len(texts)
        added(words, texts, end, end)

    assert words.end - words.first <= 2 * MOST_NEWEST
    many = " ".join(f"word{number}" for number in range(2 * MOST_WORDS + 1))
    added(words, {end: many}, end, end + 1)
    words.trim()
    assert words.weight == 0
