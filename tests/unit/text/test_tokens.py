"""What a message costs, whatever its shape, and what the parts of a long text cost."""

import itertools
import json
import string
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from turnfold.core.text.estimates import COMMON
from turnfold.core.text.token_offsets import STEP_BYTES, is_long
from turnfold.core.text.tokens import (
    CALL_TOKENS,
    MESSAGE_TOKENS,
    Count,
    TokenOffsets,
    count_message,
    estimate,
    lines_of,
    text_of,
    token_upper_bound,
)
from turnfold.model_info.tokenizer import load_counter

LOG = "".join(
    f"2026-11-20 12:{n % 60:02}:07 INFO worker-{n % 7} finished job {n} in {n * 7 % 1000} ms\n"
    for n in range(200)
)


SIGNS = string.punctuation.replace("'", "")


@pytest.fixture(scope="module")
def count() -> Count:
    return load_counter()


def call(name: Any = "read_file", arguments: Any = "{}", call_id: Any = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.proves("T2")
def test_a_plain_message_costs_its_text_and_the_overhead(count: Count) -> None:
    measured = count_message({"role": "user", "content": "What is the weather in Paris?"}, count)

    assert measured.content_tokens == 7
    assert measured.tokens == MESSAGE_TOKENS + 7
    assert (measured.characters, measured.lines, measured.calls, measured.cuts) == (29, 1, (), "")
    assert not measured.is_irregular


NOISE = "gAAAAABm" * 200


@pytest.mark.proves("T2", "L6", "G1")
@pytest.mark.parametrize(
    "more",
    [
        {"extra_content": {"google": {"thought_signature": NOISE}}},
        {"encrypted_content": NOISE},
        {"content": [{"type": "text", "text": "Hello!", "thought_signature": NOISE}]},
        {
            "content": [
                {"type": "text", "text": "Hello!"},
                {"type": "image_url", "image_url": {"url": "x"}, "transcript": NOISE},
            ]
        },
        {"tool_calls": [{"extra_content": {"signature": NOISE}}]},
        {"tool_calls": [{"function": {"provider_specific_fields": {"signature": NOISE}}}]},
    ],
)
def test_fields_that_are_not_understood_count_as_text(count: Count, more: dict[str, Any]) -> None:
    body: dict[str, Any] = {"role": "assistant", "content": "Hello!"} | more
    if "tool_calls" in body:
        given = body["tool_calls"][0]
        function = call()["function"] | given.get("function", {})
        body["tool_calls"] = [call() | given | {"function": function}]
    plain = json.loads(json.dumps(body).replace(NOISE, ""))

    measured, without = count_message(body, count), count_message(plain, count)

    assert measured.tokens - without.tokens >= 0.95 * count(NOISE)
    assert measured.calls == without.calls
    assert measured.reasoning_tokens == 0


@pytest.mark.proves("T2", "W3", "G1")
@pytest.mark.parametrize(
    "more",
    [
        {"reasoning": NOISE},
        {"reasoning_details": [{"type": "reasoning.encrypted", "data": NOISE}]},
        {"thinking_blocks": [{"type": "redacted_thinking", "data": NOISE}]},
    ],
)
def test_reasoning_counts_under_each_name_and_can_be_left_out(
    count: Count, more: dict[str, Any]
) -> None:
    measured = count_message({"role": "assistant", "content": "Hello!"} | more, count)

    assert measured.reasoning_tokens == count(NOISE)


@pytest.mark.proves("T2", "G1")
@pytest.mark.parametrize(
    "more",
    [
        {"audio": {"id": "audio_1", "data": NOISE}},
        {"images": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{NOISE}"}}]},
    ],
)
def test_media_beside_the_content_have_the_price_of_media(
    count: Count, more: dict[str, Any]
) -> None:
    plain = {"role": "assistant", "content": "Hello!"}

    measured = count_message(plain | more, count, image_tokens=300)

    assert measured.tokens == count_message(plain, count).tokens + 300


@pytest.mark.proves("T2", "G1")
def test_what_no_model_reads_costs_nothing(count: Count) -> None:
    plain = {"role": "tool", "tool_call_id": "call_1", "content": "42"}
    more: dict[str, Any] = {"name": None, "annotations": [], "cache_control": {"type": "ephemeral"}}

    assert count_message(plain | more, count) == count_message(plain, count)


@pytest.mark.proves("T2")
def test_calls_reasoning_and_content_are_parts_of_the_whole(count: Count) -> None:
    body = {
        "role": "assistant",
        "content": "Let me look.",
        "reasoning_content": "The user wants the file.",
        "tool_calls": [call(arguments='{"path": "src/app.py"}'), call("list_dir", "", "c2")],
    }

    measured = count_message(body, count)

    assert [(one.slot, one.call_id, one.name, one.path) for one in measured.calls] == [
        (0, "c1", "read_file", "src/app.py"),
        (1, "c2", "list_dir", None),
    ]
    assert measured.calls[0].tokens == CALL_TOKENS + count("read_file") + count(
        '{"path": "src/app.py"}'
    )
    assert measured.reasoning_tokens == count("The user wants the file.")
    assert measured.tokens == (
        MESSAGE_TOKENS
        + measured.content_tokens
        + measured.reasoning_tokens
        + sum(one.tokens for one in measured.calls)
    )


@pytest.mark.proves("T2")
@pytest.mark.parametrize("kind", ["image_url", "image", "input_audio", "audio", "file", "video"])
def test_media_cost_the_same_however_many_bytes_they_are(count: Count, kind: str) -> None:
    small = count_message(
        {"role": "user", "content": [{"type": kind, kind: {"url": "data:,x"}}]},
        count,
        image_tokens=300,
    )
    large = count_message(
        {"role": "user", "content": [{"type": kind, kind: {"url": "data:," + "x" * 100_000}}]},
        count,
        image_tokens=300,
    )

    assert small.content_tokens == large.content_tokens == 300


def test_the_texts_of_parts_stand_one_below_the_other() -> None:
    body = {
        "content": [
            {"type": "text", "text": "one"},
            {"type": "image_url"},
            None,
            "two",
            {"type": "text"},
        ]
    }

    assert text_of(body) == "one\ntwo"


@pytest.mark.proves("C22", "I2")
@pytest.mark.parametrize(
    "content",
    [
        7,
        True,
        1.5,
        {"type": "text"},
        {},
        [],
        [None],
        [[]],
        [{"type": "text"}],
        [{"type": "text", "text": None}],
        [{"type": "text", "text": 12345}],
        [{"type": "text", "text": ["a", {"b": 1}]}],
        [{"type": ["text"], "text": "x"}],
        [{"type": None, "image_url": 3}],
        [{"type": "something_new", "payload": "words of it"}],
        "\ud800 lone \udfff",
        "\x00\x01\x1b[31m",
        "<|endoftext|>",
    ],
)
def test_content_of_any_shape_is_counted(count: Count, content: Any) -> None:
    measured = count_message({"role": "user", "content": content}, count)

    assert measured.tokens == MESSAGE_TOKENS + measured.content_tokens
    assert (measured.content_tokens > 0) == bool(content != [])


@pytest.mark.proves("C22")
def test_the_size_of_what_is_no_text_counts(count: Count) -> None:
    small = count_message(
        {"role": "user", "content": [{"type": "text", "text": {"rows": ["one"]}}]}, count
    )
    large = count_message(
        {"role": "user", "content": [{"type": "text", "text": {"rows": ["one"] * 1_000}}]}, count
    )

    assert large.content_tokens > small.content_tokens + 1_000


@pytest.mark.proves("C22")
@pytest.mark.parametrize(
    "calls",
    [
        7,
        "calls",
        {"id": "c1"},
        [None],
        [7],
        [[]],
        [{}],
        [{"id": "c1"}],
        [{"id": "c1", "function": None}],
        [{"id": "c1", "function": []}],
        [call(name=None)],
        [call(name="")],
        [call(name=7)],
        [call(call_id=None)],
        [call(call_id="")],
        [call(call_id=["c1"])],
    ],
)
def test_what_is_no_call_is_counted_and_called_irregular(count: Count, calls: Any) -> None:
    measured = count_message({"role": "assistant", "content": None, "tool_calls": calls}, count)

    assert measured.calls == ()
    assert measured.is_irregular
    assert measured.tokens > MESSAGE_TOKENS


def test_an_id_that_repeats_in_one_message_is_no_second_call(count: Count) -> None:
    measured = count_message(
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [call(), call("write"), call(call_id="c2")],
        },
        count,
    )

    assert [one.slot for one in measured.calls] == [0, 2]
    assert measured.is_irregular


@pytest.mark.parametrize("calls", [None, []])
def test_no_calls_are_nothing_irregular(count: Count, calls: Any) -> None:
    measured = count_message({"role": "assistant", "content": "Hello.", "tool_calls": calls}, count)

    assert not measured.is_irregular


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ('{"path": "/a/b.py"}', "/a/b.py"),
        ('{"file_path": "b.py", "content": "x"}', "b.py"),
        ('{"notebook_path": "n.ipynb"}', "n.ipynb"),
        ({"filename": "c.txt"}, "c.txt"),
        ('{"path": 7, "file": "d.txt"}', "d.txt"),
        ('{"path": ""}', None),
        ('{"path": "' + "x" * 301 + '"}', None),
        ('{"path": "broken', None),
        ('["path"]', None),
        ("[" * 100_000 + '"path"', None),
        (None, None),
        (7, None),
    ],
)
def test_the_file_a_call_names_is_found(arguments: Any, path: str | None) -> None:
    measured = count_message(
        {"role": "assistant", "content": "", "tool_calls": [call(arguments=arguments)]}, len
    )

    assert [one.path for one in measured.calls] == [path]


@pytest.mark.proves("C24")
@pytest.mark.parametrize(
    "block",
    [
        {"type": "thinking", "thinking": "short", "signature": "EqQBCkYIARgCKkBT" * 500},
        {"type": "redacted_thinking", "data": "EqQBCkYIARgCKkBT" * 500},
        {"type": "thinking", "thinking": {"odd": ["x1 "] * 2_000}},
        "EqQBCkYIARgCKkBT" * 500,
    ],
)
def test_signatures_and_redacted_thinking_count_as_reasoning(count: Count, block: Any) -> None:
    measured = count_message(
        {"role": "assistant", "content": "Yes.", "thinking_blocks": [block]}, count
    )

    assert measured.reasoning_tokens > 1_000
    assert measured.tokens == MESSAGE_TOKENS + measured.content_tokens + measured.reasoning_tokens


@pytest.mark.parametrize("blocks", [7, "x", {"thinking": "x"}, [None], [7], [{"thinking": None}]])
def test_thinking_of_any_shape_is_counted(count: Count, blocks: Any) -> None:
    assert (
        count_message(
            {"role": "assistant", "content": None, "thinking_blocks": blocks}, count
        ).reasoning_tokens
        >= 0
    )


@pytest.mark.parametrize("name", [None, 7, "n" * 500, ["x"], {"a": 1}])
def test_a_name_of_any_shape_is_counted(count: Count, name: Any) -> None:
    assert (
        count_message({"role": "user", "content": "Hello.", "name": name}, count).tokens
        >= MESSAGE_TOKENS + 2
    )


@pytest.mark.parametrize(
    ("text", "lines"),
    [("", 0), ("a", 1), ("a\n", 1), ("a\nb", 2), ("\n", 1), ("\n\n", 2), ("a\r\nb\r\n", 2)],
)
def test_lines_are_counted_as_people_count_them(text: str, lines: int) -> None:
    assert lines_of(text) == lines
    assert TokenOffsets.of(text, len).lines == lines


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
        assert count(LOG[: head.offset]) <= head.tokens <= tokens
        assert count(LOG[tail.offset :]) <= tail.tokens <= tokens
        assert head.tokens > tokens - 300 or head.offset == len(LOG)
        assert tail.tokens > tokens - 300 or tail.offset == 0
    assert grid.head(-1) == (0, 0)
    assert grid.tail(-1) == (len(LOG), 0)


@pytest.mark.proves("I3", "C17")
@pytest.mark.parametrize("end", ["", "\n", "last", "\n\n\n"])
@pytest.mark.parametrize("line", ["x", "", "/usr/lib/x.so;", "y" * 700, "a, b\r"])
def test_twenty_lines_from_the_start_and_ten_from_the_end_can_be_cut_exactly(
    line: str, end: str
) -> None:
    text = "".join(f"{line}\n" for _ in range(500)) + end
    grid = TokenOffsets.of(text, len)

    head, tail = grid.head_lines(20), grid.tail_lines(10)

    assert text[: head.offset] == "".join(text.splitlines(keepends=True)[:20])
    assert lines_of(text[tail.offset :]) == 10
    assert text[tail.offset - 1] == "\n"
    assert grid.lines == lines_of(text)


@pytest.mark.parametrize("lines", [0, 1, 5, 19, 21, 100, 499, 500, 501])
def test_other_numbers_of_lines_are_never_exceeded(lines: int) -> None:
    text = "".join(f"{n} {'word ' * (n % 90)}\n" + "\n" * (n % 3) for n in range(250))
    grid = TokenOffsets.of(text, len)

    assert lines_of(text[: grid.head_lines(lines).offset]) <= lines
    assert lines_of(text[grid.tail_lines(lines).offset :]) <= lines


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
    assert grid.head(5) == grid.tail(5) == grid.head_lines(20) == grid.tail_lines(10) == (0, 0)


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


@pytest.mark.proves("I3")
@pytest.mark.parametrize(
    "text", [" ", "\n", "a", "=", "字", "é", "\x00", " a", "ab1", "\ud800", "😀", "\t \n", "'s"]
)
def test_a_million_of_anything_are_counted(count: Count, text: str) -> None:
    measured = count_message({"role": "tool", "content": text * (1_000_000 // len(text))}, count)

    assert measured.content_tokens > 0


@pytest.mark.proves("T2")
def test_what_no_encoding_knows_is_counted_too(count: Count) -> None:
    assert count("\ud800 and \udfff") == count("\ufffd and \ufffd")


@pytest.mark.proves("T2")
@pytest.mark.parametrize("run", ["a", " ", "\n", "=-", "漢", "\u0301", "1"])
def test_a_megabyte_of_one_character_is_counted_whole(count: Count, run: str) -> None:
    long, short = (count(run * times) for times in (1_000_000, 1_000))

    assert long == pytest.approx(1_000 * short, rel=0.2)


def test_the_common_words_are_one_token_each(count: Count) -> None:
    forms = [
        form
        for word in COMMON
        for form in (word, word.capitalize(), f" {word}", f" {word.capitalize()}")
    ]

    assert {form for form in forms if count(form) != 1} == set()
    assert {
        sign + form for form in forms for sign in SIGNS if form[0] != " " and count(sign + form) > 2
    } == set()


@pytest.mark.parametrize(
    ("text", "slack"),
    [
        ("[480 lines and 12,345 tokens omitted]", 2.2),
        ("01JD3V8Z6W1Q9K5T2N7R4M0XYB#12", 1.6),
        ("/home/dev/project/shared/turnfold/core/tokens.py", 2.3),
        ("user-42@example.com", 2.0),
        ("3f2a9b6c-77d1-4c0e-9b1a-0a1b2c3d4e5f", 1.5),
    ],
)
def test_the_ceiling_is_near_on_what_we_write(count: Count, text: str, slack: float) -> None:
    assert count(text) <= token_upper_bound(text) <= slack * count(text)


@cache
def samples() -> dict[str, str]:
    """Texts of every class, long enough that chance does not decide."""
    prose = (
        "The service stores every message and evicts the old ones at once, so that nobody waits for a model. "
        "We talked about the budget for the trip to Lisbon last week, and she asked whether the hotel could be moved closer to the river. "
    )
    rows = [
        {
            "id": n,
            "name": f"item {n}",
            "price": n * 37 % 1000 / 10,
            "tags": ["new", "sale"],
            "ok": n % 2 == 0,
        }
        for n in range(100)
    ]
    return {
        "english": prose * 10,
        "chinese": "今天我想去北京游玩，请帮我推荐一个评分较高的景点，门票最好不要太贵。附近有没有适合一家人住的酒店？价格在五百元左右。"
        * 10,
        "japanese": "来週の土曜日に京都へ行きたいのですが、駅から近いホテルを探してもらえますか。朝食付きで、駐車場があるとうれしいです。"
        * 10,
        "korean": "다음 주 토요일에 부산으로 여행을 가려고 하는데 역에서 가까운 호텔을 찾아 주실 수 있나요? 조식이 포함되면 좋겠습니다. "
        * 10,
        "code": Path(count_message.__code__.co_filename).read_text(encoding="utf-8"),
        "json": json.dumps(rows),
        "json, indented": json.dumps(rows, indent=2),
        "base64": "".join(
            "iVBORw0KGgoAAAANSUhEUgAAB4AAAAQ4CAYAAADo08FDAAAgAElEQVR4nOzdeZwcZZ0/8E91z5VMQgIkBCYEEo4khFMOUVTu"[
                n % 60 :
            ]
            for n in range(60)
        ),
        "markdown table": "| name | tokens | share |\n| --- | ---: | ---: |\n"
        + "".join(f"| `chat-{n}.jsonl` | {n * 1_237:,} | {n / 7:.2f}% |\n" for n in range(100)),
    }


@pytest.mark.proves("T3")
@pytest.mark.parametrize("kind", list(samples()))
def test_the_estimate_is_near_without_a_tokenizer(count: Count, kind: str) -> None:
    text = samples()[kind]

    assert 0.9 <= estimate(text) / count(text) <= 1.15


def test_nothing_is_estimated_as_nothing() -> None:
    assert estimate("") == token_upper_bound("") == 0


ESTIMATES = {
    "a": 199,
    "A": 199,
    "a b c": 399,
    "Ab": 199,
    "aB": 299,
    "ABC": 239,
    "ABCDEFGHIJKLMNOPQ": 609,
    "an": 199,
    "MhBhfTrLqp0QzXw3kfMhBhfT/TrLqp0QzXw3kfMhBhfTrLqp0QzXw3kf": 3935,
    "theQuickBrownFox/JumpsOverTheLazyDogAndRunsAway/IntoTheWoods": 1736,
    "internationalizationandlocalization": 799,
    "extraordinarily": 399,
    "EXTRAORDINARILYLONG": 669,
    " I": 199,
    "x=1": 399,
    "foo_bar": 321,
    "getUserName": 414,
    "12345": 299,
    "1.5": 399,
    "...": 100,
    "----------": 125,
    "=>!": 105,
    "\n\n": 1,
    "\t\t": 2,
    "    pass": 304,
    "é": 199,
    "naïveté": 302,
    "漢字": 299,
    "漢": 199,
    "ひらがな": 311,
    "カ": 152,
    "서울에서": 389,
    "Привет": 255,
    "नमस्ते": 321,
    "日本語 text": 499,
    "👍": 239,
    "。": 191,
    "aGVsbG8gd29ybGQgaG93IGFyZSB5b3UgdG9kYXkgbXkgZnJpZW5kIGl0IGlzIG5pY2U=": 4757,
    "/srv/data/alpha/beta/gamma/delta/epsilon/zeta/eta/theta": 1426,
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08": 3843,
    "/USR/LOCAL/SHARE/DOCUMENTATION/PACKAGES/README/FIRSTEDITION": 1914,
    "can't": 309,
    "HelloWorld": 315,
    "it's": 304,
    "(a)": 220,
    "word,": 205,
    "#tag": 284,
    "$x": 279,
    "a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p/q/r/s/t/u/v/w/x/y/z": 3082,
}
"""Texts, and the estimate for a hundred of each, line by line: what each kind of piece costs."""


@pytest.mark.proves("O10")
@pytest.mark.parametrize(("text", "tokens"), ESTIMATES.items())
def test_a_piece_of_text_is_estimated_as_before(text: str, tokens: int) -> None:
    assert estimate("\n".join([text] * 100)) == tokens


@pytest.mark.proves("I3")
def test_a_text_in_a_part_costs_what_it_costs_alone_and_one_that_is_no_list_its_json(
    count: Count,
) -> None:
    text = "The lanterns stand in the boathouse."
    part = {"type": "text", "text": text}

    alone, in_part, bare = (
        count_message({"role": "user", "content": content}, count).content_tokens
        for content in (text, [part], part)
    )

    assert alone == in_part == count(text)
    assert bare > alone
