"""Files in the contents of the ADK count as files, and models get them as they were."""

import json
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner
from google.adk.tools.load_artifacts_tool import LoadArtifactsTool
from google.genai import types

from tests.hosts.conftest import RunningSystem
from tests.hosts.google_adk.models import ScriptedModel, calls, faults, says
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


@pytest.mark.proves("W12", "L2")
async def test_what_a_tool_loads_for_one_call_is_no_part_of_the_conversation(
    system: RunningSystem, session_id: str
) -> None:
    """The ADK puts it behind the response; in the place of the request, it was retracted again."""
    load = types.FunctionCall(name="load_artifacts", args={"artifact_names": ["plan.pdf"]})
    script = [[types.Part(function_call=load, thought_signature=b"signed")]]
    model = ScriptedModel(script=[*script, *(calls("hall " * 90) for _ in range(9)), says("Yes.")])
    agent = LlmAgent(name="guide", model=model, tools=[look, LoadArtifactsTool()])
    plugin = TurnfoldPlugin(session_id, client=system.nats_url, max_tokens=1_500)
    runner = InMemoryRunner(app=App(name="tests", root_agent=agent, plugins=[plugin]))
    place = {"app_name": "tests", "user_id": "ada", "session_id": "s"}
    await runner.artifact_service.save_artifact(**place, filename="plan.pdf", artifact=PDF)

    await runner.run_debug("What is missing?", user_id="ada", session_id="s", quiet=True)

    assert [faults(call) for call in model.calls] == [[]] * 11
    texts = [[part.text for content in call for part in content.parts] for call in model.calls]
    assert all("What is missing?" in call for call in texts)
    assert [PDF in call[-1].parts for call in model.calls] == [False, True, *[False] * 9]
    ever = await system.stored(session_id, "ada/s/guide", include_retracted=True)
    assert [one.state for one in ever if one.state == "retracted"] == []
    assert len(ever) == 2 * 11
