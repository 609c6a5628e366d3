"""Agents of the ADK whose models see windows: always valid, and the session keeps every event."""

import gc
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.agents.run_config import RunConfig
from google.adk.apps import App
from google.adk.flows.llm_flows.context import _fencing
from google.adk.models.google_llm import Gemini
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools import LongRunningFunctionTool
from google.adk.tools.preload_memory_tool import PreloadMemoryTool
from google.genai import types

from tests.hosts.chat import BUDGETS, NOWHERE, TURNS, look
from tests.hosts.conftest import RunningSystem, Warned
from tests.hosts.google_adk.models import ScriptedModel, calls, faults, says, size
from turnfold.client import connect
from turnfold.integrations import google_adk
from turnfold.integrations.google_adk import TurnfoldPlugin

GUIDE = "ada@work/s%2F1/guide"
"""The session of the agent that the tests run."""


class InteractionsModel(ScriptedModel, Gemini):  # type: ignore[misc]  # without types here
    """Pairs calls by their ids, so the ADK leaves those that it made."""

    use_interactions_api: bool = True


def runner_of(
    model: ScriptedModel, agent_id: str, url: str, *, tokens: int = 8_000, **options: Any
) -> InMemoryRunner:
    agent = LlmAgent(name="guide", model=model, instruction="Be brief.", tools=[look], **options)
    plugin = TurnfoldPlugin(agent_id, client=url, max_tokens=tokens)
    return InMemoryRunner(app=App(name="tests", root_agent=agent, plugins=[plugin]))


async def started(runner: InMemoryRunner) -> None:
    await runner.session_service.create_session(
        app_name="tests", user_id="ada@work", session_id="s/1"
    )


async def turn(runner: InMemoryRunner, *texts: str) -> str:
    """Run one turn, and return the last text."""
    said = ""
    message = types.Content(role="user", parts=[types.Part(text=text) for text in texts])
    async for event in runner.run_async(user_id="ada@work", session_id="s/1", new_message=message):
        parts = event.content.parts if event.content else []
        said = "".join(part.text or "" for part in parts or ()) or said
    return said


@pytest.mark.parametrize("ids", ["", "given"])
async def test_a_run_with_parallel_calls_is_recorded_and_shown_as_it_is(
    system: RunningSystem, session_id: str, ids: str
) -> None:
    model = ScriptedModel(
        script=[calls("hall", "yard", with_ids=ids), says("Nothing is missing."), says("Yes.")]
    )
    runner = runner_of(model, session_id, system.nats_url)
    await started(runner)

    said = await turn(runner, "What is missing?")
    await turn(runner, "Sure?")

    assert said == "Nothing is missing."
    assert [faults(call) for call in model.calls] == [[]] * 3
    asked, called, answered, said_then, again = model.calls[-1]
    assert asked.parts[0].text == "What is missing?"
    assert [part.thought_signature for part in called.parts if part.function_call] == [
        b"signed"
    ] * 2
    assert json.dumps(answered.parts[1].function_response.response) == json.dumps(
        {"result": look("yard")}
    )
    assert (said_then.role, again.parts[0].text) == ("model", "Sure?")
    roles = [one.message["role"] for one in await system.stored(session_id, GUIDE)]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "user", "assistant"]


async def test_a_tool_that_failed_is_recorded_as_failed(
    system: RunningSystem, session_id: str
) -> None:
    def look(place: str) -> dict[str, str | None]:
        """Look at a place; the hall is closed."""
        closed = place == "hall"
        return {"error": "It is closed."} if closed else {"error": None, "result": place}

    model = ScriptedModel(script=[calls("hall", "yard"), says("One is closed.")])
    runner = runner_of(model, session_id, system.nats_url)
    runner.agent.tools = [look]
    await started(runner)

    await turn(runner, "What is there?")

    failed = [one.is_error for one in await system.stored(session_id, GUIDE)]
    assert failed == [False, False, True, False, False]


@pytest.mark.proves("L5")
async def test_a_response_stays_with_its_call_beside_one_of_the_same_tool_that_is_still_open(
    system: RunningSystem, session_id: str
) -> None:
    def look(place: str) -> str | None:
        """Look at a place; the hall takes days."""
        return None if place == "hall" else place

    model = InteractionsModel(script=[calls("hall", "yard"), says("Wait."), says("Wait.")])
    runner = runner_of(model, session_id, system.nats_url)
    runner.agent.tools = [LongRunningFunctionTool(look)]
    await started(runner)

    await turn(runner, "What is there?")
    await turn(runner, "And now?")

    assert [faults(call) for call in model.calls] == [[], [], []]
    for asked in model.calls[1:]:
        places = {
            part.function_call.id: part.function_call.args["place"]
            for part in asked[1].parts
            if part.function_call
        }
        answers = {
            places[part.function_response.id]: part.function_response.response["result"]
            for part in asked[2].parts
        }
        assert answers == {"hall": "[No result of this call is known.]", "yard": "yard"}


@pytest.mark.proves("L1")
async def test_a_turn_alone_is_not_taken_for_the_conversation_if_the_provider_keeps_the_rest(
    system: RunningSystem, session_id: str
) -> None:
    class KeepingModel(InteractionsModel):
        async def generate_content_async(
            self, llm_request: Any, stream: bool = False
        ) -> AsyncGenerator[LlmResponse, None]:
            async for answer in super().generate_content_async(llm_request, stream):
                yield answer.model_copy(update={"interaction_id": "kept"})

    model = KeepingModel(script=[says("Nothing."), says("Yes.")])
    runner = runner_of(model, session_id, system.nats_url)
    await started(runner)

    await turn(runner, "What is missing?")
    await turn(runner, "Sure?")

    assert [len(call) for call in model.calls] == [1, 1]
    stored = await system.stored(session_id, GUIDE)
    assert [one.message["content"] for one in stored] == ["What is missing?", "Nothing."]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.stress
async def test_two_hundred_turns_with_parallel_calls_break_no_pair(
    system: RunningSystem, session_id: str, budget: int
) -> None:
    model = ScriptedModel()
    runner = runner_of(model, session_id, system.nats_url, tokens=budget)
    await started(runner)

    for number in range(TURNS):
        ids = f"t{number}" if number % 2 else ""
        model.script += [calls("hall", "yard", with_ids=ids), says(f"Done with {number}.")]
        await turn(runner, f"Look again, {number}.")
        assert any(
            part.text == f"Look again, {number}."
            for content in model.calls[-1]
            for part in content.parts
        )

    assert [fault for call in model.calls for fault in faults(call)] == []
    assert max(map(size, model.calls)) <= budget * 1.1
    session = await runner.session_service.get_session(
        app_name="tests", user_id="ada@work", session_id="s/1"
    )
    assert len(session.events) == 4 * TURNS


async def test_an_agent_that_takes_over_has_a_conversation_of_its_own(
    system: RunningSystem, session_id: str
) -> None:
    transfer = types.FunctionCall(name="transfer_to_agent", args={"agent_name": "porter"})
    model = ScriptedModel(
        script=[[types.Part(function_call=transfer, thought_signature=b"signed")], says("I do.")]
    )
    porter = LlmAgent(name="porter", model=model, description="Carries.")
    runner = runner_of(model, session_id, system.nats_url, sub_agents=[porter])
    await started(runner)

    assert await turn(runner, "Who carries?") == "I do."

    assert [faults(call) for call in model.calls] == [[], []]
    async with connect(system.nats_url, environ={}) as client:
        names = [name async for name in client.sessions(session_id)]
    assert GUIDE in names


async def test_calls_that_are_never_answered_are_forgotten(
    system: RunningSystem, session_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run ends without a word to its plugins if its model fails, or if nobody waits for it."""
    monkeypatch.setattr(google_adk, "ASKED", 4)
    runner = runner_of(ScriptedModel(), session_id, system.nats_url)
    await started(runner)

    for number in range(8):
        with pytest.raises(IndexError):
            await turn(runner, f"What is missing? {number}")

    gc.collect()
    kept = [one for one in gc.get_objects() if type(one).__name__ == "_RequestContents"]
    assert len(kept) <= 4


async def test_without_turnfold_the_model_gets_the_contents_and_a_warning_tells_no_text(
    session_id: str, warned: Warned
) -> None:
    model = ScriptedModel(script=[calls("hall"), says("Nothing.")])
    runner = runner_of(model, session_id, NOWHERE)
    await started(runner)

    said = await turn(runner, "What is missing?")

    assert said == "Nothing."
    assert [len(call) for call in model.calls] == [1, 3]
    assert warned()
    assert "missing" not in str(warned())


@pytest.mark.proves("W12")
@pytest.mark.parametrize("is_fenced", [True, False])
async def test_what_another_agent_did_takes_no_place_of_the_request(
    system: RunningSystem, session_id: str, monkeypatch: pytest.MonkeyPatch, is_fenced: bool
) -> None:
    if not is_fenced:
        # As earlier versions of the ADK.
        monkeypatch.setattr(_fencing, "OTHER_AGENT_CONTEXT_PREAMBLE", "For context:")
    models = [
        ScriptedModel(script=[*(calls("hall") for _ in range(rounds)), says("All is there.")])
        for rounds in (12, 1)
    ]
    team = [
        LlmAgent(name=name, model=model, tools=[look])
        for name, model in zip(("first", "second"), models, strict=True)
    ]
    plugin = TurnfoldPlugin(session_id, client=system.nats_url, max_tokens=3_000)
    root = SequentialAgent(name="team", sub_agents=team)
    runner = InMemoryRunner(app=App(name="tests", root_agent=root, plugins=[plugin]))
    await started(runner)

    await turn(runner, "What is missing in the hall?")

    shown = [[content.parts[0].text for content in call] for call in models[1].calls]
    assert ["What is missing in the hall?" in texts for texts in shown] == [True, True]


@pytest.mark.proves("W12", "L11")
async def test_instructions_beside_static_ones_are_of_one_call(
    system: RunningSystem, session_id: str
) -> None:
    """They stand where the ADK has them, and so do memories. The conversation is without them."""
    model = ScriptedModel(script=[part for _ in range(8) for part in (calls("hall"), says("All."))])
    runner = runner_of(model, session_id, system.nats_url, static_instruction="Look.")
    runner.agent.tools.append(PreloadMemoryTool())
    await started(runner)

    for number in range(8):
        await turn(runner, f"What is missing on day {number}?")
        stored = await runner.session_service.get_session(
            app_name="tests", user_id="ada@work", session_id="s/1"
        )
        await runner.memory_service.add_session_to_memory(stored)

    assert [faults(call) for call in model.calls] == [[]] * 16
    for number in range(8):
        first, second = model.calls[2 * number : 2 * number + 2]
        of_one_call = [first[-2]] if number == 0 else first[-3:-1]
        begins = sorted(content.parts[0].text[:13] for content in of_one_call)
        # The first turn has no memories.
        assert begins == ["The following", "The text betw"][-len(of_one_call) :]
        said, request = first[: -1 - len(of_one_call)], first[-1]
        # Before the request of a turn, and behind the results of its calls.
        assert second[: len(said) + 1] == [*said, request]
        assert sorted(map(str, second[-len(of_one_call) :])) == sorted(map(str, of_one_call))
    assert len(await system.stored(session_id, GUIDE, include_retracted=True)) == 8 * 4


@pytest.mark.proves("L11")
async def test_files_of_a_static_instruction_begin_every_call(
    system: RunningSystem, session_id: str
) -> None:
    """The instruction after them was before them in the first call, and elsewhere in later ones."""
    model = ScriptedModel(script=[part for _ in range(4) for part in (calls("hall"), says("All."))])
    plan = types.Part(inline_data=types.Blob(data=b"plan", mime_type="image/png"))
    static = types.Content(role="user", parts=[types.Part(text="Look."), plan])
    runner = runner_of(model, session_id, system.nats_url, tokens=900, static_instruction=static)
    await started(runner)

    for number in range(4):
        await turn(runner, f"What is missing on day {number}?")

    begin = model.calls[0][:2]
    assert [content.parts[0].text[:13] for content in begin] == ["Referenced in", "The text betw"]
    assert [call[:2] for call in model.calls] == [begin] * 8


@pytest.mark.proves("L1")
async def test_a_request_behind_memories_of_the_program_is_recorded(
    system: RunningSystem, session_id: str
) -> None:
    runner = runner_of(ScriptedModel(script=[says("It left.")]), session_id, system.nats_url)
    await started(runner)
    memories = "The following content is from your previous conversations with the user.\nNone."

    await turn(runner, memories, "Where is order 7341?")

    roles = [one.message["role"] for one in await system.stored(session_id, GUIDE)]
    assert roles == ["user", "assistant"]


@pytest.mark.proves("W12")
async def test_a_user_who_gives_context_first_makes_a_request(
    system: RunningSystem, session_id: str
) -> None:
    """Earlier versions of the ADK begin with the same words what another agent did."""
    model = ScriptedModel(script=[says("Hi."), *(calls("hall") for _ in range(30)), says("All.")])
    runner = runner_of(model, session_id, system.nats_url, tokens=1_500)
    await started(runner)
    await turn(runner, "Hello.")

    await turn(runner, "For context:", "It was painted.", "Look again.")

    shown = [part.text for content in model.calls[-1] for part in content.parts]
    assert shown.count("Look again.") == 1


@pytest.mark.proves("L1", "L11")
async def test_context_that_a_program_gives_one_run_is_no_part_of_the_conversation(
    system: RunningSystem, session_id: str
) -> None:
    """The ADK puts it before the request of the run, and leaves it out of the next one."""
    model = ScriptedModel(script=[part for _ in range(6) for part in (calls("hall"), says("All."))])
    runner = runner_of(model, session_id, system.nats_url, tokens=2_000)
    await started(runner)

    for number in range(6):
        given = [says(f"Day {number}."), says("It rains.")]
        config = RunConfig(
            model_input_context=[types.Content(role="user", parts=parts) for parts in given]
        )
        message = types.Content(role="user", parts=says("What is missing?"))
        async for _ in runner.run_async(
            user_id="ada@work", session_id="s/1", new_message=message, run_config=config
        ):
            pass
        for call in model.calls[2 * number :]:
            texts = [content.parts[0].text for content in call]
            at = texts.index(f"Day {number}.")
            assert texts[at + 1 : at + 3] == ["It rains.", "What is missing?"]
            assert str(texts).count("Day ") == 1

    assert [faults(call) for call in model.calls] == [[]] * 12
    async with connect(system.nats_url, environ={}) as client:
        session = client.session(session_id, "ada@work/s%2F1/guide")
        page = await session.history(
            newest=100, include_retracted=True, after="latest", wait_ms=5_000
        )
    assert len(page.messages) == 6 * 4
    assert "It rains." not in str(page.messages)
