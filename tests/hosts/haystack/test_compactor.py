"""Agents of Haystack whose conversations are compacted to windows: always valid, nothing lost."""

import base64
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.core.component import component
from haystack.dataclasses import ChatMessage, FileContent, ImageContent, TextContent, ToolCall
from haystack.hooks.compaction import CompactionHook
from haystack.token_counters import ApproximateTokenCounter
from haystack.tools import Tool

from tests.hosts.chat import BUDGETS, NOWHERE, TURNS, look, tree
from tests.hosts.conftest import RunningSystem, Warned
from turnfold.client import connect
from turnfold.integrations.haystack import TurnfoldCompactor

LOOK = Tool(
    name="look",
    description="Look at a place.",
    parameters={"type": "object", "properties": {"place": {"type": "string"}}},
    function=look,
)


@component
class ScriptedGenerator:
    """Calls for two places so many times, then says that it is done; keeps what it was asked."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.calls: list[list[ChatMessage]] = []

    @component.output_types(replies=list[ChatMessage])  # type: ignore[untyped-decorator]
    def run(self, messages: list[ChatMessage], tools: Any = None) -> dict[str, Any]:  # noqa: ARG002  # of Haystack
        self.calls.append(list(messages))
        number = len(self.calls)
        if number % (self.steps + 1) == 0:
            return {"replies": [ChatMessage.from_assistant("Done.")]}
        calls = [ToolCall("look", {"place": one}, id=f"{number}-{one}") for one in ("hall", "yard")]
        return {"replies": [ChatMessage.from_assistant(tool_calls=calls)]}


def agent_of(model: ScriptedGenerator, session_id: str, url: str, tokens: int) -> Agent:
    compactor = TurnfoldCompactor("haystack", session_id, client=url)
    hook = CompactionHook(compactor=compactor, context_window=tokens)
    return Agent(
        chat_generator=model,
        tools=[LOOK],
        system_prompt="Be brief.",
        hooks={"before_llm": [hook]},
        max_agent_steps=2 * TURNS,
    )


def faults(messages: Sequence[ChatMessage]) -> list[str]:
    """Return calls that are not answered at once, and other results."""
    found: list[str] = []
    called: list[str] = []
    for message in messages:
        results = [str(one.origin.id) for one in message.tool_call_results]
        found += [f"result {one}" for one in results if one not in called]
        called = [one for one in called if one not in results]
        if not results:
            found += [f"call {one}" for one in called]
            called = [str(one.id) for one in message.tool_calls]
    return found + [f"open {one}" for one in called]


def notes(count: int) -> list[ChatMessage]:
    return [
        message
        for number in range(count)
        for message in (
            ChatMessage.from_user(f"Note {number}: calm weather, and nothing else to tell."),
            ChatMessage.from_assistant("Noted."),
        )
    ]


def size(messages: Sequence[ChatMessage]) -> int:
    """Return a rough number of tokens: a quarter of the characters."""
    said = [
        [*one.texts, *one.tool_calls, *(result.result for result in one.tool_call_results)]
        for one in messages
    ]
    return sum(len(str(part)) for parts in said for part in parts) // 4


@pytest.mark.timeout(300)
@pytest.mark.parametrize("tokens", BUDGETS)
@pytest.mark.stress
async def test_two_hundred_steps_with_parallel_calls_break_no_pair(
    system: RunningSystem, session_id: str, tokens: int
) -> None:
    model = ScriptedGenerator(TURNS)

    result = await agent_of(model, session_id, system.nats_url, tokens).run_async(
        messages=[ChatMessage.from_user("What is missing?")]
    )

    assert result["last_message"].text == "Done."
    assert [fault for call in model.calls for fault in faults(call)] == []
    assert max(map(size, model.calls)) <= tokens * 1.1
    assert all(call[0].text == "Be brief." for call in model.calls)
    assert all("What is missing?" in str(call) for call in model.calls)
    stored = [one.message for one in await system.stored("haystack", session_id)]
    ids = [one["tool_call_id"] for one in stored if one["role"] == "tool"]
    assert len(ids) == len(set(ids)) > TURNS
    assert [one["content"] for one in stored if one["role"] == "user"] == ["What is missing?"]


async def test_a_conversation_that_is_compacted_again_after_an_error_is_stored_once(
    system: RunningSystem, session_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    messages = notes(40)
    counter = ApproximateTokenCounter()

    with caplog.at_level(logging.WARNING, "turnfold.integrations"):
        # The run fails after the compaction, and the program runs it again, or restarts.
        for name in (session_id, session_id, f"{session_id}-other"):
            compactor = TurnfoldCompactor("haystack", name, client=system.nats_url)
            assert await compactor.compact_async(messages, 600, counter) is not None

    assert caplog.records == []
    assert len(await system.stored("haystack", session_id)) == len(messages)


async def test_calls_without_ids_and_results_with_images_are_compacted_as_well(
    system: RunningSystem, session_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    messages = [ChatMessage.from_user("What is missing?")]
    for number in range(20):
        call = ToolCall("look", {"place": f"hall {number}"})
        image = ImageContent("iVBORw0KGgo=", "image/png", validation=False)
        results = [TextContent(look(f"hall {number}")), image]
        messages += [
            ChatMessage.from_assistant(tool_calls=[call]),
            ChatMessage.from_tool(results, origin=call),
        ]
    compactor = TurnfoldCompactor("haystack", session_id, client=system.nats_url)

    with caplog.at_level(logging.WARNING, "turnfold.integrations"):
        compacted = await compactor.compact_async(messages, 4_000, ApproximateTokenCounter())

    assert compacted is not None
    assert caplog.records == []
    assert faults(compacted) == []
    assert compacted[-1].tool_call_result == messages[-1].tool_call_result
    assert {call.id for one in compacted for call in one.tool_calls} == {None}
    assert {one.origin.id for told in compacted for one in told.tool_call_results} == {None}
    stored = [one.message for one in await system.stored("haystack", session_id)]
    assert len(stored) == len(messages)
    assert stored[1]["tool_calls"][0]["id"] == stored[2]["tool_call_id"]
    assert "[media: image/png]" in str(stored[2]["content"])


@pytest.mark.proves("L6", "T2")
async def test_images_and_files_in_results_cost_what_they_cost_in_requests(
    system: RunningSystem, session_id: str
) -> None:
    """All twenty stayed in a window that had room for three, because their names were counted."""
    data = base64.b64encode(b"data").decode()
    image = ImageContent(data, "image/png", validation=False)
    file = FileContent(data, "application/pdf", validation=False)
    messages = [ChatMessage.from_user("What is missing?")]
    for number in range(20):
        call = ToolCall("look", {"place": f"hall {number}"}, id=str(number))
        result = ChatMessage.from_tool([(image, file)[number % 2]], origin=call)
        messages += [ChatMessage.from_assistant(tool_calls=[call]), result]
    compactor = TurnfoldCompactor("haystack", session_id, client=system.nats_url)
    counter = ApproximateTokenCounter(tokens_per_image=1_200, tokens_per_file=1_200)

    compacted = await compactor.compact_async(messages, 4_000, counter)

    assert compacted is not None
    assert faults(compacted) == []
    assert counter.count(messages=compacted) <= 4_000


@pytest.mark.proves("L5")
@pytest.mark.parametrize("ids", ["", "call-"])
async def test_results_that_a_window_shortens_or_adds_name_their_calls(
    system: RunningSystem, session_id: str, ids: str
) -> None:
    messages = [ChatMessage.from_user("What is missing?")]
    for number in range(20):
        call = ToolCall("look", {"place": f"hall {number}"}, id=f"{ids}{number}" if ids else None)
        messages.append(ChatMessage.from_assistant(tool_calls=[call]))
        # The host has lost one of the results.
        if number != 18:
            text = look(f"hall {number}")
            messages.append(ChatMessage.from_tool(text, origin=call, error=number == 17))
    compactor = TurnfoldCompactor("haystack", session_id, client=system.nats_url)

    compacted = await compactor.compact_async(messages, 2_500, ApproximateTokenCounter())

    assert compacted is not None
    calls = [call for told in compacted for call in told.tool_calls]
    results = [result for told in compacted for result in told.tool_call_results]
    assert [result.origin for result in results] == calls
    assert [result.error for result in results if "hall 17" in str(result.origin)] == [True]
    stored = [one.message for one in await system.stored("haystack", session_id)]
    failed = [str(one["content"])[:7] for one in stored if one.get("is_error")]
    assert failed == ["hall 17"]
    assert any(result.result != look(result.origin.arguments["place"]) for result in results)


@pytest.mark.proves("L5")
async def test_equal_calls_of_one_message_without_ids_keep_their_results(
    system: RunningSystem, session_id: str
) -> None:
    call = ToolCall("roll", {})
    results = [ChatMessage.from_tool(f"A {number}.", origin=call) for number in (3, 5)]
    newest = [ChatMessage.from_assistant(tool_calls=[call, call]), *results]
    compactor = TurnfoldCompactor("haystack", session_id, client=system.nats_url)

    compacted = await compactor.compact_async(
        [*notes(40), ChatMessage.from_user("Roll twice."), *newest], 600, ApproximateTokenCounter()
    )

    assert compacted is not None
    told = [one.tool_call_results or one.tool_calls for one in compacted[-3:]]
    assert told == [one.tool_call_results or one.tool_calls for one in newest]


@pytest.mark.proves("L1")
async def test_messages_that_cannot_be_stored_are_not_replaced(
    system: RunningSystem, session_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    call = ToolCall("draw", tree(), id="c1")
    messages = [
        *notes(40),
        ChatMessage.from_assistant(tool_calls=[call]),
        ChatMessage.from_tool("It is drawn.", origin=call),
    ]
    compactor = TurnfoldCompactor("haystack", session_id, client=system.nats_url)

    with caplog.at_level(logging.WARNING, "turnfold.integrations"):
        compacted = await compactor.compact_async(messages, 700, ApproximateTokenCounter())

    assert compacted is None
    assert "BadRequest" in caplog.text


@pytest.mark.proves("L1")
async def test_messages_that_turnfold_did_not_store_are_not_replaced_until_they_are(
    system: RunningSystem, session_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    counter = ApproximateTokenCounter()
    compactor = TurnfoldCompactor("haystack", session_id, client=system.nats_url)
    messages = [ChatMessage.from_user(f"Note {number}: " + "calm " * 100) for number in range(8)]
    assert await compactor.compact_async(messages[:6], 400, counter) is not None
    async with connect(system.nats_url, environ={}) as client:
        await client.session("haystack", session_id).erase()

    # An event that was erased is not stored again.
    with caplog.at_level(logging.WARNING, "turnfold.integrations"):
        compacted = await compactor.compact_async(messages, 400, counter)

    assert compacted is None
    assert "6 of 8 events are not stored" in caplog.text
    # Next time they have other ids.
    assert await compactor.compact_async(messages, 400, counter) is not None
    assert await compactor.compact_async(messages, 400, counter) is not None
    stored = await system.stored("haystack", session_id)
    assert [one.message["content"] for one in stored] == [one.text for one in messages]


@pytest.mark.proves("L1", "L3")
async def test_system_messages_in_mid_conversation_keep_their_places(
    system: RunningSystem, session_id: str
) -> None:
    counter = ApproximateTokenCounter()
    compactor = TurnfoldCompactor(
        "haystack", session_id, client=system.nats_url, window={"recall": False}
    )
    rules = [ChatMessage.from_system(f"Rule {one}: never mention prices.") for one in "ABC"]
    talk = [*notes(160), *rules[:2], *notes(1)]

    first = await compactor.compact_async(
        [ChatMessage.from_system("You are a clerk."), *talk], 1_500, counter
    )
    assert first is not None
    second = await compactor.compact_async([*first, rules[2], *notes(40), rules[2]], 800, counter)

    texts = [str(one.text) for one in first]
    assert texts[0] == "You are a clerk."
    place = texts.index(str(rules[0].text))
    assert texts[place - 1 : place + 2] == ["Noted.", *(rule.text for rule in rules[:2])]
    assert second is not None
    assert second[-1].text == rules[2].text
    stored = [one.message["content"] for one in await system.stored("haystack", session_id)]
    assert len(stored) == len(talk) + 82
    assert [place for place, text in enumerate(stored) if text.startswith("Rule")] == [
        *(320, 321),
        *(len(talk), len(talk) + 81),
    ]


@pytest.mark.proves("L1", "T2", "F1")
async def test_an_answer_of_several_texts_and_images_is_stored_whole(
    system: RunningSystem, session_id: str
) -> None:
    """As models that draw give it. All but the first text was in no search and no count."""
    image = ImageContent(base64.b64encode(b"data").decode(), "image/png", validation=False)
    answer = ChatMessage.from_assistant("Here is the hall.")
    answer = replace(answer, _content=[*answer._content, image, TextContent("And the yard.")])
    compactor = TurnfoldCompactor("haystack", session_id, client=system.nats_url)

    compacted = await compactor.compact_async(
        [*notes(40), ChatMessage.from_user("Draw."), answer], 600, ApproximateTokenCounter()
    )

    assert compacted is not None
    stored = (await system.stored("haystack", session_id))[-1].message["content"]
    assert [part.get("text", part["type"]) for part in stored] == [
        *("Here is the hall.", "And the yard.", "[media: image/png]", "image")
    ]


@pytest.mark.proves("I2")
async def test_the_data_of_a_large_image_is_stored_once_and_comes_back(
    system: RunningSystem, session_id: str
) -> None:
    data = base64.b64encode(os.urandom(1_700_000)).decode()
    image = ImageContent(data, "image/png", validation=False)
    asked = ChatMessage.from_user(content_parts=["What is this?", image])
    compactor = TurnfoldCompactor("haystack", session_id, client=system.nats_url)

    compacted = await compactor.compact_async(
        [*notes(400), asked], 4_000, ApproximateTokenCounter()
    )

    assert compacted is not None
    assert compacted[-1].images[0].base64_image == data
    [*_, newest] = await system.stored("haystack", session_id)
    assert "base64" not in str(newest.message)


def test_after_no_answer_the_next_compactions_do_not_wait(session_id: str) -> None:
    """The first waits for seconds; hundreds that did as well would take more than the time limit of a test."""
    compactor = TurnfoldCompactor("haystack", session_id, client=NOWHERE)
    counter = ApproximateTokenCounter()

    for _ in range(200):
        assert compactor.compact(notes(40), 600, counter) is None


def test_without_turnfold_the_messages_stay_and_a_warning_tells_no_text(
    session_id: str, warned: Warned
) -> None:
    model = ScriptedGenerator(8)

    agent_of(model, session_id, NOWHERE, 1_000).run(
        messages=[ChatMessage.from_user("What is missing?")]
    )

    assert len(model.calls[-1]) == 2 + 3 * 8
    assert warned()
    assert "missing" not in str(warned())
