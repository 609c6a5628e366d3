"""Images and files of Strands count as files, and come back as they were."""

import copy
import json
from typing import Any

import pytest
from strands import Agent, tool

from tests.hosts.conftest import RunningSystem
from tests.hosts.strands.models import ScriptedModel, faults, says
from turnfold.client import connect
from turnfold.integrations.strands import TurnfoldConversationManager

DATA = bytes(range(256)) * 2_000
IMAGE: dict[str, Any] = {"image": {"format": "png", "source": {"bytes": DATA}}}
FILES: list[dict[str, Any]] = [
    IMAGE,
    {"document": {"format": "pdf", "name": "report", "source": {"bytes": DATA}}},
    {"video": {"format": "mp4", "source": {"bytes": DATA}}},
    {"audio": {"format": "mp3", "source": {"bytes": DATA}}},
    {"image": {"format": "png", "source": {"location": {"type": "s3", "uri": "s3://b/a.png"}}}},
]


@tool  # type: ignore[untyped-decorator]
def shoot(place: str) -> dict[str, Any]:
    """Take a picture of a place."""
    return {"status": "success", "content": [{"text": place}, copy.deepcopy(IMAGE)]}


def agent_of(model: ScriptedModel, session_id: str, url: str) -> Any:
    manager = TurnfoldConversationManager("strands", session_id, client=url, max_tokens=16_000)
    return Agent(model=model, tools=[shoot], conversation_manager=manager, callback_handler=None)


def shoots(call_id: str) -> list[Any]:
    return [{"toolUse": {"toolUseId": call_id, "name": "shoot", "input": {"place": "hall"}}}]


@pytest.mark.proves("T2")
async def test_files_count_as_files_and_come_back_as_they_were(
    system: RunningSystem, session_id: str
) -> None:
    model = ScriptedModel(shoots("one"), says("A hall."))
    agent = agent_of(model, session_id, system.nats_url)
    await agent.invoke_async([{"text": "Compare."}, *copy.deepcopy(FILES)])
    later = ScriptedModel(says("Yes."))
    await agent_of(later, session_id, system.nats_url).invoke_async("Sure?")

    [call] = later.calls
    assert faults(call) == []
    assert call[0]["content"] == [{"text": "Compare."}, *FILES]
    assert call[2]["content"][0]["toolResult"]["content"] == [{"text": "hall"}, IMAGE]
    async with connect(system.nats_url, environ={}) as client:
        session = client.session("strands", session_id)
        window = await session.context(max_tokens=16_000, after="latest", wait_ms=5_000)
    assert 6 * 1_000 < window.tokens < 9_000
    assert len(json.dumps(window.messages)) < 2_000


@pytest.mark.proves("T2")
async def test_a_result_with_an_image_that_is_shortened_holds_no_bytes(
    system: RunningSystem, session_id: str
) -> None:
    model = ScriptedModel(*[shoots(f"c{number}") for number in range(20)], says("Many halls."))
    agent = agent_of(model, session_id, system.nats_url)

    await agent.invoke_async("Look twenty times.")

    assert [fault for call in model.calls for fault in faults(call)] == []
    results = [
        json.dumps(block["toolResult"]["content"], default=lambda data: f"{len(data)} bytes")
        for block in (one for message in model.calls[-1] for one in message["content"])
        if "toolResult" in block
    ]
    assert max(map(len, results)) < 500
    assert sum("bytes" in result for result in results) > 5


@pytest.mark.proves("L1", "S2", "F1")
async def test_texts_that_are_cited_or_guarded_are_texts_of_the_conversation(
    system: RunningSystem, session_id: str
) -> None:
    """They stand in blocks of their own, which come back as they were."""
    citations = [{"title": "Terms", "location": {"documentPage": {"documentIndex": 0}}}]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"guardContent": {"text": {"text": "Where is 7341?"}}}]},
        {
            "role": "assistant",
            "content": [
                {"citationsContent": {"content": [{"text": "In Ghent."}], "citations": citations}}
            ],
        },
    ]
    model = ScriptedModel(says("Yes."))
    manager = TurnfoldConversationManager("strands", session_id, client=system.nats_url)
    agent = Agent(
        model=model,
        messages=copy.deepcopy(messages),
        conversation_manager=manager,
        callback_handler=None,
    )

    await agent.invoke_async("Sure?")

    assert [one["content"] for one in model.calls[0][:2]] == [one["content"] for one in messages]
    async with connect(system.nats_url, environ={}) as client:
        session = client.session("strands", session_id)
        page = await session.history(newest=9, after="latest", wait_ms=5_000)
    contents = [one.message["content"] for one in page.messages]
    assert contents == ["Where is 7341?", "In Ghent.", "Sure?", "Yes."]
    assert "documentPage" in str(page.messages[1].message)
