"""What a message costs, whatever its shape, and what the parts of a long text cost."""

import json
import string
from typing import Any

import pytest

from turnfold.core.text.estimates import COMMON
from turnfold.core.text.tokens import (
    CALL_TOKENS,
    MESSAGE_TOKENS,
    Count,
    TokenOffsets,
    count_message,
    lines_of,
    spoken_text,
    text_of,
)

SIGNS = string.punctuation.replace("'", "")


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


@pytest.mark.proves("T2", "L6")
def test_a_transcript_costs_what_it_has_beside_its_audio(count: Count) -> None:
    """Formats without speech show it."""
    silent: dict[str, Any] = {"role": "assistant", "content": None, "audio": {"id": "audio_1"}}
    spoken = {**silent, "audio": {"id": "audio_1", "transcript": NOISE}}

    measured = count_message(spoken, count)

    assert measured.tokens == count_message(silent, count).tokens + count(NOISE)


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
@pytest.mark.parametrize(
    "kind",
    "image_url image input_audio audio output_audio file video audio_url image_embeds".split(),
)
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


@pytest.mark.parametrize("empty", [None, "", []])
def test_an_empty_refusal_is_no_line_before_what_was_said(empty: object) -> None:
    """As servers write it that fill in every field."""
    body = {"content": [], "refusal": empty, "audio": {"transcript": "In Ghent."}}

    assert spoken_text(body) == "In Ghent."
