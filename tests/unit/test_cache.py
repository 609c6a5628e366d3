"""What is remembered stays in its bounds and belongs to one at a time."""

from turnfold.cache import Lately


def test_what_was_taken_is_nobody_elses_until_it_is_kept_again() -> None:
    lately: Lately[str, list[int]] = Lately(100)
    lately.keep("a", [1], 10)

    assert lately.take("a") == [1]
    assert lately.take("a") is None


def test_what_was_not_kept_for_longest_goes_first() -> None:
    lately: Lately[str, int] = Lately(100)
    for number, key in enumerate(("a", "b", "c", "d", "a", "e")):
        lately.keep(key, number, 25)

    assert [lately.take(key) for key in "abcde"] == [4, None, 2, 3, 5]


def test_what_is_very_heavy_is_not_kept_and_pushes_nothing_out() -> None:
    lately: Lately[str, int] = Lately(100)
    lately.keep("a", 1, 25)
    lately.keep("b", 2, 26)

    assert (lately.take("a"), lately.take("b")) == (1, None)
