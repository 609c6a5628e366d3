"""The frames of summary and digests cost what the constants say, which no tokenizer counts at run time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.histories import counter
from turnfold.core.history.gist import SEAM_TOKENS
from turnfold.core.text.tokens import MESSAGE_TOKENS, TokenOffsets
from turnfold.core.text.values import KIND_WEIGHTS
from turnfold.core.window import framing
from turnfold.core.window.digest import earlier_messages, open_round
from turnfold.core.window.framing import (
    SEAMS,
    Placement,
    beginning,
    measure_summary,
    summary_within,
    wrapped_digests,
    wrapped_summary,
)

MOST = 9_999_999


@pytest.mark.proves("L6")
@pytest.mark.parametrize(
    ("text", "tokens", "spare"),
    [
        (wrapped_summary("", (), Placement.USER), framing.SUMMARY_FRAME_TOKENS, SEAMS),
        (f"\n\n{framing.LEDGER_HEADING}\n", framing.LEDGER_FRAME_TOKENS, SEAMS),
        (wrapped_digests([""]), framing.DIGEST_FRAME_TOKENS - MESSAGE_TOKENS, SEAMS),
        (framing.short_digest(MOST, MOST), framing.SHORT_DIGEST_TOKENS - MESSAGE_TOKENS, SEAMS),
        (
            "\n" + earlier_messages.count_line(MOST, MOST),
            earlier_messages.COUNT_TOKENS,
            SEAM_TOKENS,
        ),
        (open_round.TIMES, open_round.TIMES_SIGN_TOKENS, 0),
        ("a" + open_round.BETWEEN + "b", 1 + counter()("a") + counter()(" b"), 0),
        ("),", 1, 0),
        ("…),", counter()("…)"), 0),
        ("\n" + open_round.ROUND.format(""), open_round.ROUND_TOKENS, 2 * SEAM_TOKENS),
    ],
)
def test_a_fixed_text_costs_what_is_planned_for_it(text: str, tokens: int, spare: int) -> None:
    assert counter()(text) == tokens - spare


@pytest.mark.proves("L6", "W10")
@pytest.mark.parametrize("times", [2, 10, 999, 1_000, 123_456])
def test_the_number_of_equal_calls_costs_what_is_planned_for_it(times: int) -> None:
    assert counter()(f"{open_round.TIMES}{times}") <= open_round._times_tokens(times)


@pytest.mark.proves("L6")
def test_the_headings_of_a_digest_cost_what_is_planned_for_them() -> None:
    headings = [earlier_messages.REQUESTS, earlier_messages.CALLS, earlier_messages.VALUES]

    counted = sum(counter()(f"\n{heading}") for heading in headings)

    assert counted == earlier_messages.HEADINGS_TOKENS - len(headings) * SEAM_TOKENS


@pytest.mark.proves("L6")
@pytest.mark.parametrize(
    "value", ["/srv/a.py", "{}", "漢字", "mix test 2>&1);", '"a": [', "x" * 40]
)
@pytest.mark.parametrize("kind", KIND_WEIGHTS)
def test_an_entry_of_the_ledger_costs_what_is_planned_for_it(kind: str, value: str) -> None:
    entries = [f"{kind} {value}"] * 20
    stored = [counter()(entry) + 1 for entry in entries]
    size = measure_summary(1, "", entries, tokens=sum(stored), text_tokens=0, entry_tokens=stored)

    form = summary_within(size, Placement.USER, 10_000)

    assert form is not None
    assert MESSAGE_TOKENS + counter()(wrapped_summary("", entries, Placement.USER)) <= form.tokens


@pytest.mark.proves("W1")
@pytest.mark.parametrize(
    ("characters", "shown"),
    [
        (33, "The user asked:\n- Move the tables\n…"),
        (34, "The user asked:\n- Move the tables\n…"),
        (50, "The user asked:\n- Move the tables\n…"),
        (52, "The user asked:\n- Move the tables\n…"),
        (67, "The user asked:\n- Move the tables\n…"),
        (71, "The user asked:\n- Move the tables\nConstraints stated:\n- Never on Friday\n…"),
        (78, "The user asked:\n- Move the tables\nConstraints stated:\n- Never on Friday\n…"),
        (25, "The user asked:\n- Move th…"),
    ],
)
def test_a_cut_summary_shows_that_it_is_cut_and_no_heading_without_its_lines(
    characters: int, shown: str
) -> None:
    """A heading alone said that there were no constraints, half a line another constraint."""
    text = "The user asked:\n- Move the tables\nConstraints stated:\n- Never on Friday\n- Only 3 at once"

    assert beginning(text, characters) == shown


@pytest.mark.proves("W1", "L6")
@given(
    st.lists(
        st.sampled_from(["The user asked:", "- Move the tables to the new cluster, please.", "约束与偏好：", "- 预算不能超过500元。", "", "word " * 40]),
        min_size=12, max_size=40,
    ).map("\n".join),
    st.sampled_from(Placement),
    st.integers(100, 400),
)  # fmt: skip
def test_a_cut_summary_costs_no_more_than_its_price(
    text: str, placement: Placement, max_tokens: int
) -> None:
    tokens = counter()(text)
    cuts = TokenOffsets.of(text, counter()).encode()
    size = measure_summary(1, text, (), tokens=tokens, text_tokens=tokens, cuts=cuts)

    form = summary_within(size, placement, max_tokens)

    if form is not None and form.characters is not None:
        shown = beginning(text, form.characters)
        if placement is not Placement.SEPARATE:
            shown = wrapped_summary(shown, (), placement)
        assert counter()(shown) <= form.tokens <= max_tokens
