"""Files in the contents of the ADK count as files, and models get them as they were."""

import json
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner
from google.genai import types

from tests.hosts.conftest import RunningSystem
from tests.hosts.google_adk.models import ScriptedModel, calls, says
from turnfold.client import connect
from turnfold.integrations.google_adk import TurnfoldPlugin

DATA = bytes(range(256)) * 1_000
PDF = types.Part(inline_data=types.Blob(data=DATA, mime_type="application/pdf"))
SOUND = types.Part(file_data=types.FileData(file_uri="gs://b/a.mp3", mime_type="audio/mp3"))
SHOT = types.FunctionResponsePart.from_bytes(data=DATA, mime_type="image/png")


class Shots(BasePlugin):  # type: ignore[misc]  # without types here
    """Gives each response of a function an image, as tools for computers do."""

    async def before_model_callback(self, *, llm_request: Any, **_: Any) -> None:
        for content in llm_request.contents:
            for part in content.parts:
                if part.function_response:
                    part.function_response.parts = [SHOT]


def look(place: str) -> str:
    """Look at a place."""
    return f"{place} is empty"


@pytest.mark.proves("T2")
async def test_files_count_as_files_and_reach_the_model_as_they_were(
    system: RunningSystem, session_id: str
) -> None:
    model = ScriptedModel(script=[calls("hall"), says("Empty.")])
    plugins = [Shots("shots"), TurnfoldPlugin(session_id, client=system.nats_url, max_tokens=9_000)]
    agent = LlmAgent(name="guide", model=model, tools=[look])
    runner = InMemoryRunner(app=App(name="tests", root_agent=agent, plugins=plugins))
    await runner.session_service.create_session(app_name="tests", user_id="ada", session_id="s")
    asked = types.Content(role="user", parts=[types.Part(text="Compare."), PDF, SOUND])

    async for _ in runner.run_async(user_id="ada", session_id="s", new_message=asked):
        pass

    sent, _, answered = model.calls[-1]
    assert sent.parts == asked.parts
    assert answered.parts[0].function_response.parts == [SHOT]
    async with connect(system.nats_url, environ={}) as client:
        session = client.session(session_id, "ada/s/guide")
        window = await session.context(max_tokens=9_000, after="latest", wait_ms=5_000)
    assert 3 * 1_000 < window.tokens < 5_000
    assert len(json.dumps(window.messages)) < 2_000
