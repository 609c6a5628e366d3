"""Copies of one agent that run at the same time have conversations of their own."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from google.adk.agents import LlmAgent, ParallelAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.workflow import Workflow
from google.genai import types
from pydantic import Field

from tests.hosts.conftest import RunningSystem
from tests.hosts.google_adk.models import calls, says
from turnfold.client import connect
from turnfold.errors import BadRequest
from turnfold.integrations.google_adk import TurnfoldPlugin

PLACES = ("hall", "yard", "roof")


class PlacesModel(BaseLlm):  # type: ignore[misc]  # without types here
    """Looks at the place that it is asked about, and then says which one it was."""

    model: str = "places"
    asked: list[list[Any]] = Field(default_factory=list)

    async def generate_content_async(
        self,
        llm_request: Any,
        stream: bool = False,  # noqa: ARG002  # of the ADK
    ) -> AsyncGenerator[LlmResponse, None]:
        contents = llm_request.contents
        self.asked.append(list(contents))
        # All copies have asked before one is answered.
        await asyncio.sleep(0.2)
        place = next(one for one in PLACES if one in str(contents[0].parts[0].text))
        parts = calls(place) if len(contents) == 1 else says(f"I saw the {place}.")
        yield LlmResponse(content=types.Content(role="model", parts=parts))


def look(place: str) -> str:
    """Look at a place."""
    return f"{place} is empty"


async def run(root: Any, agent_id: str, url: str, text: str) -> None:
    plugin = TurnfoldPlugin(agent_id, client=url, max_tokens=8_000)
    runner = InMemoryRunner(app=App(name="tests", root_agent=root, plugins=[plugin]))
    await runner.session_service.create_session(app_name="tests", user_id="ada", session_id="s")
    message = types.Content(role="user", parts=[types.Part(text=text)])
    async for _ in runner.run_async(user_id="ada", session_id="s", new_message=message):
        pass


async def conversations(system: RunningSystem, agent_id: str) -> dict[str, list[str]]:
    """Return the texts of all messages of each session, also of those that were retracted."""
    async with connect(system.nats_url, environ={}) as client:
        names = [name async for name in client.sessions(agent_id)]
    stored = {name: await system.stored(agent_id, name, include_retracted=True) for name in names}
    return {name: [json.dumps(one.message) for one in told] for name, told in stored.items()}


@pytest.mark.proves("L1")
async def test_copies_of_a_parallel_worker_do_not_share_a_conversation(
    system: RunningSystem, session_id: str
) -> None:
    worker = LlmAgent(name="worker", model=PlacesModel(), tools=[look], parallel_worker=True)
    root = Workflow(name="flow", edges=[("START", worker)])

    await run(root, session_id, system.nats_url, json.dumps(PLACES))

    found = await conversations(system, session_id)
    assert sorted(found) == [f"ada/s/worker/worker@{number}" for number in (1, 2, 3)]
    for place, texts in zip(PLACES, [found[name] for name in sorted(found)], strict=True):
        assert len(texts) == 4
        assert all(place in text for text in texts)


@pytest.mark.proves("L1")
async def test_an_agent_that_is_called_twice_at_once_has_two_conversations(
    system: RunningSystem, session_id: str
) -> None:
    class Chief(PlacesModel):
        async def generate_content_async(
            self,
            llm_request: Any,
            stream: bool = False,  # noqa: ARG002  # of the ADK
        ) -> AsyncGenerator[LlmResponse, None]:
            asks = [types.FunctionCall(name="worker", args={"request": one}) for one in PLACES]
            parts = [types.Part(function_call=one) for one in asks]
            if len(llm_request.contents) > 1:
                parts = says("Done.")
            yield LlmResponse(content=types.Content(role="model", parts=parts))

    worker = LlmAgent(name="worker", model=PlacesModel(), tools=[look], mode="single_turn")
    chief = LlmAgent(name="chief", model=Chief(), sub_agents=[worker])

    await run(chief, session_id, system.nats_url, "Go.")

    found = await conversations(system, session_id)
    copies = [texts for name, texts in found.items() if name.startswith("ada/s/worker/worker@")]
    assert [len(texts) for texts in copies] == [4, 4, 4]
    assert len(found) == 4


@pytest.mark.proves("L1")
async def test_different_agents_in_parallel_keep_their_plain_names(
    system: RunningSystem, session_id: str
) -> None:
    agents = [
        LlmAgent(name=place, model=PlacesModel(), tools=[look]) for place in ("first", "second")
    ]
    root = ParallelAgent(name="both", sub_agents=agents)

    await run(root, session_id, system.nats_url, "See the hall.")

    found = await conversations(system, session_id)
    assert sorted(found) == ["ada/s/first", "ada/s/second"]


@pytest.mark.proves("L1")
async def test_deep_branches_have_ids_that_fit(system: RunningSystem, session_id: str) -> None:
    name = "worker_with_quite_a_long_name"
    root: Any = LlmAgent(name=name, model=PlacesModel(), tools=[look], parallel_worker=True)
    for number in range(5):
        root = Workflow(name=f"{name}_{number}", edges=[("START", root)], parallel_worker=True)

    await run(Workflow(name="flow", edges=[("START", root)]), session_id, system.nats_url, "hall")

    [(found, texts)] = (await conversations(system, session_id)).items()
    assert found.startswith(f"ada/s/{name}/")
    assert len(texts) == 4


@pytest.mark.proves("G5", "X2")
@pytest.mark.parametrize(
    ("user_id", "chat_id"), [("客户服务" * 10, "s"), ("ada", "s" * 255), ("a\ud83d", "s")]
)
async def test_ids_of_any_length_and_letters_do_not_stop_the_agent(
    system: RunningSystem, session_id: str, user_id: str, chat_id: str
) -> None:
    model = PlacesModel()
    agent = LlmAgent(name="guide", model=model, tools=[look])
    plugin = TurnfoldPlugin(session_id, client=system.nats_url, max_tokens=8_000)
    runner = InMemoryRunner(app=App(name="tests", root_agent=agent, plugins=[plugin]))

    await runner.run_debug("See the hall.", user_id=user_id, session_id=chat_id, quiet=True)

    [texts] = (await conversations(system, session_id)).values()
    assert len(texts) == 4


def test_an_agent_id_that_is_none_fails_before_the_agent_runs() -> None:
    with pytest.raises(BadRequest, match="agent_id"):
        TurnfoldPlugin("")
