"""What events carry for their producer, in every store: to the letter, and in nobody's way."""

import json
from typing import Any

import pytest

from tests.contract.query.test_context import Asker
from tests.store_fixtures import (
    KEY,
    NOON,
    Stores,
    assistant,
    result,
    retracted,
    summary,
    system,
    turn,
    turns,
    user,
)
from turnfold.contracts.events import read_event
from turnfold.contracts.history_requests import HistoryRequest, SearchRequest
from turnfold.errors import BadEvent, TooLarge
from turnfold.operations.ingest.decode import Delivery, decode_event
from turnfold.operations.query.history import history
from turnfold.operations.query.search import search
from turnfold.ports.ingest import DecodedEvent
from turnfold.store.query import carried as carried_module
from turnfold.store.query.originals import PAGE_CHARACTERS

Json = dict[str, Any]
DEEP = {"uuid": "carried-4711", "deep": [1, 2.50, None, {"ключ": "値\u0000"}]}


async def carried(stores: Stores, **fields: Any) -> list[tuple[str, Any]]:
    """The ids of a page of the history, each with what is carried; ... if there is nothing."""
    page = json.loads(await history(KEY, HistoryRequest(**fields), store=stores.history))
    return [(entry["message_id"], entry.get("carry", ...)) for entry in page["messages"]]


def written(seq: int, text: str) -> DecodedEvent:
    """An event of these exact members, beside its identity."""
    identity = f'"event_id": "e{seq}", "agent_id": "{KEY.agent_id}", '
    payload = f'{{{identity}"session_id": "{KEY.session_id}", {text}}}'
    delivery = Delivery("turn.completed", payload.encode(), seq, NOON + seq)
    return decode_event(delivery, count=len)


@pytest.mark.proves("G1", "I2")
async def test_what_is_carried_comes_back_in_histories_and_windows(stores: Stores) -> None:
    """G1: also for results, and beside other messages of the page that carry nothing."""
    await stores.ingest(
        turn(1, user("look"), assistant(None, "a"), carry=[DEEP, None]),
        result(2, "a", "42", carry=["of the result"]),
        turn(3, assistant("It is 42."), metadata={"carry": ["of the metadata"]}),
        turn(4, user("thanks")),
    )

    window = await Asker(stores).told(entries=True)

    expected = [
        ("e1#0", DEEP),
        ("e1#1", ...),
        ("e2#0", "of the result"),
        ("e3#0", ...),
        ("e4#0", ...),
    ]
    assert await carried(stores) == expected
    assert await carried(stores, newest=3) == expected[-3:]
    assert await carried(stores, message_ids=["e2#0", "e1#0"]) == [expected[0], expected[2]]
    shown = [(entry["id"], entry.get("carry", ...)) for entry in window["entries"]]
    assert shown == expected


@pytest.mark.proves("G1", "I2")
async def test_what_is_carried_is_kept_to_the_letter(stores: Stores) -> None:
    text = r'{"b" : 1.50e+1, "a":"\u00e9 \u0000", "a": 12345678901234567890}'
    said = '{"role": "user", "content": "one"}'
    await stores.ingest(written(1, f'"carry": [ {text} ,null], "messages": [{said}, {said}]'))

    page = await history(KEY, HistoryRequest(), store=stores.history)
    window = (await Asker(stores).answer(entries=True)).body.decode()

    assert f'"carry": {text}' in page
    assert f'"carry": {text}' in window
    assert "null, null" not in page


@pytest.mark.proves("G1", "L6")
async def test_what_is_carried_is_neither_counted_nor_found_nor_shown(stores: Stores) -> None:
    large = {"needle": "needle " * 5_000}
    await stores.ingest(turn(1, user("hello"), assistant("good day"), carry=[large, large]))
    loaded = await Asker(stores).told(max_tokens=4_000)
    counted = await stores.history.counts(KEY)
    hits = await search(KEY, SearchRequest(q="needle"), store=stores.search)

    assert "needle" not in json.dumps(loaded)
    assert counted.tokens_total < 20
    assert json.loads(hits)["hits"] == []


@pytest.mark.proves("G1")
async def test_a_retracted_message_keeps_what_was_carried_for_it(stores: Stores) -> None:
    """G1: in the history with retracted messages, and in the window of the time before."""
    await stores.ingest(turn(1, user("one"), assistant("two"), carry=["first", "second"]))
    await stores.ingest(retracted(2, "e1#1"), turn(3, user("three"), carry=["third"]))

    before = await Asker(stores).told(as_of="e1#1", entries=True)

    assert await carried(stores) == [("e1#0", "first"), ("e3#0", "third")]
    assert await carried(stores, include_retracted=True) == [
        ("e1#0", "first"),
        ("e1#1", "second"),
        ("e3#0", "third"),
    ]
    assert [(entry["form"], entry["carry"]) for entry in before["entries"]] == [
        ("whole", "first"),
        ("whole", "second"),
    ]


@pytest.mark.proves("G1")
async def test_covered_messages_and_replaced_instructions_give_back_what_was_carried(
    stores: Stores,
) -> None:
    await stores.ingest(turn(1, system("Be brief."), user("one"), carry=["rules", "first"]))
    await stores.ingest(*turns(2, 40))
    (job,) = await stores.claim()
    await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON)

    window = await Asker(stores).told(entries=True)

    assert await carried(stores, message_ids=["e1#1"]) == [("e1#1", "first")]
    assert window["entries"][0]["carry"] == "rules"
    assert "first" not in json.dumps(window["entries"])


@pytest.mark.proves("G1", "L2", "L3")
async def test_of_two_copies_the_lower_sequence_decides_what_is_carried(stores: Stores) -> None:
    late = turn(9, user("one"), event_id="e1", carry=["of the copy"])
    first = turn(1, user("one"), event_id="e1", carry=["of the first"])

    await stores.ingest(late)
    await stores.ingest(first)
    await stores.ingest(late)

    assert await carried(stores) == [("e1#0", "of the first")]


@pytest.mark.proves("G1")
@pytest.mark.parametrize("shape", ["responses", "anthropic"])
async def test_one_value_belongs_to_one_element(stores: Stores, shape: str) -> None:
    """G1: an element that becomes several messages gives it to the first of them."""
    elements: list[Json] = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Look."}]},
        {"type": "function_call", "call_id": "a", "name": "read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "42"},
    ]
    expected = [("e1#0", "u"), ("e1#1", ...), ("e1#2", "r")]
    if shape == "anthropic":
        calls = [{"type": "tool_use", "id": id, "name": "read", "input": {}} for id in "ab"]
        results = [{"type": "tool_result", "tool_use_id": id, "content": "42"} for id in "ab"]
        elements = [
            {"role": "user", "content": [{"type": "text", "text": "Look."}]},
            {"role": "assistant", "content": calls},
            {"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]},
        ]
        expected += [("e1#3", ...), ("e1#4", ...)]

    await stores.ingest(turn(1, *elements, shape=shape, carry=["u", None, "r"]))
    window = await Asker(stores).told(entries=True, format=shape)

    assert await carried(stores) == expected
    assert window["messages"] == elements
    last = ["r", None, None] if shape == "anthropic" else "r"
    assert [entry.get("carry") for entry in window["entries"]] == ["u", None, last]


@pytest.mark.proves("G1", "L8")
async def test_a_page_ends_where_its_events_carry_too_much(stores: Stores) -> None:
    """G1: what is carried counts nowhere but in the size of a page."""
    large = "x" * (PAGE_CHARACTERS // 3)
    await stores.ingest(
        *(turn(seq, user(f"{seq}"), assistant("yes"), carry=[large, "y"]) for seq in range(1, 6))
    )

    pages: list[list[str]] = []
    position: int | None = 0
    while position is not None:
        page = json.loads(
            await history(KEY, HistoryRequest(after_position=position), store=stores.history)
        )
        pages.append([entry["carry"] for entry in page["messages"]])
        position = page["next_position"]

    assert [len(page) for page in pages] == [4, 4, 2]
    assert max(len(json.dumps(page)) for page in pages) <= PAGE_CHARACTERS * 1.1
    assert [carry for page in pages for carry in page] == [large, "y"] * 5


@pytest.mark.proves("G1", "L8")
async def test_a_window_whose_messages_carry_too_much_is_refused(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carried_module, "CARRIED_CHARACTERS", 1_000)
    await stores.ingest(turn(1, user("one"), carry=["x" * 2_000]), turn(2, user("two")))
    asker = Asker(stores)

    with pytest.raises(TooLarge, match="carry more than 1000 characters"):
        await asker.told(entries=True)

    assert len((await asker.told())["messages"]) == 2


@pytest.mark.proves("G1", "I5")
@pytest.mark.parametrize("carry", [[], [1], [1, 2, 3], {"0": 1}, "12", 0, True])
def test_a_list_of_another_length_is_refused(carry: Any) -> None:
    identity = {"event_id": "e", "agent_id": "a", "session_id": "s", "carry": carry}
    said = json.dumps(identity | {"messages": [user("one"), user("two")]}).encode()

    with pytest.raises(BadEvent) as refusal:
        read_event("turn.completed", said)

    assert refusal.value.reason == "wrong_shape"
    if carry != [1]:
        told = json.dumps(identity | {"tool_call_id": "c", "content": ""}).encode()
        with pytest.raises(BadEvent, match="carry must be a list of 1"):
            read_event("tool.result", told)
