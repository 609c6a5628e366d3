"""What becomes of a window in the Anthropic shape."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.anthropic_faults import anthropic_faults
from tests.histories import History, Said, assistant, history, plan, system, tool, user, words
from turnfold.core.policy.presets import Policy
from turnfold.core.shapes.blocks import OPENING, SILENT
from turnfold.core.window.forms import STAND_IN
from turnfold.core.window.framing import Placement
from turnfold.core.window.rendering.anthropic import (
    ASIDE_MESSAGES,
    ASIDE_TOKENS,
    AnthropicWindow,
    to_anthropic,
)
from turnfold.core.window.window import WindowRequest
from turnfold.errors import CannotFit
from turnfold.shapes import responses_from_chat

Json = dict[str, Any]


def shape_of(
    session: History, placement: Placement = Placement.SEPARATE, budget: int | None = None
) -> AnthropicWindow:
    made = plan(
        session.stored,
        WindowRequest(budget_tokens=budget, placement=placement, aside_tokens=ASIDE_TOKENS),
        Policy(),
    )
    return to_anthropic(made, session.rendered(made))


def messages_of(*said: Said | Json) -> list[Json]:
    found = [json.loads(message) for message in shape_of(history(said)).messages]
    assert anthropic_faults(found) == []
    return found


def text(value: str) -> Json:
    return {"type": "text", "text": value}


@pytest.mark.proves("W1", "L5")
def test_all_results_of_a_turn_stand_first_in_one_user_message_and_neighbours_are_merged() -> None:
    shape = shape_of(
        history(
            [
                system("be brief"),
                user("look"),
                assistant("I will.", "a", "b"),
                user("hurry"),
                tool("b", "second"),
                tool("a", "first"),
                user("and?"),
                assistant("done"),
                assistant("really"),
            ]
        )
    )

    assert shape.system == "be brief"
    assert [json.loads(message) for message in shape.messages] == [
        {"role": "user", "content": [text("look")]},
        {
            "role": "assistant",
            "content": [
                text("I will."),
                {"type": "tool_use", "id": "a", "name": "look_up", "input": {"at": 1}},
                {"type": "tool_use", "id": "b", "name": "look_up", "input": {"at": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [text("first")]},
                {"type": "tool_result", "tool_use_id": "b", "content": [text("second")]},
                text("hurry"),
                text("and?"),
            ],
        },
        {"role": "assistant", "content": [text("done"), text("really")]},
    ]
    assert shape.message_ids == ("e2#0", "e3#0", ("e6#0", "e5#0", "e4#0", "e7#0"), ("e8#0", "e9#0"))


@pytest.mark.proves("W1", "E4")
def test_a_call_nobody_answered_is_closed_and_its_stand_in_has_no_id() -> None:
    shape = shape_of(history([user("look"), assistant(None, "a"), user("well?")]))

    assert json.loads(shape.messages[2])["content"] == [
        {"type": "tool_result", "tool_use_id": "a", "content": [text(STAND_IN)]},
        text("well?"),
    ]
    assert shape.message_ids[2] == (None, "e3#0")


@pytest.mark.proves("W1")
@pytest.mark.parametrize(
    ("placement", "in_system", "in_messages"),
    [
        (Placement.SEPARATE, False, False),
        (Placement.SYSTEM, True, False),
        (Placement.MESSAGE, True, False),
        (Placement.USER, False, True),
    ],
)
@pytest.mark.parametrize("pinned", [[system("be brief")], []])
def test_the_summary_stands_with_the_system_text_or_in_the_first_user_message(
    placement: Placement, in_system: bool, in_messages: bool, pinned: Sequence[Json]
) -> None:
    shape = shape_of(
        history([*pinned, user("hi")], summary="They chose port 8443.", covered=4), placement
    )

    assert ("port 8443" in (shape.system or "")) is in_system
    assert ("port 8443" in "".join(shape.messages)) is in_messages
    assert (shape.system or "").startswith("be brief") is bool(pinned)
    assert len(shape.messages) == 1


@pytest.mark.proves("W1", "L5")
@pytest.mark.parametrize("said", [[assistant("Welcome!")], [assistant("Welcome!"), user("hi")]])
def test_the_first_message_is_a_users_even_where_an_assistant_began(said: list[Json]) -> None:
    shape = shape_of(history(said))

    assert json.loads(shape.messages[0]) == {"role": "user", "content": [text(OPENING)]}
    assert shape.message_ids[:2] == (None, "e1#0")


@pytest.mark.proves("W1", "L5")
def test_what_says_nothing_is_not_sent_and_named_beside_the_message_before() -> None:
    silent = shape_of(
        history([user("hi"), assistant(" \n"), user([]), assistant("yes"), user("ok")])
    )
    newest = shape_of(history([user("hi"), assistant("yes"), user("")]))

    assert [json.loads(message)["role"] for message in silent.messages] == [
        "user",
        "assistant",
        "user",
    ]
    assert silent.message_ids == (("e1#0", "e2#0", "e3#0"), "e4#0", "e5#0")
    assert json.loads(newest.messages[2])["content"] == [text(SILENT)]
    assert newest.message_ids == ("e1#0", "e2#0", "e3#0")


@pytest.mark.proves("W1", "W4", "C24")
def test_signed_thinking_is_passed_on_to_the_letter_and_stands_first() -> None:
    blocks = [
        {"type": "thinking", "thinking": 'Ünïcode 漢 \n \\ "q"', "signature": "ErUB+/=="},
        {"type": "redacted_thinking", "data": "EmwKAh=="},
    ]
    said = assistant("so", "a", thinking_blocks=blocks, reasoning_content="unsigned")

    (_, calling, _) = messages_of(user("why?"), said, tool("a", "1"))

    assert calling["content"][:2] == blocks
    assert [block["type"] for block in calling["content"]] == [
        "thinking",
        "redacted_thinking",
        "text",
        "tool_use",
    ]
    assert "unsigned" not in json.dumps(calling)


@pytest.mark.proves("W4", "W3")
def test_older_thinking_goes_whole_under_a_budget_and_that_of_the_open_loop_stays() -> None:
    def thinking(about: str) -> list[Json]:
        return [{"type": "thinking", "thinking": f"{about} {words(1_500)}", "signature": "c2ln"}]

    session = history(
        [
            user("first"),
            assistant("one", thinking_blocks=thinking("old")),
            user("second"),
            assistant(None, "a", thinking_blocks=thinking("new")),
            tool("a", "42"),
        ]
    )

    sent = [json.loads(message) for message in shape_of(session, budget=2_500).messages]

    kept = [
        block for message in sent for block in message["content"] if block["type"] == "thinking"
    ]
    assert kept == thinking("new")


@pytest.mark.proves("W1", "I2")
@pytest.mark.parametrize(
    ("part", "block"),
    [
        (
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0="}},
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0="},
            },
        ),
        (
            {
                "type": "image_url",
                "image_url": {"url": "http://example.com/a.png", "detail": "low"},
            },
            {"type": "image", "source": {"type": "url", "url": "http://example.com/a.png"}},
        ),
        (
            {"type": "input_image", "image_url": "https://e.com/a"},
            {"type": "image", "source": {"type": "url", "url": "https://e.com/a"}},
        ),
        (
            {"type": "image", "source": {"type": "file", "file_id": "f"}},
            {"type": "image", "source": {"type": "file", "file_id": "f"}},
        ),
        (
            {"type": "image_url", "image_url": {"url": "data:image/tiff;base64,AAAA"}},
            text("[image_url left out]"),
        ),
        ({"type": "image_url"}, text("[image_url left out]")),
        (
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBE"}},
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"},
            },
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            text("[input_audio left out]"),
        ),
        ({"type": "strange", "x": 1}, text('{"type":"strange","x":1}')),
    ],
)
def test_parts_become_blocks_of_users_and_of_results(part: Json, block: Json) -> None:
    asking, _, result = messages_of(
        user([text("see"), part]), assistant(None, "a"), tool("a", [part])
    )

    assert asking["content"] == [text("see"), block]
    assert result["content"] == [{"type": "tool_result", "tool_use_id": "a", "content": [block]}]


@pytest.mark.proves("W1")
def test_an_assistant_holds_no_media_and_ends_with_no_space() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}

    (_, said) = messages_of(user("hi"), assistant([text("here:  \n"), image]))

    assert said["content"] == [text("here:"), text("[image_url left out]")]


@pytest.mark.proves("W1", "C9", "C19")
@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ('{"a": [1, 2.50], "b": "漢"}', {"a": [1, 2.5], "b": "漢"}),
        ("", {}),
        ('{"deep": ' + "[" * 90 + "]" * 90 + "}", {"deep": json.loads("[" * 90 + "]" * 90)}),
    ],
)
def test_arguments_are_the_object_they_say(arguments: str, found: Json) -> None:
    (_, calling, _) = messages_of(
        user("hi"), assistant(None, "a", arguments=arguments), tool("a", "1")
    )

    assert calling["content"][0]["input"] == found


@pytest.mark.proves("W1", "C9", "C19", "L6")
@pytest.mark.parametrize("end", ["", "}, NaN]", "[" * 200, '\ud800"'])
def test_arguments_that_are_no_object_begin_as_they_were_written_and_cost_no_more(end: str) -> None:
    arguments = '{"text": "' + words(300) + end

    (_, calling, _) = messages_of(
        user("hi"), assistant(None, "a", arguments=arguments), tool("a", "1")
    )

    told = calling["content"][0]["input"]["text"]
    assert len(told) > 300
    assert arguments.startswith(told)


@pytest.mark.proves("W1", "C9")
@pytest.mark.parametrize(
    "arguments",
    ["{", "[1]", '"text"', '{"n": NaN}', '{"n": 1e999}', '{"a":' * 300 + "1" + "}" * 300],
)
def test_a_call_whose_arguments_are_no_object_is_sendable(arguments: str) -> None:
    (_, calling, _) = messages_of(
        user("hi"), assistant(None, "a", arguments=arguments), tool("a", "1")
    )

    told = calling["content"][0]["input"]
    assert arguments.startswith(told.get("text", ""))
    assert set(told) <= {"text"}


@pytest.mark.proves("C9", "L5")
def test_ids_are_fit_to_be_sent_and_unlike_one_another_though_turns_repeat_them() -> None:
    long = "x" * 90
    said = [
        assistant(None, "call_0", "call.0", long),
        tool("call.0", "2"),
        tool(long, "3"),
        tool("call_0", "1"),
    ]

    sent = messages_of(user("go"), *said, user("again"), *said)

    calls = [
        block["id"]
        for message in sent
        for block in message["content"]
        if block["type"] == "tool_use"
    ]
    results = [
        block["content"][0]["text"]
        for message in sent
        for block in message["content"]
        if block["type"] == "tool_result"
    ]
    assert len(set(calls)) == 6
    assert calls[0] == "call_0"
    assert results == ["1", "2", "3"] * 2


@pytest.mark.proves("W1", "I1")
def test_a_result_that_is_an_error_says_so() -> None:
    published = Said(tool("a", "no such file"), is_error=True)
    in_turn = tool("b", "refused") | {"is_error": True}

    results = messages_of(
        user("hi"),
        assistant(None, "a", "b", "c", "d"),
        published,
        in_turn,
        tool("c", "fine"),
        Said(tool("d", ""), is_error=True),
    )

    assert [block.get("is_error") for block in results[2]["content"]] == [True, True, None, None]


@pytest.mark.proves("L5")
@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([{"role": "assistant", "content": [text("hi")]}], "has the role"),
        ([{"role": "user", "content": []}], "is empty"),
        ([{"role": "user", "content": [text(" ")]}], "a text is empty"),
        (
            [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]}],
            "answers ['a'] instead of []",
        ),
        (
            [{"role": "user", "content": [{"type": "tool_use", "id": "a", "input": {}}]}],
            "user holds 'tool_use'",
        ),
        (
            [
                {"role": "user", "content": [text("x")]},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "a.b", "input": "{}"}],
                },
            ],
            "input is no object",
        ),
        (
            [
                {"role": "user", "content": [text("x")]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a.b", "input": {}}]},
            ],
            "ids that may not be sent",
        ),
        (
            [
                {"role": "user", "content": [text("x")]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "input": {}}]},
            ],
            "missing at the end",
        ),
    ],
)
def test_what_may_not_be_sent_in_this_shape_is_said_in_words(
    messages: list[Json], fault: str
) -> None:
    assert any(fault in found for found in anthropic_faults(messages))


@pytest.mark.proves("W1", "L7")
@pytest.mark.parametrize("content", [None, "", "In Ghent."])
def test_a_spoken_answer_is_its_transcript(content: str | None) -> None:
    audio = {"id": "audio_1", "transcript": "In Ghent."}
    spoken: Json = {"role": "assistant", "content": content, "audio": audio}

    _, answered = messages_of(user("Where?"), spoken)
    (item,) = responses_from_chat([spoken])

    assert answered["content"] == [text("In Ghent.")]
    assert item["content"] == "In Ghent."


@pytest.mark.parametrize(
    "blank", [{"function_call": " "}, {"refusal": "\n"}, {"function_call": {}}]
)
def test_what_is_said_beside_the_content_makes_no_empty_text(blank: Json) -> None:
    asked, answered = messages_of(
        user("look"), {"role": "assistant", "content": "I will not.", **blank}
    )

    assert answered["content"] == [text("I will not.")]
    assert asked["role"] == "user"


@pytest.mark.proves("W1", "O10")
def test_a_list_that_may_not_be_sent_is_told_every_reason() -> None:
    call = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    result = {
        "type": "tool_result",
        "tool_use_id": "a",
        "content": [{"type": "text", "text": "42"}],
    }
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "look"}]},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [{"type": "text", "text": "well"}, result]},
        {"role": "user", "content": []},
    ]

    assert anthropic_faults(messages) == [
        "message 2 says something before its results",
        "message 3 has the role 'user'",
        "message 3 is empty",
    ]


@pytest.mark.proves("W1", "O10")
def test_signed_thinking_among_the_content_of_an_assistant_stays_a_block_and_unsigned_becomes_text() -> (
    None
):
    signed = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    unsigned = {"type": "thinking", "thinking": "hm"}

    _, answered, *_ = messages_of(
        user("look"), assistant([signed, {"type": "text", "text": "so"}]), user("and?")
    )
    _, told, *_ = messages_of(
        user("look"), assistant([unsigned, {"type": "text", "text": "so"}]), user("and?")
    )

    assert answered["content"] == [signed, text("so")]
    assert told["content"] == [text('{"type":"thinking","thinking":"hm"}'), text("so")]


def in_anthropic(said: list[Json], policy: Policy, max_messages: int | None = None) -> list[str]:
    session = history(said)
    asked = WindowRequest(
        max_messages=max_messages, aside_tokens=ASIDE_TOKENS, aside_messages=ASIDE_MESSAGES
    )
    made = plan(session.stored, asked, policy)
    return list(to_anthropic(made, session.rendered(made)).messages)


@pytest.mark.proves("W2", "W1")
def test_the_message_that_opens_a_window_counts_into_the_limit_of_the_policy() -> None:
    turns = [said for turn in range(25) for said in (assistant(f"a{turn}"), user(f"u{turn}"))]

    assert len(in_anthropic(turns, Policy(max_messages=50))) <= 50


@pytest.mark.proves("W2", "W1")
def test_a_window_that_a_user_begins_needs_no_message_to_open_it() -> None:
    assert len(in_anthropic([user("hi")], Policy(), max_messages=1)) == 1
    with pytest.raises(CannotFit) as refused:
        in_anthropic([assistant("hi")], Policy(), max_messages=1)
    assert refused.value.needed_messages == 2
