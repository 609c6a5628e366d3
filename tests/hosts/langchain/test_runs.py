"""Agents of LangChain whose models see windows: always valid, and the state keeps every message."""

import asyncio
import datetime as dt
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.utils import count_tokens_approximately
from langgraph.checkpoint.memory import InMemorySaver

import turnfold
from tests.hosts.chat import BUDGETS, NOWHERE, PATIENCE_SECONDS, TURNS, look
from tests.hosts.conftest import RestartableSystem, RunningSystem, Warned
from tests.hosts.langchain.models import ScriptedModel, calls, faults
from turnfold.integrations.langchain import TurnfoldMiddleware


def middleware_of(url: str, *, tokens: int = 8_000) -> TurnfoldMiddleware:
    patience = 1 if url == NOWHERE else PATIENCE_SECONDS
    return TurnfoldMiddleware("langchain", client=url, max_tokens=tokens, patience_seconds=patience)


def agent_of(model: ScriptedModel, url: str, *, tokens: int = 8_000, **options: Any) -> Any:
    middleware = middleware_of(url, tokens=tokens)
    options = {"tools": [look], "checkpointer": InMemorySaver(), **options}
    return create_agent(model, system_prompt="Be brief.", middleware=[middleware], **options)


def thread(session_id: str) -> Any:
    return {"configurable": {"thread_id": session_id}}


async def turn(
    agent: Any, text: str, session_id: str, *, is_async: bool, state: Sequence[AnyMessage] = ()
) -> list[AnyMessage]:
    """Run one turn, and return the messages of the state."""
    asked = {"messages": [*state, HumanMessage(text)]}
    if is_async:
        output = await agent.ainvoke(asked, thread(session_id))
    else:
        output = await asyncio.to_thread(agent.invoke, asked, thread(session_id))
    messages: list[AnyMessage] = output["messages"]
    return messages


async def recorded(system: RunningSystem, session_id: str) -> list[dict[str, Any]]:
    """Return the stored messages of a session."""
    return [stored.message for stored in await system.stored("langchain", session_id)]


@pytest.mark.proves("G4")
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_run_with_parallel_calls_is_recorded_and_shown_as_it_is(
    system: RunningSystem, session_id: str, is_async: bool
) -> None:
    model = ScriptedModel(
        script=[calls("one", "hall", "yard", thinking="Both."), AIMessage("Nothing is missing.")]
    )
    agent = agent_of(model, system.nats_url)

    state = await turn(agent, "What is missing?", session_id, is_async=is_async)

    assert model.calls[-1] == [SystemMessage("Be brief."), *state[:-1]]
    stored = await recorded(system, session_id)
    assert [body["role"] for body in stored] == ["user", "assistant", "tool", "tool", "assistant"]
    assert stored[-1]["content"] == "Nothing is missing."
    assert stored[2]["content"] == look("hall")


@pytest.mark.proves("G4")
@pytest.mark.timeout(900)
@pytest.mark.stress
async def test_two_hundred_turns_with_parallel_calls_break_no_pair_at_any_budget(
    system: RunningSystem, session_id: str
) -> None:
    await asyncio.gather(*(_two_hundred_turns(system, session_id, one) for one in BUDGETS))


async def _two_hundred_turns(system: RunningSystem, session_id: str, budget: int) -> None:
    model = ScriptedModel()
    agent = agent_of(model, system.nats_url, tokens=budget, checkpointer=None)
    state: list[AnyMessage] = []

    for number in range(TURNS):
        thinking = "I look at both." if number % 2 else ""
        model.script += [
            calls(f"t{number}", "hall", "yard", thinking=thinking),
            AIMessage(f"Done with {number}."),
        ]
        text = f"Look again, {number}."
        is_async = number % 2 == 1
        state = await turn(agent, text, f"{session_id}-{budget}", is_async=is_async, state=state)
        [request] = [one for one in model.calls[-1] if one.content == text]
        assert isinstance(request, HumanMessage)

    assert [fault for call in model.calls for fault in faults(call)] == []
    assert {str(call[0].content) for call in model.calls} == {"Be brief."}
    assert len(state) == 5 * TURNS
    assert faults(state) == []
    sizes = [count_tokens_approximately(call[1:]) for call in model.calls]
    assert max(sizes) <= budget * 1.1
    assert max(sizes) < count_tokens_approximately(state)


async def test_what_leaves_the_state_leaves_the_session(
    system: RunningSystem, session_id: str
) -> None:
    model = ScriptedModel(script=[AIMessage("In Bonn."), AIMessage("In Kiel."), AIMessage("Yes.")])
    agent = agent_of(model, system.nats_url)
    first = await turn(agent, "Where is it?", session_id, is_async=True)
    await agent.aupdate_state(
        thread(session_id), {"messages": [RemoveMessage(str(one.id)) for one in first]}
    )

    await turn(agent, "Where is the other one?", session_id, is_async=True)
    await turn(agent, "Sure?", session_id, is_async=True)

    assert [body["content"] for body in await recorded(system, session_id)] == [
        "Where is the other one?",
        "In Kiel.",
        "Sure?",
        "Yes.",
    ]


@pytest.mark.parametrize(
    "history",
    [
        [AIMessage("Welcome."), HumanMessage("Hello.")],
        [HumanMessage("Look."), calls("open", "hall"), HumanMessage("Never mind.")],
        [HumanMessage("Look."), ToolMessage("late", tool_call_id="nobody"), HumanMessage("So?")],
        [HumanMessage("One."), SystemMessage("Be kind."), HumanMessage("Two.")],
        [SystemMessage("First."), HumanMessage("Same."), HumanMessage("Same.")],
        [HumanMessage([{"type": "text", "text": "See"}, {"type": "text", "text": "here"}])],
        [HumanMessage("Look."), calls("a", "hall"), ToolMessage("", tool_call_id="a-hall")],
        [
            HumanMessage("Look."),
            calls("b", "hall", "yard"),
            ToolMessage("yard", tool_call_id="b-yard", status="error"),
            ToolMessage("hall", tool_call_id="b-hall"),
            HumanMessage("Go on."),
        ],
        [HumanMessage("word " * 12_000)],
    ],
)
def test_histories_of_all_kinds_become_valid_input(
    system: RunningSystem, session_id: str, history: list[AnyMessage]
) -> None:
    model = ScriptedModel(script=[AIMessage("Fine.")])
    agent = agent_of(model, system.nats_url)

    agent.invoke({"messages": history}, thread(session_id))

    [asked] = model.calls
    assert faults(asked) == []
    texts = [str(one.content) for one in asked]
    assert all(
        str(one.content) in texts or len(str(one.content)) > 40_000
        for one in history
        if isinstance(one, (HumanMessage, SystemMessage))
    )


def broken_call(text: str = "") -> AIMessage:
    """Return an answer with a call whose arguments are cut off, and one that can be made."""
    broken = {"id": "cut-yard", "name": "look", "args": '{"place": "ya', "error": None}
    whole = {"id": "cut-hall", "name": "look", "args": {"place": "hall", "note": text}}
    return AIMessage("", tool_calls=[whole], invalid_tool_calls=[broken])


@pytest.mark.proves("G4")
async def test_a_call_with_broken_arguments_keeps_its_answer(
    system: RunningSystem, session_id: str
) -> None:
    model = ScriptedModel(script=[broken_call(), AIMessage("Once more?"), AIMessage("Fine.")])
    agent = agent_of(model, system.nats_url)

    await turn(agent, "Look.", session_id, is_async=True)
    state = await turn(agent, "Yes.", session_id, is_async=True)

    shown = model.calls[-1]
    assert faults(shown) == []
    assert shown[:3] == [SystemMessage("Be brief."), *state[:2]]
    assert {one.id for one in shown[3:]} == {one.id for one in state[2:-1]}
    stored = await recorded(system, session_id)
    [asked] = [body for body in stored if body.get("tool_calls")]
    assert {call["id"]: call["function"]["arguments"] for call in asked["tool_calls"]}[
        "cut-yard"
    ] == '{"place": "ya'


@pytest.mark.proves("G4")
def test_a_call_with_broken_arguments_stays_broken_beside_shortened_ones(
    system: RunningSystem, session_id: str
) -> None:
    history = [
        HumanMessage("Look."),
        broken_call("word " * 20_000),
        ToolMessage("Cut off.", tool_call_id="cut-yard", status="error"),
        ToolMessage("Empty.", tool_call_id="cut-hall"),
        HumanMessage("So?"),
    ]
    model = ScriptedModel(script=[AIMessage("Fine.")])

    agent_of(model, system.nats_url).invoke({"messages": history}, thread(session_id))

    [asked] = model.calls
    assert faults(asked) == []
    [made] = [one for one in asked if isinstance(one, AIMessage)]
    assert [call["id"] for call in made.invalid_tool_calls] == ["cut-yard"]
    assert count_tokens_approximately(asked) < 12_000


@pytest.mark.proves("G4")
@pytest.mark.parametrize(
    ("block", "told"),
    [
        ({"type": "file", "url": "https://example.org/a.pdf"}, "[media: file]"),
        (
            {
                "type": "file",
                "url": "https://example.org/a.pdf",
                "mime_type": "application/pdf",
            },
            "[media: application/pdf]",
        ),
        (
            {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
            "https://example.org/a.png",
        ),
        ({"type": "image", "source": {"type": "file", "file_id": "f1"}}, "[media: image]"),
        ({"type": "media", "mime_type": "audio/mp3", "data": "AAAA"}, "[media: audio/mp3]"),
        ({"type": "media", "mime_type": "image/png", "file_uri": "gs://a"}, "[media: image/png]"),
        ({"type": "video", "url": "https://example.org/a.mp4"}, "[media: video]"),
        ({"type": "audio", "url": "https://example.org/a.mp3"}, "[media: audio]"),
        ({"type": "text-plain", "text": "It is a crate of bolts."}, "a crate of bolts"),
    ],
)
async def test_content_without_a_form_as_a_chat_message_is_recorded_by_its_kind(
    system: RunningSystem, session_id: str, block: dict[str, Any], told: str
) -> None:
    model = ScriptedModel(script=[AIMessage("A crate.")])
    agent = agent_of(model, system.nats_url, tokens=1_500)
    asked = HumanMessage([{"type": "text", "text": "What is this?"}, block])
    history = [HumanMessage("word " * 4_000), AIMessage("Fine."), asked]

    await agent.ainvoke({"messages": history}, thread(session_id))

    assert model.calls[-1][-1].content == asked.content
    assert count_tokens_approximately(model.calls[-1]) <= 1_650
    stored = await recorded(system, session_id)
    assert len(stored) == 4
    assert "What is this?" in str(stored[2]["content"])
    assert told in str(stored[2]["content"])


@pytest.mark.proves("G4")
async def test_documents_and_made_images_do_not_count_as_text(
    system: RunningSystem, session_id: str
) -> None:
    data = "iVBORw0K" * 50_000
    source = {"type": "base64", "media_type": "application/pdf", "data": data}
    history = [
        HumanMessage(
            [{"type": "text", "text": "Draw it."}, {"type": "document", "source": source}]
        ),
        AIMessage([{"type": "image_generation_call", "id": "i1", "result": data}]),
        HumanMessage("Thanks."),
    ]
    model = ScriptedModel(script=[AIMessage("Fine.")])

    await agent_of(model, system.nats_url).ainvoke({"messages": history}, thread(session_id))

    assert [one.content for one in model.calls[-1][1:]] == [one.content for one in history]


@pytest.mark.proves("G4")
async def test_a_spoken_answer_is_recorded_as_its_transcript(
    system: RunningSystem, session_id: str
) -> None:
    audio = {"id": "audio_1", "data": "UklGRg==", "transcript": "In Ghent.", "expires_at": 1}
    spoken = AIMessage("", additional_kwargs={"audio": audio})
    model = ScriptedModel(script=[spoken, AIMessage("On Friday.")])
    agent = agent_of(model, system.nats_url)

    for text in ("Where is it?", "And when does it come?"):
        await agent.ainvoke({"messages": [HumanMessage(text)]}, thread(session_id))

    assert model.calls[-1][-2].additional_kwargs == {"audio": audio}
    stored = await recorded(system, session_id)
    assert [one["content"] for one in stored[1::2]] == ["In Ghent.", "On Friday."]


def test_an_agent_that_is_a_tool_of_another_has_a_session_of_its_own(
    system: RunningSystem, session_id: str
) -> None:
    inner_model = ScriptedModel(script=[AIMessage("Twelve.")])
    inner = create_agent(
        inner_model,
        [],
        middleware=[middleware_of(system.nats_url)],
    )

    def look(place: str) -> str:
        """Count the crates of a place."""
        answer = inner.invoke({"messages": [HumanMessage(f"Count them in {place}.")]})
        return str(answer["messages"][-1].content)

    model = ScriptedModel(script=[calls("one", "hall"), AIMessage("Twelve in the hall.")])

    state = agent_of(model, system.nats_url, tools=[look]).invoke(
        {"messages": [HumanMessage("How many?")]}, thread(session_id)
    )

    assert len(state["messages"]) == 4
    assert model.calls[-1][1:] == state["messages"][:-1]
    assert [one.content for one in inner_model.calls[0]] == ["Count them in hall."]


async def test_a_deep_agent_works_by_the_same_middleware(
    system: RunningSystem, session_id: str
) -> None:
    model = ScriptedModel()
    agent = create_deep_agent(
        model=model,
        tools=[look],
        middleware=[middleware_of(system.nats_url, tokens=4_000)],
        checkpointer=InMemorySaver(),
    )
    state: list[AnyMessage] = []

    for number in range(12):
        model.script += [calls(f"t{number}", "hall", "yard"), AIMessage(f"Done with {number}.")]
        state = await turn(agent, f"Look again, {number}.", session_id, is_async=True)

    assert len(state) == 5 * 12
    assert [fault for call in model.calls for fault in faults(call)] == []
    sizes = [count_tokens_approximately(call) for call in model.calls]
    assert max(sizes) <= 4_400 < count_tokens_approximately(state)


@pytest.mark.parametrize("is_async", [False, True])
async def test_without_turnfold_the_model_gets_the_messages_of_the_state(
    session_id: str, warned: Warned, is_async: bool
) -> None:
    model = ScriptedModel(script=[calls("one", "hall"), AIMessage("Fine.")])
    agent = agent_of(model, NOWHERE)

    state = await turn(agent, "A secret?", session_id, is_async=is_async)

    assert model.calls[-1] == [SystemMessage("Be brief."), *state[:-1]]
    [warning] = warned()
    assert "the model gets the whole list" in warning
    assert "secret" not in warning


@pytest.mark.proves("G4")
@pytest.mark.timeout(300)
async def test_a_run_goes_on_when_turnfold_goes_away_in_it_and_the_next_turn_catches_up(
    own_system: RestartableSystem, session_id: str
) -> None:
    system = own_system.start()
    model = ScriptedModel(script=[calls("one", "hall"), calls("two", "yard"), AIMessage("Fine.")])

    def look(place: str) -> str:
        """Look at a place, the last one of them without Turnfold."""
        if place == "yard":
            own_system.stop()
        return f"{place} is empty"

    def agent(patience_seconds: float, saver: InMemorySaver) -> Any:
        middleware = TurnfoldMiddleware(
            "langchain",
            client=system.nats_url,
            max_tokens=8_000,
            patience_seconds=patience_seconds,
        )
        return create_agent(model, [look], middleware=[middleware], checkpointer=saver)

    saver = InMemorySaver()
    state = await turn(agent(1, saver), "What is there?", session_id, is_async=True)
    alone = model.calls[-1]
    own_system.start()
    model.script.append(AIMessage("In both places."))
    caught_up = await turn(
        agent(PATIENCE_SECONDS, saver), "Where did you look?", session_id, is_async=True
    )
    stored = await recorded(system, session_id)

    assert alone == state[:-1]
    assert len(state) == 6
    assert model.calls[-1] == caught_up[:-1]
    assert [body["content"] for body in stored] == [
        "What is there?",
        *["", "hall is empty"],
        *["", "yard is empty"],
        *["Fine.", "Where did you look?", "In both places."],
    ]


def test_a_run_without_a_thread_is_an_error_that_says_what_to_pass(system: RunningSystem) -> None:
    middleware = TurnfoldMiddleware("langchain", client=system.nats_url)
    agent = create_agent(ScriptedModel(), [], middleware=[middleware])

    with pytest.raises(turnfold.BadRequest, match="thread_id"):
        agent.invoke({"messages": [HumanMessage("Hello.")]})


@pytest.mark.proves("G4")
async def test_a_message_that_has_no_form_as_a_chat_message_does_not_stop_the_agent(
    system: RunningSystem, session_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    call = {"id": "one", "name": "look", "args": {"when": dt.date(2026, 11, 23)}}
    state = [
        HumanMessage("Look."),
        AIMessage("I look.", tool_calls=[call]),
        ToolMessage("Nothing.", tool_call_id="one"),
    ]
    model = ScriptedModel(script=[AIMessage("Fine.")])

    with caplog.at_level(logging.WARNING, "turnfold.integrations"):
        await turn(agent_of(model, system.nats_url), "And?", session_id, is_async=True, state=state)

    assert len(model.calls[-1]) == 5
    assert "the model gets the whole list" in caplog.text
