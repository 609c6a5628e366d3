"""Runs of the SDK with a scripted model: what the model is given is always valid."""

import asyncio
from typing import Any

import pytest
from agents import Agent, Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from openai.types.responses import ResponseReasoningItem

import turnfold
from tests.hosts.chat import BUDGETS, TURNS, look, size
from tests.hosts.conftest import RestartableSystem, RunningSystem
from tests.hosts.openai_agents.items import faults
from turnfold.integrations.openai_agents import TurnfoldSession

METHODS = ("run", "run_sync", "run_streamed")


LOOK = function_tool(look)


def reasoning(name: str) -> ResponseReasoningItem:
    return ResponseReasoningItem(
        id=f"rs_{name}", type="reasoning", summary=[], encrypted_content="gAAA" * 50
    )


def looks(turn: str, *places: str) -> list[Any]:
    calls = [function_call("look", {"place": place}, call_id=f"{turn}-{place}") for place in places]
    return [reasoning(turn), *calls]


def says(turn: str, text: str) -> list[Any]:
    return [reasoning(f"{turn}-end"), assistant_message(text)]


async def completed(method: str, agent: Agent, text: str, session: TurnfoldSession) -> str:
    """Run one turn in one of the SDK's three ways."""
    if method == "run":
        return str((await Runner.run(agent, text, session=session)).final_output)
    if method == "run_sync":
        return await asyncio.to_thread(_run_in_thread, agent, text, session)
    streamed = Runner.run_streamed(agent, text, session=session)
    async for _ in streamed.stream_events():
        pass
    return str(streamed.final_output)


def _run_in_thread(agent: Agent, text: str, session: TurnfoldSession) -> str:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return str(Runner.run_sync(agent, text, session=session).final_output)
    finally:
        loop.close()


@pytest.mark.parametrize("method", METHODS)
async def test_a_run_with_parallel_calls_and_a_hand_off_is_remembered(
    system: RunningSystem, session_id: str, method: str
) -> None:
    model = ScriptedModel(
        [
            looks("one", "hall", "yard"),
            [reasoning("over"), function_call("transfer_to_porter", {}, call_id="over")],
            looks("two", "roof"),
            says("two", "Nothing is missing."),
            says("three", "I looked at three places."),
        ]
    )
    porter = Agent(name="porter", model=model, tools=[LOOK])
    guide = Agent(name="guide", model=model, tools=[LOOK], handoffs=[porter])
    session = TurnfoldSession("runs", session_id, client=system.nats_url, max_tokens=16_000)

    first = await completed(method, guide, "What is missing?", session)
    second = await completed(method, porter, "Where did you look?", session)

    assert first == "Nothing is missing."
    assert second == "I looked at three places."
    assert [faults(call.input) for call in model.calls] == [[]] * 5
    stored = await session.get_items(limit=1_000)
    assert await session.get_items() == stored
    assert model.calls[-1].input == stored[:-2]
    kinds = [item.get("type") or item["role"] for item in stored]
    assert kinds.count("function_call") == kinds.count("function_call_output") == 4
    assert kinds.count("reasoning") == 5


@pytest.mark.proves("G3", "C76")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.stress
async def test_two_hundred_turns_with_parallel_calls_break_no_pair_and_strand_no_reasoning(
    system: RunningSystem, session_id: str, budget: int
) -> None:
    """Proves G3."""
    model = ScriptedModel()
    agent = Agent(name="guide", model=model, tools=[LOOK])
    session = TurnfoldSession("stress", session_id, client=system.nats_url, max_tokens=budget)
    broken: list[str] = []
    largest = 0

    for turn in range(TURNS):
        model.enqueue(looks(f"t{turn}", "hall", "yard"))
        model.enqueue(says(f"t{turn}", f"Done with {turn}."))
        await completed(METHODS[turn % 3], agent, f"Look again, {turn}.", session)
        window = await session.get_items()
        broken += faults(window)
        assert any(item.get("type") == "reasoning" for item in window)
        largest = max(largest, size(window))

    assert broken == []
    assert [fault for call in model.calls for fault in faults(call.input)] == []
    assert largest <= budget * 1.1 < size(await session.get_items(limit=8 * TURNS))
    newest = await session.get_items(limit=8)
    assert newest[0]["content"] == f"Look again, {TURNS - 1}."


@pytest.mark.proves("G3")
@pytest.mark.timeout(300)
async def test_a_run_goes_on_when_turnfold_goes_away_in_it_and_the_next_turn_catches_up(
    own_system: RestartableSystem, session_id: str
) -> None:
    """With a client that buffers; the SDK holds the items of the run itself."""
    client = turnfold.PortalClient(
        own_system.start().nats_url,
        environ={},
        timeout_seconds=1,
        buffering=turnfold.BufferOptions(),
    )

    def look(place: str) -> str:
        """Look at a place, the last one of them without Turnfold."""
        if place == "yard":
            own_system.stop()
        return f"{place} is empty"

    model = ScriptedModel(
        [
            looks("one", "hall"),
            looks("two", "yard"),
            says("two", "Fine."),
            says("three", "In both places."),
        ]
    )
    agent = Agent(name="guide", model=model, tools=[function_tool(look)])
    session = TurnfoldSession("runs", session_id, client=client, max_tokens=8_000)

    first = await Runner.run(agent, "What is there?", session=session)
    with pytest.raises(turnfold.Unavailable):
        await session.get_items()
    own_system.start()
    await asyncio.wait_for(_available(session), 60)
    second = await Runner.run(agent, "Where did you look?", session=session)
    items = await session.get_items()
    await asyncio.to_thread(client.close)

    assert (first.final_output, second.final_output) == ("Fine.", "In both places.")
    assert faults(items) == []
    texts = str(items)
    for text in ("What is there?", "hall is empty", "yard is empty", "Fine.", "In both places."):
        assert text in texts
    assert len(items) == len(first.to_input_list()) + 3


async def _available(session: TurnfoldSession) -> None:
    """Wait until the session can be read again."""
    while True:
        try:
            await session.get_items()
        except turnfold.Unavailable:
            await asyncio.sleep(0.2)
        else:
            return
