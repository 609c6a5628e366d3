"""Blocks of the Anthropic API as chat messages, and chat messages as blocks."""

import json
from typing import Any

import pytest

from tests.shaped import decoded
from turnfold.core.shapes.anthropic import chat_content, chat_views
from turnfold.core.text.json_text import compact, json_text

Json = dict[str, Any]
PNG = "data:image/png;base64,iVBORw0K"


def chat_of(message: Json) -> list[Json]:
    return [view.message for view in chat_views([message], [json_text(message)])]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "tool_result", "content": "7"},
        {"type": "tool_result", "tool_use_id": 7, "content": "7"},
        {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []},
        ["no block"],
    ],
)
@pytest.mark.proves("L5", "G1")
def test_a_block_that_is_no_result_of_a_call_stays_a_part_of_what_the_user_said(
    block: object,
) -> None:
    (said,) = chat_of({"role": "user", "content": [{"type": "text", "text": "Look:"}, block]})

    assert said["role"] == "user"
    assert compact(block) in compact(said["content"]).replace('\\"', '"')


@pytest.mark.proves("L1", "G1")
@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "naïve"])
def test_the_parts_of_a_message_are_json_whatever_its_members_are_called(name: str) -> None:
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "7"}
    content = [result, {"type": "text", "text": "Thanks."}]
    message: Json = {"role": "user", name: 1, "content": content}

    first, second = [json.loads(view.text) for view in chat_views([message], [json_text(message)])]

    assert first == {"role": "user", name: 1, "content": [result]}
    assert second == {"role": "user", "content": content[1:]}


@pytest.mark.proves("G1")
def test_results_and_what_the_user_says_with_them_are_messages_of_their_own() -> None:
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "7"}

    said = chat_of({"role": "user", "content": [{"type": "text", "text": "And?"}, result]})

    assert said == [
        {"role": "tool", "tool_call_id": "c1", "content": "7"},
        {"role": "user", "content": "And?"},
    ]


@pytest.mark.parametrize(
    ("block", "part"),
    [
        (
            {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
            {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        ),
        (
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0K"},
            },
            {"type": "image_url", "image_url": {"url": PNG}},
        ),
        (
            {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}},
            {"type": "file", "file": {"file_data": "https://example.com/a.pdf"}},
        ),
        (
            {"type": "document", "source": {"type": "file", "file_id": "f1"}},
            {
                "type": "text",
                "text": '{"type":"document","source":{"type":"file","file_id":"f1"}}',
            },
        ),
    ],
)
@pytest.mark.proves("G1")
def test_an_image_and_a_document_are_parts_of_a_chat_and_an_unknown_source_is_its_text(
    block: Json, part: Json
) -> None:
    text = {"type": "text", "text": "See:"}

    assert chat_content([text, block]) == [text, part]


@pytest.mark.parametrize("is_in_result", [False, True])
@pytest.mark.proves("I3", "L6")
def test_the_title_and_the_context_of_a_document_count(is_in_result: bool) -> None:
    source = {"type": "url", "url": "https://example.com/a.pdf"}
    block: dict[str, Any] = {"type": "document", "source": source, "context": "It is signed."}
    if is_in_result:
        block = {"type": "tool_result", "tool_use_id": "c1", "content": [block]}
    message = {"role": "user", "content": [block]}

    (view,) = chat_views([message], [json.dumps(message)])

    assert view.extra == '{"context":"It is signed."}'


PDF: Json = {
    "type": "document",
    "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0x" * 10_000},
}


@pytest.mark.parametrize(
    "block",
    [
        {
            "type": "web_fetch_tool_result", "tool_use_id": "srv_1",
            "content": {"type": "web_fetch_result", "url": "https://example.com/a", "content": PDF},
        },
        {"type": "document", "source": {"type": "content", "content": [PDF]}},
        {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "new", "page": PDF}]},
        {"type": "tool_result", "tool_use_id": "c1", "content": {"type": "new", "page": PDF}},
    ],
)  # fmt: skip
@pytest.mark.proves("S2", "T2", "L6")
def test_media_within_a_block_cost_what_a_file_costs_and_are_no_text(block: Json) -> None:
    role = "assistant" if block["type"].startswith("web") else "user"

    (message,) = decoded(1, [{"role": role, "content": [block]}], "anthropic").messages

    assert len(message.body) < 400
    assert 1_200 < message.tokens < 1_400
    assert "JVBERi0x" in (message.original or "")


@pytest.mark.parametrize("kind", ["image", "document"])
@pytest.mark.parametrize("is_in_result", [False, True])
@pytest.mark.proves("T2", "L6")
def test_a_file_at_the_provider_costs_what_a_file_costs(kind: str, *, is_in_result: bool) -> None:
    block: Json = {"type": kind, "source": {"type": "file", "file_id": "file_7341"}}
    if is_in_result:
        block = {"type": "tool_result", "tool_use_id": "c1", "content": [block]}

    (message,) = decoded(1, [{"role": "user", "content": [block]}], "anthropic").messages

    assert 1_200 < message.tokens < 1_300
