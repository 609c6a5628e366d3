"""Laws of counting: prices add up and are never below the tokenizer's; bounds bound; no shape of message breaks it."""

import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.reference_tokenizer import reference
from tests.window_check.sessions import conversations, data_directory
from turnfold.core.text.token_offsets import STEP_BYTES
from turnfold.core.text.tokens import (
    MESSAGE_TOKENS,
    Count,
    TokenOffsets,
    count_message,
    estimate,
    lines_of,
    token_upper_bound,
)
from turnfold.model_info.tokenizer import load_counter

EXAMPLES = Path(__file__).parents[2] / "examples"
FRAGMENTS = [
    "The quick brown fox jumps over the lazy dog. ",
    "def fold(history: list[Message]) -> Window:\n    return Window(history)\n\n",
    '{"id": 12345, "path": "/srv/app/main.py", "ok": true},\n',
    '"a":{"b":["c",null,1.5e-7]},',
    "2026-11-20T10:00:00Z INFO /usr/lib/x86_64/libc.so.6 loaded\n",
    "/usr/share/doc/readme;\n//// ---- ////\n",
    "今天我想去北京游玩，请帮我推荐一个评分较高的景点。",
    "北京市朝阳区建国门外大街甲十二号双子座大厦",
    "京都駅から近いホテルを探しています",
    "부산역에서 가까운 호텔을 찾아 주세요. ",
    "iVBORw0KGgoAAAANSUhEUgAAB4AAAAQ4CAYAAADo08FDAAAgAElEQVR4nOzdeZwcZZ0",
    "3f2a9b6c77d14c0e9b1a0a1b2c3d4e5f",
    "0123456789",
    "| a | b |\n| --- | ---: |\n",
    "=" * 40,
    " " * 70,
    "\t",
    "\n",
    "\n\n\n",
    "\r\n",
    "😀👍🏽👨‍👩‍👧",
    "e\u0301",
    "\x1b[31m\x00",
    "don't, won't; it's",
]
long_texts = st.lists(
    st.tuples(st.sampled_from(FRAGMENTS), st.integers(1, 12)), min_size=1, max_size=30
).map(lambda parts: "".join(fragment * times for fragment, times in parts))
any_text = st.text(st.characters(codec=None, exclude_categories=()), max_size=60)
own_texts = st.one_of(
    any_text,
    st.uuids().map(str),
    st.from_regex(r"[A-Za-z0-9_./#:~-]{1,60}", fullmatch=True),
    st.from_regex(
        r"\[?(TRUNCATED|[Oo]mitted|lines|tokens|of|the|result|call_[a-z0-9]{8}|[0-9]{1,7}|, | |\n|'){1,20}\]?",
        fullmatch=True,
    ),
    st.text("gkqxjzv bcd'ABé字０1 \n_", max_size=40),
    st.text("0123456789０１²字", max_size=30),
    st.text("今天我想去北京ホテル호텔😀 -/#", max_size=40),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | any_text,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(("type", "text", "id", "function", "name", "arguments", "x")),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@cache
def counter() -> Count:
    return load_counter()


@pytest.mark.proves("T2")
@given(text=long_texts | own_texts)
@example(text="It's 12345 naïve 'TESTS' — 今天天气 ひらがな 한국어 😀\r\n\t  x <|endoftext|>")
def test_a_text_counts_what_the_makers_of_the_vocabulary_count(text: str) -> None:
    assert counter()(text) == reference()(text)


@pytest.mark.proves("T2")
def test_recorded_messages_count_what_the_makers_of_the_vocabulary_count() -> None:
    shipped = [file.read_text(encoding="utf-8") for file in sorted(EXAMPLES.glob("*.jsonl"))]
    recorded = [
        json.dumps(said.body, ensure_ascii=False)
        for one in conversations(data_directory())
        for said in one.said[:20]
    ]
    texts = [*shipped, *recorded]

    assert len(shipped) == 3
    assert [counter()(text) for text in texts] == [reference()(text) for text in texts]


@pytest.mark.proves("I3", "T2")
@given(text=long_texts, cuts=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_no_price_between_two_points_is_below_the_tokenizers(
    text: str, cuts: tuple[float, float]
) -> None:
    grid = TokenOffsets.of(text, counter())
    first, last = sorted(int(cut * (len(grid.offsets) - 1)) for cut in cuts)
    start, end = grid.offsets[first], grid.offsets[last]

    price, counted = grid.tokens_between(start, end), counter()(text[start:end])

    assert price >= counted
    assert grid.tokens_between(0, start) + price + grid.tokens_between(end, len(text)) == grid.total
    assert grid.total <= counter()(text) * 1.07 + 12


@pytest.mark.proves("I3")
@given(text=long_texts)
def test_a_grid_covers_its_text_in_small_steps_and_survives_its_encoding(text: str) -> None:
    grid = TokenOffsets.of(text, len)

    assert grid.offsets[0] == 0
    assert grid.offsets[-1] == grid.characters == len(text)
    assert all(
        0 < after - before <= STEP_BYTES
        for before, after in zip(grid.offsets, grid.offsets[1:], strict=False)
    )
    assert [text[:offset].count("\n") for offset in grid.offsets] == list(grid.line_ends)
    assert grid.lines == lines_of(text)
    assert TokenOffsets.parse(grid.encode()) == grid


@pytest.mark.proves("C15")
@given(text=long_texts, tokens=st.integers(0, 4_000))
def test_no_head_or_tail_exceeds_what_was_asked(text: str, tokens: int) -> None:
    grid = TokenOffsets.of(text, counter())

    head, tail = grid.head(tokens), grid.tail(tokens)
    assert counter()(text[:head]) <= grid.tokens_between(0, head) <= tokens
    assert counter()(text[tail:]) <= grid.tokens_between(tail, len(text)) <= tokens
    assert lines_of(text[: grid.head_lines()]) <= 20
    assert lines_of(text[grid.tail_lines() :]) <= 10


@given(text=own_texts)
@example(text="don't remember's the tokens１2")
@example(text="２123 ４567")
@example(text="[TRUNCATED original~12345 tokens]")
def test_the_ceiling_is_never_below_the_count(text: str) -> None:
    assert counter()(text) <= token_upper_bound(text)


@given(text=any_text)
def test_any_text_can_be_estimated(text: str) -> None:
    assert 0 <= estimate(text) <= 4 * len(text) + 1


@pytest.mark.proves("C22", "I2")
@given(
    body=st.fixed_dictionaries(
        {"role": st.sampled_from(("user", "assistant", "tool", "system"))},
        optional=dict.fromkeys(
            (
                "content",
                "tool_calls",
                "name",
                "reasoning_content",
                "thinking_blocks",
                "refusal",
                "function_call",
            ),
            json_values,
        ),
    )
)
def test_a_message_of_any_shape_is_measured_and_its_parts_are_within_it(
    body: dict[str, object],
) -> None:
    measured = count_message(body, counter())

    parts = (
        measured.content_tokens
        + measured.reasoning_tokens
        + sum(call.tokens for call in measured.calls)
    )
    assert measured.tokens >= MESSAGE_TOKENS + parts
    assert len({call.call_id for call in measured.calls}) == len(measured.calls)
    assert measured == count_message(json.loads(json.dumps(body)), counter())
