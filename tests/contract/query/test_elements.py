"""Items and blocks in any store: what comes back, in which format, and what is one response."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.anthropic_faults import anthropic_faults
from tests.contract.query.test_context import Asker, total_of
from tests.shaped import Json, decoded, responses_faults
from tests.store_fixtures import KEY, NOON, Stores, retracted, summary, words
from turnfold.contracts.history_requests import ElementsRequest, SearchRequest
from turnfold.core.history.validation import validation_errors
from turnfold.messages import EventId
from turnfold.operations.ingest.decode import Delivery, decode_event
from turnfold.operations.query.history import history, original_json
from turnfold.operations.query.search import search
from turnfold.ports.ingest import DecodedEvent

THOUGHT: Json = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA" * 99}
CALL_A: Json = {
    "type": "function_call",
    "id": "fc_a",
    "call_id": "a",
    "name": "read",
    "arguments": "{}",
}
CALL_B: Json = CALL_A | {"id": "fc_b", "call_id": "b"}
RESULT_A: Json = {"type": "function_call_output", "call_id": "a", "output": "port = 8443\n" * 40}
RESULT_B: Json = RESULT_A | {"call_id": "b"}
ANSWER: Json = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "It is 8443.", "annotations": []}],
}
ASK: Json = {
    "type": "message",
    "role": "user",
    "content": [{"type": "input_text", "text": "Which?"}],
}
TURN = [ASK, THOUGHT, CALL_A, CALL_B, RESULT_B, RESULT_A, ANSWER]


def arrival(
    seq: int, messages: Sequence[Json], shape: str = "responses", event_id: str | None = None
) -> DecodedEvent:
    """An event of this shape in the session of the tests."""
    event = decoded(seq, messages, shape)
    named = EventId(event_id or event.event_id)
    return event._replace(key=KEY, at_ms=NOON + seq, event_id=named)


@pytest.mark.proves("G1", "L1", "L5")
async def test_a_session_of_items_is_answered_in_every_format(stores: Stores) -> None:
    await stores.ingest(arrival(1, TURN))
    asker = Asker(stores)

    items = await asker.told(format="responses")
    chat = await asker.told()
    blocks = await asker.told(format="anthropic")

    assert items["messages"] == TURN
    assert items["message_ids"] == [f"e1#{index}" for index in range(len(TURN))]
    assert validation_errors(chat["messages"]) == []
    assert chat["message_ids"][1] == ["e1#1", "e1#2", "e1#3"]
    assert [message["role"] for message in blocks["messages"]] == ["user", "assistant"] * 2
    assert {total_of(told) for told in (items, chat, blocks)} == {len(TURN)}


@pytest.mark.proves("G1", "L5", "L12")
@pytest.mark.parametrize("role", ["user", "assistant"])
async def test_blocks_that_are_none_stop_no_window(stores: Stores, role: str) -> None:
    """G1: whoever stored them, the session has windows in every format and of every size."""
    words = "The lantern is in store 1042, behind the blue door. " * 40
    odd: list[Any] = ["hello", " ", words, ["no block"], 5, None, {"type": "text", "text": 7}]
    said: list[Json] = [{"role": role, "content": odd}, {"role": "user", "content": ["Where?"]}]
    calls = [{"type": "tool_use", "id": "c1", "name": "look", "input": {}}]
    blank = {"type": "text", "text": " "}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": ["seen", 5, " ", blank]}
    bare = {"type": "tool_result", "tool_use_id": "c2", "content": {"port": 8443}}
    calls.append({"type": "tool_use", "id": "c2", "name": "look", "input": {}})
    said += [{"role": "assistant", "content": calls}, {"role": "user", "content": [result, bare]}]
    await stores.ingest(arrival(1, said, "anthropic"))
    asker = Asker(stores)

    for shape in ("openai", "anthropic", "responses"):
        whole = await asker.told(format=shape)
        small = await asker.told(format=shape, max_tokens=300)
        assert total_of(whole) == total_of(small) == 5
        assert "Where?" in json.dumps(whole["messages"])
        assert len(json.dumps(small)) < len(json.dumps(whole))
    blocks = (await asker.told(format="anthropic"))["messages"]
    shown = [one for message in blocks for one in message["content"]]
    seen, port = [one["content"] for one in shown if one["type"] == "tool_result"]
    assert seen == [{"type": "text", "text": "seen"}, {"type": "text", "text": "5"}]
    assert [json.loads(part["text"]) for part in port] == [{"port": 8443}]
    texts = [one["text"] for one in shown if one["type"] == "text"]
    assert "hello" in texts
    assert '["no block"]' in texts
    assert " " not in texts


@pytest.mark.proves("L5")
@pytest.mark.parametrize("content", [None, "", " \n", [], [{"type": "text", "text": " "}]])
async def test_an_error_that_says_nothing_is_no_error_in_blocks(
    stores: Stores, content: object
) -> None:
    """L5: the API rejects an error without content, and a text without any letter."""
    call = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c1", "is_error": True}
    result |= {} if content is None else {"content": content}
    said = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    await stores.ingest(arrival(1, [{"role": "user", "content": "Look."}, *said], "anthropic"))

    blocks = (await Asker(stores).told(format="anthropic"))["messages"]

    assert anthropic_faults(blocks) == []
    assert blocks[2]["content"][0]["tool_use_id"] == "c1"


@pytest.mark.proves("G1", "L1")
async def test_a_session_of_chat_messages_is_answered_as_items(stores: Stores) -> None:
    said: list[Json] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Which?"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "read", "arguments": "{}"}},
                {"id": "b", "type": "custom", "custom": {"name": "sql", "input": "select 1"}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "8443"},
    ]
    await stores.ingest(arrival(1, said, "chat"))

    told = await Asker(stores).told(format="responses", placement="message")

    kinds = [item["type"] for item in told["messages"]]
    called = ["message", "function_call", "custom_tool_call"]
    assert kinds == ["message", "message", *called, *[f"{kind}_output" for kind in called[1:]]]
    assert responses_faults(told["messages"]) == []
    ids = [f"e1#{index}" for index in (0, 1, 2, 2, 2, 3)]
    assert told["message_ids"] == [*ids, None]
    assert told["window"]["messages"] == len(told["messages"])


@pytest.mark.proves("G1", "W2")
@pytest.mark.parametrize("max_messages", [9, 12, 20])
async def test_a_limit_of_messages_counts_each_item_of_a_chat_message(
    stores: Stores, max_messages: int
) -> None:
    for seq in range(1, 9):
        calls = [
            {
                "id": f"{seq}{name}",
                "type": "function",
                "function": {"name": name, "arguments": "{}"},
            }
            for name in "abc"
        ]
        answer: Json = {"role": "assistant", "content": "I look.", "tool_calls": calls}
        results: list[Json] = [
            {"role": "tool", "tool_call_id": call["id"], "content": "8443"} for call in calls
        ]
        await stores.ingest(
            arrival(seq, [{"role": "user", "content": "Which?"}, answer, *results], "chat")
        )

    told = await Asker(stores).told(format="responses", max_messages=max_messages)

    assert responses_faults(told["messages"]) == []
    assert told["window"]["messages"] == len(told["messages"]) <= max_messages


@pytest.mark.proves("G1")
async def test_results_in_one_message_come_back_in_one_message(stores: Stores) -> None:
    calls = [{"type": "tool_use", "id": name, "name": "read", "input": {}} for name in "ab"]
    results: list[Json] = [
        {"type": "tool_result", "tool_use_id": "b", "content": "2", "is_error": True},
        {"type": "tool_result", "tool_use_id": "a", "content": "1", "x_new": "kept"},
        {"type": "text", "text": "And now?"},
    ]
    turn: list[Json] = [
        {"role": "user", "content": "Read both."},
        {"role": "assistant", "content": calls},
        {"role": "user", "content": results},
    ]
    await stores.ingest(arrival(1, turn, "anthropic"))
    asker = Asker(stores)

    blocks = await asker.told(format="anthropic")
    chat = await asker.told()

    first = {"role": "user", "content": [{"type": "text", "text": "Read both."}]}
    assert blocks["messages"] == [first, *turn[1:]]
    assert blocks["message_ids"] == ["e1#0", "e1#1", ["e1#2", "e1#3", "e1#4"]]
    assert [message["role"] for message in chat["messages"]] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
    ]
    assert chat["account"]["total"] == 5


@pytest.mark.proves("G1", "L1")
async def test_the_history_has_elements_beside_their_chat_views(stores: Stores) -> None:
    await stores.ingest(arrival(1, TURN), arrival(2, [{"role": "user", "content": "x"}], "chat"))

    page = await stores.history.page(KEY, after_position=0, limit=20)

    shown: list[Any] = [json.loads(original_json(one)) for one in page]
    assert [one.get("element") for one in shown] == [*TURN, None]
    assert [one.get("shape") for one in shown] == ["responses"] * len(TURN) + [None]
    assert [call["id"] for call in shown[1]["message"]["tool_calls"]] == ["a", "b"]
    assert shown[2]["message"] == {"role": "assistant", "content": None}


@pytest.mark.proves("G1", "L1")
async def test_published_bodies_are_elements_without_their_chat_views(stores: Stores) -> None:
    meta = ASK | {"content": "Go on.", "is_meta": True}
    await stores.ingest(
        arrival(1, TURN), arrival(2, [meta]), arrival(3, [{"role": "user", "content": "x"}], "chat")
    )

    async def page(**fields: Any) -> Json:
        asked = ElementsRequest(newest=6, **fields)
        answer: Json = json.loads(await history(KEY, asked, store=stores.history))
        return answer

    full, published = await page(), await page(bodies="published")

    for entry in full["messages"][:-1]:
        assert entry["element"]
        del entry["message"]
    assert published == full
    assert full["messages"][-2]["is_meta"] is True
    assert full["messages"][-1]["message"]["content"] == "x"


@pytest.mark.proves("A5", "G1")
async def test_a_page_of_very_long_elements_ends_early(stores: Stores) -> None:
    thought = THOUGHT | {"encrypted_content": "gAAA" * 175_000}
    await stores.ingest(*[arrival(seq, [ASK, thought, ANSWER]) for seq in range(1, 5)])

    page = await stores.history.page(KEY, limit=12)

    assert {one.message_id for one in page} == {
        f"e{seq}#{place}" for seq in (1, 2) for place in range(3)
    } | {"e3#0"}


@pytest.mark.proves("G1", "L2")
async def test_items_that_are_published_again_leave_nothing_behind(stores: Stores) -> None:
    await stores.ingest(arrival(2, TURN, event_id="e"))
    before = await Asker(stores).told(format="responses")

    # Other white space: the content is compared. Then a lower sequence, which counts.
    again = arrival(3, TURN, event_id="e")
    spaced = [
        message._replace(original=message.original.replace(": ", ":  ", 1))
        if message.original and message.original[0] == "{"
        else message
        for message in again.messages
    ]
    await stores.ingest(again._replace(messages=tuple(spaced), digest=b"other"))
    await stores.ingest(arrival(1, TURN, event_id="e"))

    after = await Asker(stores).told(format="responses")
    assert after["messages"] == before["messages"]
    assert after["account"]["total"] == len(TURN)
    assert await stores.history.dead_letter_counts() == {}


@pytest.mark.proves("G1", "L5")
async def test_a_window_as_of_the_middle_of_a_response_is_sendable(stores: Stores) -> None:
    await stores.ingest(arrival(1, TURN))
    asker = Asker(stores)

    for index in range(len(TURN)):
        for shape, faults in (("responses", responses_faults), ("openai", validation_errors)):
            told = await asker.told(format=shape, as_of=f"e1#{index}")
            assert faults(told["messages"]) == []
            assert told["account"]["total"] == index + 1
            assert told["account"]["synthesised"] == told["message_ids"].count(None)


@pytest.mark.proves("G1", "L5")
@pytest.mark.parametrize(("kind", "kept"), [("function_call", "fco_1"), ("custom_tool_call", None)])
async def test_a_shortened_output_keeps_its_own_fields_unless_it_takes_the_type_of_its_call(
    stores: Stores, kind: str, kept: str | None
) -> None:
    result = RESULT_A | {"id": "fco_1", "output": "port = 8443\n" * 400}
    await stores.ingest(arrival(1, [ASK, CALL_A | {"type": kind, "input": "x"}, result]))

    for max_tokens, is_whole in ((200, False), (9_000, True)):
        told = await Asker(stores).told(format="responses", max_tokens=max_tokens)
        shown = told["messages"][-1]
        assert (shown["output"] == result["output"]) is is_whole
        assert (shown["type"], shown.get("id")) == (f"{kind}_output", kept)


@pytest.mark.proves("G1", "E3")
async def test_responses_are_evicted_and_summarized_whole(stores: Stores) -> None:
    for seq in range(1, 9):
        turn = [dict(item) for item in TURN]
        for item in turn:
            if "call_id" in item:
                item["call_id"] = f"{item['call_id']}{seq}"
        await stores.ingest(arrival(seq, turn))
    while jobs := await stores.claim():
        for job in jobs:
            await stores.jobs.commit(job, summary("They chose 8443."), reason=None, now_ms=NOON)

    told = await Asker(stores).told(format="responses")

    assert told["account"]["covered"] > 0
    assert responses_faults(told["messages"]) == []
    assert total_of(told) == 8 * len(TURN)


@pytest.mark.proves("G1", "F1")
async def test_search_finds_what_items_say_and_no_reasoning(stores: Stores) -> None:
    await stores.ingest(arrival(1, [ASK, {**THOUGHT, "encrypted_content": "zebra"}, ANSWER]))
    while await stores.index.index_some():
        pass

    found = json.loads(await search(KEY, SearchRequest(q="8443"), store=stores.search))
    hidden = json.loads(await search(KEY, SearchRequest(q="zebra"), store=stores.search))

    assert [hit["message_id"] for hit in found["hits"]] == ["e1#1"]
    assert hidden["hits"] == []


@pytest.mark.proves("G1")
def test_a_long_text_is_stored_once() -> None:
    output = "数据 é\n" * 2_000
    for shape, element in (
        ("responses", {**RESULT_A, "output": output}),
        ("responses", {**ASK, "content": [{"type": "input_text", "text": output}]}),
        ("anthropic", {"role": "user", "content": [{"type": "text", "text": output}]}),
    ):
        (message,) = decoded(1, [element], shape).messages
        stored = len(message.body) + len(message.original or "")
        assert stored < 1.1 * len(json.dumps(element))
        assert message.tokens >= words(output) // 4


@pytest.mark.proves("G1", "L5")
@pytest.mark.parametrize("index", [1, 2, 3])
async def test_a_response_is_retracted_whole_with_its_results(stores: Stores, index: int) -> None:
    """C76: what was taken back stands in no chat view of another item."""
    # The event arrives later than its retraction, and a second retraction before the first.
    await stores.ingest(retracted(4, "e1#1", event_id="second"), arrival(2, [ASK]))
    await stores.ingest(arrival(1, TURN))
    await stores.ingest(retracted(3, f"e1#{index}"))
    asker = Asker(stores)

    items = await asker.told(format="responses")
    chat = await asker.told()

    assert items["messages"] == [ASK, ANSWER, ASK]
    assert [message.get("tool_calls") for message in chat["messages"]] == [None] * 3
    assert items["account"]["total"] == 3
    gone = (await stores.seen()).sessions[KEY].retracted
    assert [one.message.message_id for one in gone] == [f"e1#{place}" for place in range(1, 6)]


@pytest.mark.proves("G1")
async def test_an_item_of_the_client_is_retracted_alone(stores: Stores) -> None:
    await stores.ingest(arrival(1, TURN))
    await stores.ingest(retracted(2, "e1#6"))

    items = await Asker(stores).told(format="responses")

    assert items["messages"] == TURN[:6]


@pytest.mark.proves("G1", "I2", "L1")
@pytest.mark.parametrize("shape", ["anthropic", "responses"])
async def test_half_a_surrogate_pair_beside_characters_that_are_not_escaped_is_stored(
    stores: Stores, shape: str
) -> None:
    """As JavaScript writes a text that was cut within an emoji: this half alone is escaped."""
    element = r'{"role": "user", "content": "caf\u00e9, café and \ud83d"}'
    payload = f'{{"event_id": "e1", "agent_id": "ada", "session_id": "s-1", "shape": "{shape}", "messages": [{element}]}}'.encode()

    await stores.ingest(decode_event(Delivery("turn.completed", payload, 1, NOON), count=words))

    (stored,) = await stores.history.page(KEY, limit=9)
    assert stored.element == element
    told = await Asker(stores).told()
    assert [message["content"] for message in told["messages"]] == ["café, café and \ud83d"]
