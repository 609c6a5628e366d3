"""The parts of each API's elements that the proxy stores and compares."""

from typing import Any

import pytest

from turnfold.client.mirrored_list import ElementList, MirroredList
from turnfold_proxy.apis import APIS
from turnfold_proxy.apis.api import arguments_identity
from turnfold_proxy.apis.chat import ChatApi

pytestmark = pytest.mark.proves("G10", "C78")

MARK = {"cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_arguments_with_what_is_no_number_are_compared_as_text(number: str) -> None:
    arguments = f'{{"x": {number}}}'
    function = {"name": "f", "arguments": arguments}
    call: dict[str, Any] = {"role": "assistant", "tool_calls": [{"id": "c", "function": function}]}
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}

    assert arguments_identity(arguments) == arguments
    for path, element in (("/v1/chat/completions", call), ("/v1/responses", item)):
        api = APIS[path]
        shape = None if api.shape == "chat" else api.shape
        ElementList([element], shape, api.identity, MirroredList(0, "", 0, "0"))


def test_arguments_are_compared_without_their_spaces() -> None:
    assert arguments_identity('{"x":  1.5}') == arguments_identity('{"x":1.5}') == {"x": 1.5}


def test_marks_of_a_cache_are_not_stored_and_arguments_of_that_name_are() -> None:
    api = APIS["/v1/messages"]
    given = {"headers": MARK, **MARK}
    text = {"type": "text", "text": "Ghent"}
    use = {"type": "tool_use", "id": "t", "name": "put", "input": given}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [text]}
    marked = {**result, "content": [text | MARK]} | MARK

    stored = api.stored({"role": "user", "content": [text | MARK, use | MARK, marked], **MARK})

    assert stored == {"role": "user", "content": [text, use, result]}


SEARCH = {"type": "web_search_result", "url": "https://example.com", "encrypted_content": "c2Vj"}
USE = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "7341"}}
RESULT = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [SEARCH]}
ITEM = {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "7341"}}


@pytest.mark.parametrize(
    ("path", "one", "other"),
    [
        (
            "/v1/messages",
            {"role": "assistant", "content": [USE, RESULT]},
            {
                "role": "assistant",
                "content": [
                    USE | {"caller": None},
                    RESULT | {"content": [SEARCH | {"page_age": None}]},
                ],
            },
        ),
        (
            "/v1/responses",
            ITEM,
            ITEM | {"action": {"type": "search", "query": "7341", "sources": None}},
        ),
    ],
)
def test_a_client_may_write_fields_that_are_null_within_what_a_provider_ran(
    path: str, one: dict[str, Any], other: dict[str, Any]
) -> None:
    api = APIS[path]

    assert api.identity(one) == api.identity(other)


def test_thoughts_in_the_content_of_an_answer_are_not_compared() -> None:
    """Some models stream them as parts and then the text as text; clients may drop them."""
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    text = {"type": "text", "text": "In Ghent."}
    answers = ["In Ghent.", [text], [thought, text], [thought, thought, text]]

    told = [ChatApi().identity({"role": "assistant", "content": said}) for said in answers]

    assert told == [told[0]] * 4


@pytest.mark.parametrize(
    ("role", "others", "is_left_out"),
    [("assistant", ["tool_use"], True), ("assistant", [], False), ("user", ["tool_result"], False)],
)
def test_a_blank_text_is_left_out_of_an_answer_that_says_more(
    role: str, others: list[str], *, is_left_out: bool
) -> None:
    """Clients of Anthropic leave it out, but what a user sends goes out as it came."""
    blank, blocks = {"type": "text", "text": "\n\n"}, [{"type": kind} for kind in others]

    stored = APIS["/v1/messages"].stored({"role": role, "content": [blank, *blocks]})

    assert stored["content"] == (blocks if is_left_out else [blank, *blocks])


@pytest.mark.proves("G10")
@pytest.mark.parametrize("limits", [{}, {"max_completion_tokens": None}])
def test_a_limit_of_the_answer_counts_beside_one_that_is_null(limits: dict[str, None]) -> None:
    body = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 700, **limits}

    conversation = ChatApi().conversation(body)

    assert conversation is not None
    assert conversation.max_output_tokens == 700
