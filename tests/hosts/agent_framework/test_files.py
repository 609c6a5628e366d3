"""Files of the Agent Framework count as files, and come back as they were (G8)."""

import json
from typing import Any

import pytest
from agent_framework import Content, Message

from tests.hosts.chat import tree
from tests.hosts.conftest import RunningSystem
from turnfold.client import connect
from turnfold.integrations.agent_framework import TurnfoldHistoryProvider

DATA = bytes(range(256)) * 1_000


def as_dicts(messages: list[Message]) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = json.loads(json.dumps([one.to_dict() for one in messages]))
    return told


@pytest.mark.proves("G8")
async def test_files_count_as_files_and_come_back_as_they_were(
    system: RunningSystem, session_id: str
) -> None:
    """Proves G8."""
    history = TurnfoldHistoryProvider(session_id, client=system.nats_url, max_tokens=16_000)
    pdf = Content.from_data(DATA, "application/pdf", name="report.pdf")
    shot = Content.from_data(DATA, "image/png")
    sound = Content.from_uri("https://example.com/a.mp3", media_type="audio/mpeg")
    made = Content.from_image_generation_tool_result(image_id="i1", outputs=shot)
    messages = [
        Message("user", ["Compare.", pdf, sound, Content.from_hosted_file("file-1")]),
        Message("assistant", [Content.from_function_call("c1", "shoot", arguments="{}")]),
        Message("tool", [Content.from_function_result("c1", result=[shot])]),
        Message("assistant", ["Done.", made]),
        Message("user", ["Thanks."]),
    ]

    await history.save_messages("s", messages)

    assert as_dicts(await history.get_messages("s")) == as_dicts(messages)
    async with connect(system.nats_url, environ={}) as client:
        session = client.session(session_id, "s")
        window = await session.context(max_tokens=16_000, after="latest", wait_ms=5_000)
    assert 4 * 1_000 < window.tokens < 6_500
    assert len(json.dumps(window.messages)) < 2_500


@pytest.mark.proves("G8")
async def test_what_is_rebuilt_names_its_files(system: RunningSystem, session_id: str) -> None:
    """Two calls with one id cannot be sent, so the window writes their message anew."""
    history = TurnfoldHistoryProvider(session_id, client=system.nats_url, max_tokens=16_000)
    call = Content.from_function_call("c1", "shoot", arguments="{}")
    pdf = Content.from_data(DATA, "application/pdf")
    messages = [
        Message("user", ["Go."]),
        Message("assistant", ["Here.", pdf, call, call]),
        Message("tool", [Content.from_function_result("c1", result="ok")]),
    ]

    await history.save_messages("s", messages)

    [_, rebuilt, _] = await history.get_messages("s")
    assert [content.type for content in rebuilt.contents] == ["text", "text", "function_call"]
    assert rebuilt.contents[1].text == "[file]"


@pytest.mark.proves("G8", "L1")
async def test_messages_that_nest_deeper_than_an_event_may_come_back_as_they_were(
    system: RunningSystem, session_id: str
) -> None:
    history = TurnfoldHistoryProvider(session_id, client=system.nats_url, max_tokens=16_000)
    call = Content.from_function_call("c1", "draw", arguments=tree())
    messages = [
        Message("user", ["Draw it."]),
        Message("assistant", [call, Content.from_function_approval_request("a1", call)]),
        Message("tool", [Content.from_function_result("c1", result="12 boxes")]),
        Message("user", [Content.from_function_approval_response(True, "a1", call)]),
        Message("assistant", ["Drawn."]),
    ]

    await history.save_messages("s", messages)

    assert as_dicts(await history.get_messages("s")) == as_dicts(messages)


@pytest.mark.proves("G8", "L2")
@pytest.mark.parametrize(("count", "size"), [(1_100, 0), (12, 2_000_000)])
async def test_a_transcript_longer_than_one_answer_that_is_saved_again_is_stored_once(
    system: RunningSystem, session_id: str, count: int, size: int
) -> None:
    history = TurnfoldHistoryProvider(session_id, client=system.nats_url, max_tokens=8_000)
    image = [Content.from_data(bytes(size), "image/png")] if size else []
    transcript = [
        Message("user", [f"Page {number}", *image])
        if number % 2
        else Message("assistant", [f"Read {number}."])
        for number in range(1, count + 1)
    ]
    await history.save_messages("s", transcript)

    await history.save_messages("s", [*transcript, Message("user", ["And now?"])])

    async with connect(system.nats_url, environ={}) as client:
        session = client.session(session_id, "s")
        await session.history(newest=1, after="latest", wait_ms=5_000)
        assert (await session.status())["messages_total"] == count + 1


@pytest.mark.proves("G8", "L1")
async def test_long_texts_beyond_ascii_are_stored(system: RunningSystem, session_id: str) -> None:
    """Proves G8: a message and what it carries fit an event that has the text twice."""
    history = TurnfoldHistoryProvider(session_id, client=system.nats_url, max_tokens=3_000_000)
    reasoning = Content.from_text_reasoning(text="\u8ba2" * 450_000)
    messages = [
        Message("user", ["\u8ba2" * 450_000]),
        Message("assistant", [reasoning, "Sent."]),
        Message("assistant", ["\ud83d \u8ba2", Content.from_text_reasoning(text="\udc00")]),
    ]

    for message in messages:
        await history.save_messages("s", [message])

    assert as_dicts(await history.get_messages("s")) == as_dicts(messages)
