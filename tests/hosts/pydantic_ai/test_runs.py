"""Agents of Pydantic AI whose models see windows: always valid, and the history keeps everything."""

import asyncio
from typing import Any

import pytest
from pydantic_ai import (
    Agent,
    BinaryContent,
    DeferredToolRequests,
    DeferredToolResults,
    ModelRetry,
    Tool,
    ToolReturn,
)
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from tests.hosts.chat import BUDGETS, NOWHERE, PATIENCE_SECONDS, TURNS, look
from tests.hosts.conftest import RestartableSystem, RunningSystem, Warned
from tests.hosts.pydantic_ai.models import Script, contents, faults, looks, says, size, texts
from turnfold.integrations.pydantic_ai import TurnfoldCapability

IMAGE = BinaryContent(b"\x89PNG", media_type="image/png")
METHODS = ("run", "run_sync", "run_stream", "iter")


def agent_of(script: Script, url: str, *, tokens: int = 8_000, **options: Any) -> Any:
    patience = 1 if url == NOWHERE else PATIENCE_SECONDS
    capability = TurnfoldCapability(
        "pydantic", client=url, max_tokens=tokens, patience_seconds=patience
    )
    tools = options.pop("tools", [look])
    return Agent(
        script.model,
        instructions="Be brief.",
        system_prompt="You count crates.",
        tools=tools,
        capabilities=[capability],
        **options,
    )


async def turn(
    agent: Any, method: str, text: str, session_id: str, history: list[ModelMessage]
) -> list[ModelMessage]:
    """Run one turn in one of the four ways, and return the history after it."""
    options: dict[str, Any] = {"message_history": history, "conversation_id": session_id}
    messages: list[ModelMessage]
    if method == "run_sync":
        result = await asyncio.to_thread(_run_in_thread, agent, text, options)
        messages = result.all_messages()
    elif method == "run_stream":
        async with agent.run_stream(text, **options) as streamed:
            await streamed.get_output()
            messages = streamed.all_messages()
    elif method == "iter":
        async with agent.iter(text, **options) as run:
            async for _ in run:
                pass
            messages = run.result.all_messages()
    else:
        messages = (await agent.run(text, **options)).all_messages()
    return messages


def _run_in_thread(agent: Any, text: str, options: dict[str, Any]) -> Any:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return agent.run_sync(text, **options)
    finally:
        loop.close()


async def recorded(system: RunningSystem, session_id: str) -> list[dict[str, Any]]:
    """Return the stored messages of a session."""
    return [stored.message for stored in await system.stored("pydantic", session_id)]


@pytest.mark.proves("G5")
@pytest.mark.parametrize("method", METHODS)
async def test_a_run_with_parallel_calls_is_recorded_and_shown_as_it_is(
    system: RunningSystem, session_id: str, method: str
) -> None:
    script = Script([looks("one", "hall", "yard"), says("Nothing."), says("In two places.")])
    agent = agent_of(script, system.nats_url)

    first = await turn(agent, method, "What is missing?", session_id, [])
    history = await turn(agent, method, "Where did you look?", session_id, first)

    assert script.calls[-1] == history[:-1]
    assert len(history) == 6
    stored = await recorded(system, session_id)
    roles = ["user", "assistant", "tool", "tool", "assistant", "user", "assistant"]
    assert [body["role"] for body in stored] == roles
    assert stored[2]["content"] == look("hall")
    assert stored[-1]["content"] == "In two places."


@pytest.mark.proves("G5")
@pytest.mark.timeout(900)
@pytest.mark.stress
async def test_two_hundred_turns_with_parallel_calls_break_no_pair_at_any_budget(
    system: RunningSystem, session_id: str
) -> None:
    await asyncio.gather(*(_two_hundred_turns(system, session_id, one) for one in BUDGETS))


async def _two_hundred_turns(system: RunningSystem, session_id: str, budget: int) -> None:
    script = Script()
    agent = agent_of(script, system.nats_url, tokens=budget)
    history: list[ModelMessage] = []

    for number in range(TURNS):
        script.answers += [looks(f"t{number}", "hall", "yard"), says(f"Done with {number}.")]
        text = f"Look again, {number}."
        method = METHODS[number % 4]
        history = await turn(agent, method, text, f"{session_id}-{budget}", history)
        assert texts(script.calls[-1])[0] == "You count crates."
        assert texts(script.calls[-1]).count(text) == 1

    assert [fault for call in script.calls for fault in faults(call)] == []
    assert len(history) == 4 * TURNS
    assert faults(history) == []
    sizes = [size(call) for call in script.calls]
    assert max(sizes) <= budget * 1.1 < size(history)


async def test_only_the_request_changes_and_never_the_history(
    system: RunningSystem, session_id: str
) -> None:
    script = Script([says("Fine.")])
    old: list[ModelMessage] = []
    for number in range(60):
        old.append(ModelRequest(parts=[UserPromptPart(f"Question {number}: " + "word " * 100)]))
        old.append(ModelResponse(parts=[TextPart(f"Answer {number}. " + "word " * 100)]))
    before = ModelMessagesTypeAdapter.dump_json(old)

    result = await agent_of(script, system.nats_url, tokens=4_000).run(
        "So?", message_history=old, conversation_id=session_id
    )

    assert ModelMessagesTypeAdapter.dump_json(old) == before
    assert result.all_messages()[:120] == old
    assert len(result.new_messages()) == 2
    assert len(script.calls[0]) < 60
    assert texts(script.calls[0])[-1] == "So?"


async def test_a_call_that_is_made_again_stays_with_its_refusal(
    system: RunningSystem, session_id: str
) -> None:
    def look(place: str) -> str:
        """Look at a place."""
        if place == "nowhere":
            raise ModelRetry("There is no such place.")
        return "nothing"

    script = Script([looks("one", "nowhere", "hall"), looks("two", "hall"), says("Nothing.")])
    agent = agent_of(script, system.nats_url, tools=[look])

    result = await agent.run("What is there?", conversation_id=session_id)

    assert [faults(call) for call in script.calls] == [[], [], []]
    assert script.calls[-1] == result.all_messages()[:-1]


@pytest.mark.proves("L5", "W12")
@pytest.mark.parametrize("content", ["This is the page.", ["This is the page.", IMAGE]])
async def test_what_a_tool_gives_beside_its_result_is_no_request_of_a_person(
    system: RunningSystem, session_id: str, content: Any
) -> None:
    """Pydantic AI makes it a prompt, and windows after it lacked the question that was asked."""

    def shoot() -> ToolReturn:
        return ToolReturn("Done.", content=content)

    many = [looks(str(number), "hall", "yard") for number in range(12)]
    script = Script([[ToolCallPart("shoot", {}, "one")], *many, says("In Bonn.")])
    agent = agent_of(script, system.nats_url, tokens=2_500, tools=[look, shoot])

    result = await agent.run("Where is order 7341?", conversation_id=session_id)

    parts = [part for message in result.all_messages() for part in message.parts]
    prompts = [part.content for part in parts if isinstance(part, UserPromptPart)]
    assert prompts == ["Where is order 7341?", content]
    assert all("Where is order 7341?" in texts(call) for call in script.calls)
    ever = await system.stored("pydantic", session_id, include_retracted=True)
    assert len(ever) == len(await recorded(system, session_id))


@pytest.mark.proves("L5", "W12")
@pytest.mark.parametrize("prompt", [None, "And where is order 7342?"])
async def test_a_run_that_begins_with_an_approved_call_has_the_request_of_its_person(
    system: RunningSystem, session_id: str, prompt: str | None
) -> None:
    """Beside its result, a call gives a prompt, and so does the person who approves it."""

    def shoot() -> ToolReturn:
        return ToolReturn("Done.", content=["This is the page.", IMAGE])

    many = [looks(str(number), "hall", "yard") for number in range(12)]
    script = Script([[ToolCallPart("shoot", {}, "one")], *many, says("In Bonn."), says("Yes.")])
    agent = agent_of(
        script,
        system.nats_url,
        tokens=2_500,
        tools=[look, Tool(shoot, requires_approval=True)],
        output_type=[str, DeferredToolRequests],
    )
    question = "Where is order 7341?"
    result = await agent.run(question, conversation_id=session_id)

    for given in (DeferredToolResults(approvals={"one": True}), None):
        result = await agent.run(
            "Sure?" if given is None else prompt,
            message_history=result.all_messages(),
            deferred_tool_results=given,
            conversation_id=session_id,
        )

    assert all((prompt or question) in texts(call) for call in script.calls[1:-1])
    ever = await system.stored("pydantic", session_id, include_retracted=True)
    assert len(ever) == len(await recorded(system, session_id))
    of_user = [one for one in ever if one.message["role"] == "user"]
    assert [one.is_meta for one in of_user] == [False, True, *[False] * (2 if prompt else 1)]


@pytest.mark.proves("L5", "W12")
async def test_what_a_person_says_while_tools_run_is_a_request(
    system: RunningSystem, session_id: str
) -> None:
    many = [looks(str(number), "hall", "yard") for number in range(12)]
    script = Script([*many, says("In Bonn.")])
    agent = agent_of(script, system.nats_url, tokens=2_500, tools=[look])
    asked: Any = "Where is order 7341?"

    async with agent.iter(asked, conversation_id=session_id) as run:
        async for _ in run:
            if len(script.calls) == 1 and asked:
                run.enqueue("And where is order 7342?")
                asked = None

    assert all("And where is order 7342?" in texts(call) for call in script.calls[1:])
    ever = await system.stored("pydantic", session_id, include_retracted=True)
    assert len(ever) == len(await recorded(system, session_id))


@pytest.mark.proves("L2")
@pytest.mark.parametrize("is_final", [False, True])
async def test_requests_that_pydantic_ai_merges_later_are_not_published_anew(
    system: RunningSystem, session_id: str, *, is_final: bool
) -> None:
    """It merges what a tool gave and what a person said next when a later run begins."""

    def shoot() -> ToolReturn:
        if not is_final:
            run.enqueue("And where is order 7342?")
        return ToolReturn("Done.", content=["This is the page.", IMAGE])

    shot = ToolCallPart("shoot", {}, "one")
    script = Script([[shot, *_final(12)] if is_final else [shot], *map(_final, range(3))])
    agent = agent_of(
        script, system.nats_url, tools=[shoot], output_type=int, end_strategy="exhaustive"
    )

    async with agent.iter("Where is order 7341?", conversation_id=session_id) as run:
        async for _ in run:
            pass
    result = run.result
    for question in ("Really?", "And then?"):
        history = result.all_messages()
        result = await agent.run(question, message_history=history, conversation_id=session_id)

    ever = await system.stored("pydantic", session_id, include_retracted=True)
    assert len(ever) == len(await recorded(system, session_id))


async def test_a_final_result_by_a_tool_is_recorded_with_the_call(
    system: RunningSystem, session_id: str
) -> None:
    script = Script([looks("one", "hall"), _final(12), _final(9)])
    agent = agent_of(script, system.nats_url, output_type=int)

    first = await agent.run("How many?", conversation_id=session_id)
    second = await agent.run(
        "And now?", message_history=first.all_messages(), conversation_id=session_id
    )

    assert (first.output, second.output) == (12, 9)
    sent = [content for message in contents(script.calls[-1]) for content in message]
    kept = [content for message in contents(second.all_messages()) for content in message]
    assert sent == kept[: len(sent)]
    assert len(sent) == len(kept) - 2
    assert faults(script.calls[-1]) == []
    assert (await recorded(system, session_id))[-1]["role"] == "tool"


def _final(number: int) -> list[Any]:
    return [ToolCallPart("final_result", {"response": number})]


PIXEL = BinaryContent(b"\x89PNG" + b"\x00" * 40, media_type="image/png")
LONG = "word " * 9_000


@pytest.mark.parametrize(
    "history",
    [
        [ModelResponse(parts=[TextPart("Welcome.")])],
        [ModelRequest(parts=[SystemPromptPart("Other."), UserPromptPart("Look.")])],
        [
            ModelRequest(parts=[UserPromptPart("Look.")]),
            ModelResponse(parts=[TextPart("So.")]),
            ModelRequest(parts=[SystemPromptPart("Be kind."), UserPromptPart("Again.")]),
            ModelResponse(parts=[TextPart("So.")]),
        ],
        [ModelRequest(parts=[UserPromptPart(["See", PIXEL])]), ModelResponse(parts=says("A dot."))],
        [
            ModelRequest(parts=[UserPromptPart(["See", PIXEL, LONG])]),
            ModelResponse(parts=says("A dot.")),
        ],
        [
            ModelRequest(parts=[UserPromptPart("Look.")]),
            ModelResponse(parts=looks("a", "hall", "yard")),
            ModelRequest(
                parts=[
                    ToolReturnPart("look", {"crates": [1, 2]}, "a-yard"),
                    ToolReturnPart("look", LONG, "a-hall"),
                    UserPromptPart("This is from the tool."),
                ]
            ),
            ModelResponse(parts=[ThinkingPart("Hm."), TextPart("So.")]),
        ],
        [ModelRequest(parts=[UserPromptPart(LONG)]), ModelResponse(parts=[TextPart(LONG)])],
        [ModelRequest(parts=[UserPromptPart("One")]), ModelRequest(parts=[UserPromptPart("Two")])],
    ],
)
async def test_histories_of_all_kinds_become_valid_input(
    system: RunningSystem, session_id: str, history: list[ModelMessage]
) -> None:
    script = Script([says("Fine.")])

    result = await agent_of(script, system.nats_url, tokens=4_000).run(
        "And so?", message_history=history, conversation_id=session_id
    )

    [asked] = script.calls
    assert faults(asked) == []
    assert texts(asked)[-1] == "And so?"
    assert size(asked) <= 4_400
    assert result.output == "Fine."
    if size(history) < 3_000:
        plain = Script([says("Fine.")])
        await Agent(plain.model, instructions="Be brief.", system_prompt="You count crates.").run(
            "And so?", message_history=history
        )
        assert contents(asked) == contents(plain.calls[0])


@pytest.mark.parametrize("method", METHODS)
async def test_without_turnfold_the_model_gets_the_history(
    session_id: str, warned: Warned, method: str
) -> None:
    script = Script([looks("one", "hall"), says("Fine.")])

    history = await turn(agent_of(script, NOWHERE), method, "A secret?", session_id, [])

    assert script.calls[-1] == history[:-1]
    [warning] = warned()
    assert "the model gets the whole list" in warning
    assert "secret" not in warning


@pytest.mark.proves("G5")
@pytest.mark.timeout(300)
async def test_a_run_goes_on_when_turnfold_goes_away_in_it_and_the_next_turn_catches_up(
    own_system: RestartableSystem, session_id: str
) -> None:
    running = own_system.start()
    script = Script([looks("one", "hall"), looks("two", "yard"), says("Fine.")])

    def look(place: str) -> str:
        """Look at a place, the last one of them without Turnfold."""
        if place == "yard":
            own_system.stop()
        return f"{place} is empty"

    def agent(patience_seconds: float) -> Any:
        capability = TurnfoldCapability(
            "pydantic",
            client=running.nats_url,
            max_tokens=8_000,
            patience_seconds=patience_seconds,
        )
        return Agent(script.model, tools=[look], capabilities=[capability])

    history = await turn(agent(1), "run", "What is there?", session_id, [])
    alone = script.calls[-1]
    own_system.start()
    script.answers.append(says("In both places."))
    caught_up = await turn(
        agent(PATIENCE_SECONDS), "run", "Where did you look?", session_id, history
    )
    stored = await recorded(running, session_id)

    assert alone == history[:-1]
    assert len(history) == 6
    assert script.calls[-1] == caught_up[:-1]
    roles = ["user", *["assistant", "tool"] * 2, "assistant", "user", "assistant"]
    assert [body["role"] for body in stored] == roles
    assert [stored[place]["content"] for place in (2, 4, 5, 7)] == [
        "hall is empty",
        "yard is empty",
        "Fine.",
        "In both places.",
    ]
