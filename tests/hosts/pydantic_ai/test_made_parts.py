"""Files that a model makes, and tools that its provider runs, are recorded as short texts."""

import pytest
from pydantic_ai import BinaryContent
from pydantic_ai.messages import (
    AudioUrl,
    FilePart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    SpeechPart,
    TextPart,
    UserPromptPart,
)

from tests.hosts.conftest import RunningSystem
from tests.hosts.pydantic_ai.models import Script, says
from tests.hosts.pydantic_ai.test_runs import agent_of, recorded
from turnfold.client import connect

MEBIBYTE = 1 << 20


@pytest.mark.proves("G5")
async def test_files_and_native_tools_are_recorded_by_name(
    system: RunningSystem, session_id: str
) -> None:
    script = Script([says("Fine.")])
    image = BinaryContent(b"\x89PNG" + b"\x00" * 2 * MEBIBYTE, media_type="image/png")
    parts = [
        NativeToolCallPart("web_search", {"query": "crates"}, "n1"),
        NativeToolReturnPart("web_search", {"found": 3}, "n1"),
        FilePart(image),
    ]
    history: list[ModelMessage] = [
        ModelRequest(parts=[UserPromptPart("Draw crates.")]),
        ModelResponse(parts=parts),
    ]

    await agent_of(script, system.nats_url).run(
        "And so?", message_history=history, conversation_id=session_id
    )

    assert script.calls[0][1].parts == parts
    stored = await recorded(system, session_id)
    text, file = stored[1]["content"]
    assert file == {"type": "image", "mime_type": "image/png"}
    assert text["text"].split("\n\n") == [
        'web_search: {"query":"crates"}',
        'web_search: {"found":3}',
        "[image/png file]",
    ]


@pytest.mark.proves("G5")
async def test_a_file_whose_type_its_url_does_not_tell_is_recorded(
    system: RunningSystem, session_id: str
) -> None:
    script = Script([says("A voice.")])
    asked = ["What is it?", AudioUrl("https://example.com/notes/7341")]

    await agent_of(script, system.nats_url).run(asked, conversation_id=session_id)

    texts = ["What is it?", "[file: ?]"]
    content = [{"type": "text", "text": text} for text in texts]
    file = {"type": "file", "mime_type": "?"}
    stored = [one["content"] for one in await recorded(system, session_id)]
    assert stored == [[*content, file], "A voice."]


@pytest.mark.proves("G5", "T2", "L6")
async def test_a_document_costs_what_a_file_costs(system: RunningSystem, session_id: str) -> None:
    script = Script([says("A contract.")])
    document = BinaryContent(b"%PDF" * MEBIBYTE, media_type="application/pdf")

    await agent_of(script, system.nats_url).run(
        ["What is it?", document], conversation_id=session_id
    )

    async with connect(system.nats_url, environ={}) as client:
        session = client.session("pydantic", session_id)
        window = await session.context(max_tokens=8_000, after="latest", wait_ms=5_000)
    assert script.calls[0][0].parts[-1].content == ["What is it?", document]
    assert 1_200 < window.tokens < 1_400


@pytest.mark.proves("G5", "T2", "L6")
async def test_an_image_that_a_model_made_costs_what_an_image_costs(
    system: RunningSystem, session_id: str
) -> None:
    """Models that make images are sent them again."""
    script = Script([says("Fine.")])
    image = BinaryContent(b"\x89PNG" * 100, media_type="image/png")
    history: list[ModelMessage] = []
    for number in range(12):
        history += [
            ModelRequest(parts=[UserPromptPart(f"Draw crate {number}.")]),
            ModelResponse(parts=[TextPart("Here it is."), FilePart(image)]),
        ]

    await agent_of(script, system.nats_url, tokens=6_000).run(
        "And so?", message_history=history, conversation_id=session_id
    )

    [asked] = script.calls
    made = [part for message in asked for part in message.parts if isinstance(part, FilePart)]
    assert 0 < len(made) < 5


@pytest.mark.proves("G5")
async def test_what_was_spoken_is_recorded_as_its_transcript(
    system: RunningSystem, session_id: str
) -> None:
    """A history of a realtime session may go on as text."""
    script = Script([says("On Friday.")])
    history: list[ModelMessage] = [
        ModelRequest(parts=[SpeechPart(speaker="user", transcript="Where is order 7341?")]),
        ModelResponse(parts=[SpeechPart(speaker="assistant", transcript="In Ghent.")]),
        ModelRequest(parts=[SpeechPart(speaker="user")]),
        ModelResponse(parts=[SpeechPart(speaker="assistant")]),
    ]

    await agent_of(script, system.nats_url).run(
        "When does it come?", message_history=history, conversation_id=session_id
    )

    stored = await recorded(system, session_id)
    assert [(one["role"], one["content"]) for one in stored] == [
        ("user", "Where is order 7341?"),
        ("assistant", "In Ghent."),
        ("user", "[speech]"),
        ("assistant", "[speech]"),
        ("user", "When does it come?"),
        ("assistant", "On Friday."),
    ]
