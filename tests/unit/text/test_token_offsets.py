"""Offsets at which long texts can be cut, and their token counts."""

import itertools

import pytest

from turnfold.core.text.token_offsets import STEP_BYTES, is_long
from turnfold.core.text.tokens import (
    Count,
    TokenOffsets,
    count_message,
    lines_of,
)

LOG = "".join(
    f"2026-11-20 12:{n % 60:02}:07 INFO worker-{n % 7} finished job {n} in {n * 7 % 1000} ms\n"
    for n in range(200)
)


@pytest.mark.proves("I3")
def test_a_long_text_has_a_grid_and_costs_what_the_grid_says(count: Count) -> None:
    short, long = (
        count_message({"role": "tool", "content": LOG[:512]}, count),
        count_message({"role": "tool", "content": LOG}, count),
    )

    assert short.cuts == ""
    assert TokenOffsets.parse(long.cuts) == TokenOffsets.of(LOG, count)
    assert long.content_tokens == TokenOffsets.parse(long.cuts).total
    assert long.lines == TokenOffsets.parse(long.cuts).lines == 200


@pytest.mark.proves("I3", "C15")
def test_a_head_and_a_tail_stay_within_their_tokens(count: Count) -> None:
    grid = TokenOffsets.of(LOG, count)

    for tokens in (0, 1, 50, 300, 1_000, grid.total, 10**9):
        head, tail = grid.head(tokens), grid.tail(tokens)
        head_tokens = grid.tokens_between(0, head)
        tail_tokens = grid.tokens_between(tail, len(LOG))
        assert count(LOG[:head]) <= head_tokens <= tokens
        assert count(LOG[tail:]) <= tail_tokens <= tokens
        assert head_tokens > tokens - 300 or head == len(LOG)
        assert tail_tokens > tokens - 300 or tail == 0
    assert grid.head(-1) == 0
    assert grid.tail(-1) == len(LOG)


@pytest.mark.proves("I3", "C17")
@pytest.mark.parametrize("end", ["", "\n", "last", "\n\n\n"])
@pytest.mark.parametrize("line", ["x", "", "/usr/lib/x.so;", "y" * 700, "a, b\r"])
def test_twenty_lines_from_the_start_and_ten_from_the_end_can_be_cut_exactly(
    line: str, end: str
) -> None:
    text = "".join(f"{line}\n" for _ in range(500)) + end
    grid = TokenOffsets.of(text, len)

    head, tail = grid.head_lines(), grid.tail_lines()

    assert text[:head] == "".join(text.splitlines(keepends=True)[:20])
    assert lines_of(text[tail:]) == 10
    assert text[tail - 1] == "\n"
    assert grid.lines == lines_of(text)


def test_the_first_and_last_lines_of_a_text_with_few_are_all_of_it() -> None:
    text = f"{'word ' * 90}\n" * 10
    grid = TokenOffsets.of(text, len)

    assert grid.head_lines() == len(text)
    assert grid.tail_lines() == 0


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("word " * 400, 256),
        (f"{'y' * 256}\n" * 50, 256),
        ("漢字の長い文。" * 60, 90),
        ("🙂" * 300, 64),
    ],
)
def test_a_grid_is_as_fine_for_wide_letters_as_for_narrow_ones(text: str, step: int) -> None:
    offsets = TokenOffsets.of(text, len).offsets

    assert max(after - before for before, after in itertools.pairwise(offsets)) <= step
    assert len(offsets) <= len(text) // step * 4 + 2


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("x" * 512, False),
        ("x" * 513, True),
        ("漢" * 170, False),
        ("漢" * 171, True),
        ("é" * 256, False),
    ],
)
def test_a_text_is_long_by_its_bytes(text: str, *, is_one: bool) -> None:
    assert is_long(text) is is_one
    assert bool(count_message({"role": "user", "content": text}, len).cuts) is is_one


def test_points_are_found_on_both_sides_of_an_offset() -> None:
    grid = TokenOffsets.of("word " * 400, len)

    assert grid.at_or_before(0) == grid.at_or_after(-5) == 0
    assert grid.at_or_before(10**6) == grid.at_or_after(10**6) == 2_000
    before, after = grid.at_or_before(1_000), grid.at_or_after(1_000)
    assert before <= 1_000 <= after <= before + STEP_BYTES
    assert grid.tokens_between(before, after) == after - before
    assert grid.tokens_between(before + 1, after - 1) == after - before
    assert grid.tokens_between(after, before) == 0


def test_the_grid_of_nothing_is_empty() -> None:
    grid = TokenOffsets.parse("")

    assert (grid.total, grid.characters, grid.lines, grid.encode()) == (0, 0, 0, "")
    assert grid.head(5) == grid.tail(5) == grid.head_lines() == grid.tail_lines() == 0


def test_what_is_no_grid_is_refused() -> None:
    with pytest.raises(ValueError, match=r"invalid literal|not enough values"):
        TokenOffsets.parse("no grid")


@pytest.mark.proves("C15")
@pytest.mark.parametrize(
    "text",
    [
        "\ud83d\ude00" * 2_000,
        "e\u0301" * 2_000,
        "\U0001f44d\U0001f3fd" * 2_000,
        "\u2764\ufe0f" * 2_000,
    ],
)
def test_what_belongs_together_is_not_parted(text: str) -> None:
    grid = TokenOffsets.of(text, len)

    assert all(offset % 2 == 0 for offset in grid.offsets)
