"""Agents of Strands whose messages are windows: always valid, and no message is lost."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from strands import Agent, tool
from strands.hooks.events import AfterInvocationEvent, BeforeInvocationEvent
from strands.session.file_session_manager import FileSessionManager
from strands.types.exceptions import ContextWindowOverflowException
from strands.vended_plugins.goal import GoalLoop

from tests.hosts.chat import BUDGETS, NOWHERE, TURNS, look
from tests.hosts.conftest import RunningSystem, Warned
from tests.hosts.strands.models import ScriptedModel, calls, faults, says, size
from turnfold.client import connect
from turnfold.integrations.strands import TurnfoldConversationManager


class Place(BaseModel):
    """A place."""

    name: str


def agent_of(
    model: ScriptedModel, session_id: str, url: str, *, tokens: int = 8_000, **options: Any
) -> Any:
    manager = TurnfoldConversationManager("strands", session_id, client=url, max_tokens=tokens)
    options |= {"conversation_manager": manager, "callback_handler": None}
    return Agent(model=model, tools=[tool(look)], **options)


async def test_a_run_with_parallel_calls_goes_on_in_the_next_program(
    system: RunningSystem, session_id: str
) -> None:
    model = ScriptedModel(calls("one", "hall", "yard"), says("Nothing is missing."), says("Yes."))
    agent = agent_of(model, session_id, system.nats_url)
    await agent.invoke_async("What is missing?")
    state = agent.messages
    later = ScriptedModel(says("I looked at two places."))
    await agent_of(later, session_id, system.nats_url).invoke_async("Where did you look?")

    [call] = later.calls
    assert faults(call) == []
    assert [one["content"] for one in call[:-1]] == [one["content"] for one in state]
    assert call[-1]["content"] == [{"text": "Where did you look?"}]
    roles = [one.message["role"] for one in await system.stored("strands", session_id)]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "user", "assistant"]


@pytest.mark.proves("W12")
async def test_a_prompt_for_structured_output_is_no_request_of_a_person(
    system: RunningSystem, session_id: str
) -> None:
    """Strands writes it as the user if the model has not called the tool."""
    wanted = {"toolUse": {"toolUseId": "one", "name": "Place", "input": {"name": "yard"}}}
    model = ScriptedModel(says("The yard."), [wanted], says("Yes."))
    agent = agent_of(model, session_id, system.nats_url)

    result = await agent.invoke_async("Where is it?", structured_output_model=Place)
    await agent.invoke_async("Is it there?")

    assert result.structured_output == Place(name="yard")
    stored = await system.stored("strands", session_id)
    of_user = [one for one in stored if one.message["role"] == "user"]
    assert [one.is_meta for one in of_user] == [False, True, False]


@pytest.mark.proves("W12")
async def test_what_a_goal_or_a_call_of_the_program_says_as_the_user_is_no_request_of_a_person(
    system: RunningSystem, session_id: str
) -> None:
    goal = GoalLoop(goal=lambda answer, _: "One" not in str(answer), max_attempts=2)
    model = ScriptedModel(says("One."), says("Two."), says("Yes."))
    agent = agent_of(model, session_id, system.nats_url, plugins=[goal])

    await agent.invoke_async("Count to two.")
    await asyncio.to_thread(agent.tool.look, place="hall")
    await agent.invoke_async("Is it two?")

    stored = await system.stored("strands", session_id)
    of_user = [one for one in stored if one.message["role"] == "user"]
    assert [one.is_meta for one in of_user] == [False, True, True, False]


@pytest.mark.proves("W12")
async def test_a_person_asks_although_the_agent_was_to_go_on_and_failed(
    system: RunningSystem, session_id: str
) -> None:
    agent = agent_of(ScriptedModel(says("One."), says("Yes.")), session_id, system.nats_url)
    errors: list[Exception] = []

    def go_on(event: AfterInvocationEvent) -> None:
        event.resume = None if errors else "And two?"

    def refuse(event: BeforeInvocationEvent) -> None:
        if event.messages and "two" in str(event.messages) and not errors:
            errors.append(ValueError("It counts too far."))
            raise errors[0]

    agent.add_hook(go_on)
    agent.add_hook(refuse)
    with pytest.raises(ValueError, match="too far"):
        await agent.invoke_async("Count.")
    await agent.invoke_async("Is it one?")

    stored = await system.stored("strands", session_id)
    assert [one.is_meta for one in stored if one.message["role"] == "user"] == [False, False]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.stress
async def test_two_hundred_turns_with_parallel_calls_break_no_pair(
    system: RunningSystem, session_id: str, budget: int
) -> None:
    model = ScriptedModel()
    agent = agent_of(model, session_id, system.nats_url, tokens=budget)

    for number in range(TURNS):
        model.script += [calls(f"t{number}", "hall", "yard"), says(f"Done with {number}.")]
        await agent.invoke_async(f"Look again, {number}.")

    assert [fault for call in model.calls for fault in faults(call)] == []
    assert max(map(size, model.calls)) <= budget * 1.1
    stored = [one.message for one in await system.stored("strands", session_id)]
    assert len(stored) == 5 * TURNS
    texts = [one["content"] for one in stored if one["role"] == "user"]
    assert texts == [f"Look again, {number}." for number in range(TURNS)]


@pytest.mark.proves("L1")
async def test_a_session_of_strands_goes_on_after_its_last_message(
    system: RunningSystem, session_id: str, tmp_path: Path
) -> None:
    """Messages were counted as removed again and again, until the next one overwrote its first."""

    @tool(name="look")  # type: ignore[untyped-decorator]
    def glance(place: str) -> str:
        """Look at a place."""
        return f"{place}: " + "crate " * 200

    async def run_program(turns: int) -> tuple[list[Any], int]:
        """Ask so many questions; return the stored messages, and how many count as removed."""
        script = [
            answer
            for turn in range(turns)
            for answer in (calls(f"{turn}", "hall", "yard"), calls(f"{turn}", "attic"), says("No."))
        ]
        manager = TurnfoldConversationManager(
            "strands", session_id, client=system.nats_url, max_tokens=1_500
        )
        kept = FileSessionManager(session_id=session_id, storage_dir=str(tmp_path))
        agent = Agent(
            model=ScriptedModel(*script),
            tools=[glance],
            conversation_manager=manager,
            session_manager=kept,
            callback_handler=None,
        )
        for turn in range(turns):
            await agent.invoke_async(f"What is missing at {turn} of {turns}?")
        return kept.list_messages(session_id, agent.agent_id), manager.removed_message_count

    await run_program(25)
    saved, removed = await run_program(1)

    asked = [one.message["content"][0].get("text") for one in saved[::6]]
    places = [*(f"{turn} of 25" for turn in range(25)), "0 of 1"]
    assert asked == [f"What is missing at {place}?" for place in places]
    assert removed < len(saved)


def test_a_call_that_was_too_long_is_tried_with_a_smaller_window(
    system: RunningSystem, session_id: str
) -> None:
    model = ScriptedModel()
    agent = agent_of(model, session_id, system.nats_url, tokens=16_000)
    for number in range(12):
        model.script += [calls(f"t{number}", "hall", "yard"), says("Done.")]
        agent(f"Look, {number}.")
    model.script += [ContextWindowOverflowException("too long"), says("Fine.")]

    agent("Well?")

    long, short = model.calls[-2:]
    assert len(str(short)) < len(str(long))
    assert faults(short) == []


async def test_a_session_of_another_program_leaves_the_messages_as_they_are(
    system: RunningSystem, session_id: str
) -> None:
    async with connect(system.nats_url, environ={}) as client:
        session = client.session("strands", session_id)
        await session.turn_completed([{"role": "user", "content": "Of another."}])
    model = ScriptedModel(says("Hello."))

    await agent_of(model, session_id, system.nats_url).invoke_async("Anybody?")

    assert [message["content"] for message in model.calls[-1]] == [[{"text": "Anybody?"}]]


def test_without_turnfold_the_messages_stay_and_a_warning_tells_no_text(
    session_id: str, warned: Warned
) -> None:
    model = ScriptedModel(calls("one", "hall"), says("Nothing."))
    agent = agent_of(model, session_id, NOWHERE)

    agent("What is missing?")

    assert [len(call) for call in model.calls] == [1, 3]
    assert warned()
    assert "missing" not in str(warned())
