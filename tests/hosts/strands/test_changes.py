"""Messages that Strands changes in place, and those that a program restores without their ids."""

import copy
import json
import logging
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from strands import Agent, tool

from tests.hosts.chat import tree
from tests.hosts.conftest import RunningSystem
from tests.hosts.strands.models import Message, ScriptedModel, calls, faults, says
from turnfold.client import connect
from turnfold.integrations.strands import TurnfoldConversationManager

SECRET = "My card is 4929."
REDACTED = "[User input redacted.]"


class GuardedModel(ScriptedModel):
    """A model whose provider redacts the input of the call that has the secret."""

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncGenerator[Any, None]:
        if "4929" in str(messages[-1]):
            yield {"redactContent": {"redactUserContentMessage": REDACTED}}
        async for chunk in super().stream(messages):
            yield chunk


@tool  # type: ignore[untyped-decorator]
def look(place: str) -> str:
    """Look at a place."""
    return SECRET if place == "safe" else f"{place} is empty"


def agent_of(
    model: ScriptedModel, session_id: str, url: str, *, tokens: int = 8_000, **options: Any
) -> Any:
    manager = TurnfoldConversationManager("strands", session_id, client=url, max_tokens=tokens)
    options |= {"conversation_manager": manager, "callback_handler": None}
    return Agent(model=model, tools=[look], **options)


async def recorded(
    system: RunningSystem, session_id: str, *, include_retracted: bool = False
) -> list[str]:
    """Return the text of each message; of a call, its arguments."""
    stored = await system.stored("strands", session_id, include_retracted=include_retracted)
    messages = [one.message for one in stored]
    return [one["content"] or one["tool_calls"][0]["function"]["arguments"] for one in messages]


def saved(messages: list[Message]) -> list[Message]:
    """Return messages as an application may keep them: with no more than the API needs."""
    return [{name: copy.deepcopy(one[name]) for name in ("role", "content")} for one in messages]


@pytest.mark.proves("L1")
async def test_a_history_that_is_restored_without_ids_is_not_published_again(
    system: RunningSystem, session_id: str
) -> None:
    model = ScriptedModel(calls("one", "hall", "yard"), says("Both are."), says("Yes."))
    agent = agent_of(model, session_id, system.nats_url)
    await agent.invoke_async("Is one empty?")
    await agent.invoke_async("Yes?")
    later = ScriptedModel(says("Yes."), says("Sure."))
    restored = agent_of(later, session_id, system.nats_url, messages=saved(agent.messages))

    await restored.invoke_async("Yes?")
    await restored.invoke_async("Sure?")

    assert [faults(call) for call in later.calls] == [[], []]
    assert await recorded(system, session_id) == [
        *("Is one empty?", '{"place": "hall"}', "hall is empty", "yard is empty", "Both are."),
        *("Yes?", "Yes.", "Yes?", "Yes.", "Sure?", "Sure."),
    ]


@pytest.mark.proves("L1")
async def test_a_restored_window_without_ids_is_not_published_as_messages(
    system: RunningSystem, session_id: str
) -> None:
    model = ScriptedModel(*[says(f"{number} " + "word " * 300) for number in range(12)])
    agent = agent_of(model, session_id, system.nats_url, tokens=1_500)
    for number in range(12):
        await agent.invoke_async(f"Tell {number}.")
    messages = saved(agent.messages)
    assert len(messages) < 20
    later = ScriptedModel(says("Fine."))

    restored = agent_of(later, session_id, system.nats_url, tokens=1_500, messages=messages)
    await restored.invoke_async("Well?")

    texts = await recorded(system, session_id)
    assert [text[:8] for text in texts[::2]] == [f"Tell {n}."[:8] for n in range(12)] + ["Well?"]


ROOMS = [calls("one", "hall"), calls("two", "yard " * 1_500), says("Both are."), says("Sure.")]
HERON = "The heron sleeps in the attic of Maple Street. " + "word " * 200
TALES = [says(f"{number} " + "word " * 300) for number in range(12)]


@pytest.mark.proves("L2")
@pytest.mark.parametrize(
    ("script", "asked", "tokens", "has"),
    [
        (ROOMS, ["Is one empty?", "Sure?"], 1_500, "[TRUNCATED original"),
        (TALES, [HERON, *"0123456789", "Where is the heron?"], 2_500, "# Earlier messages\\n"),
    ],
)
async def test_a_restored_window_without_ids_is_recognized_by_what_it_shows_of_messages(
    system: RunningSystem,
    session_id: str,
    script: list[Any],
    asked: list[str],
    tokens: int,
    has: str,
) -> None:
    agent = agent_of(ScriptedModel(*script), session_id, system.nats_url, tokens=tokens)
    for text in asked:
        await agent.invoke_async(text)
    messages = saved(agent.messages)
    assert has in str(messages)
    stored = await recorded(system, session_id)
    model = ScriptedModel(says("Fine."))

    later = agent_of(model, session_id, system.nats_url, tokens=tokens, messages=messages)
    await later.invoke_async("Well?")

    assert await recorded(system, session_id) == [*stored, "Well?", "Fine."]
    assert faults(model.calls[-1]) == []


@pytest.mark.proves("L1")
async def test_new_messages_before_one_that_repeats_a_stored_one_are_published(
    system: RunningSystem, session_id: str
) -> None:
    first = agent_of(ScriptedModel(says("Yes.")), session_id, system.nats_url)
    await first.invoke_async("One?")
    texts = ["Two?", "No.", "Three?", "Yes."]
    messages = [
        {"role": ("user", "assistant")[place % 2], "content": says(text)}
        for place, text in enumerate(texts)
    ]

    later = agent_of(ScriptedModel(says("So.")), session_id, system.nats_url, messages=messages)
    await later.invoke_async("New?")

    assert await recorded(system, session_id) == ["One?", "Yes.", *texts, "New?", "So."]


@pytest.mark.proves("L1")
async def test_new_messages_with_ids_are_published_before_and_after_stored_texts(
    system: RunningSystem, session_id: str
) -> None:
    first = agent_of(ScriptedModel(says("Yes.")), session_id, system.nats_url)
    await first.invoke_async("One?")
    messages = [
        {"role": "user", "content": says("One?"), "tracking_id": f"{session_id}-1"},
        {"role": "assistant", "content": says("Yes."), "tracking_id": f"{session_id}-2"},
    ]

    later = agent_of(ScriptedModel(says("So.")), session_id, system.nats_url, messages=messages)
    await later.invoke_async("New?")

    texts = ["One?", "Yes.", "One?", "Yes.", "New?", "So."]
    assert await recorded(system, session_id) == texts


@pytest.mark.proves("L1")
async def test_a_history_that_was_saved_before_its_last_answer_is_not_published_again(
    system: RunningSystem, session_id: str
) -> None:
    agent = agent_of(ScriptedModel(says("A."), says("B.")), session_id, system.nats_url)
    await agent.invoke_async("One?")
    await agent.invoke_async("Two?")
    model = ScriptedModel(says("C."))

    later = agent_of(model, session_id, system.nats_url, messages=saved(agent.messages)[:3])
    await later.invoke_async("Three?")

    assert await recorded(system, session_id) == ["One?", "A.", "Two?", "B.", "Three?", "C."]
    assert faults(model.calls[-1]) == []


@pytest.mark.proves("L1", "L12")
async def test_agents_that_begin_with_the_same_messages_have_sessions_of_their_own(
    system: RunningSystem, session_id: str
) -> None:
    first = agent_of(ScriptedModel(says("In Ghent.")), session_id, system.nats_url)
    await first.invoke_async("I live in Ghent.")
    model = ScriptedModel(says("There."))
    branch = agent_of(
        model, f"{session_id}-b", system.nats_url, messages=copy.deepcopy(first.messages)
    )

    await branch.invoke_async("Where?")

    assert len(model.calls[-1]) == 3
    assert await recorded(system, f"{session_id}-b") == [
        *("I live in Ghent.", "In Ghent.", "Where?", "There.")
    ]


@pytest.mark.proves("L1")
async def test_messages_that_cannot_be_stored_stay_with_the_agent(
    system: RunningSystem, session_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    result = {"toolUseId": "one", "status": "success", "content": [{"text": "12 boxes"}]}
    messages = [
        {"role": "user", "content": says("Draw it.")},
        {
            "role": "assistant",
            "content": [{"toolUse": {"toolUseId": "one", "name": "look", "input": tree()}}],
        },
        {"role": "user", "content": [{"toolResult": result}]},
        {"role": "assistant", "content": says("Drawn.")},
    ]
    model = ScriptedModel(says("Twelve."))
    agent = agent_of(model, session_id, system.nats_url, messages=copy.deepcopy(messages))

    with caplog.at_level(logging.WARNING, "turnfold.integrations"):
        await agent.invoke_async("How many?")

    assert saved(model.calls[-1])[:4] == messages
    assert len(agent.messages) == 6
    assert "BadRequest" in caplog.text


@pytest.mark.proves("L1")
async def test_messages_that_turnfold_did_not_store_are_published_again_in_their_order(
    system: RunningSystem, session_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = agent_of(ScriptedModel(says("A.")), session_id, system.nats_url)
    await first.invoke_async("One?")
    await recorded(system, session_id)
    async with connect(system.nats_url, environ={}) as client:
        await client.session("strands", session_id).erase()
    model = ScriptedModel(says("B."), says("C."), says("D."))
    agent = agent_of(model, session_id, system.nats_url, messages=first.messages)

    # Events that were erased are not stored under their ids again.
    with caplog.at_level(logging.WARNING, "turnfold.integrations"):
        await agent.invoke_async("Two?")
    assert len(model.calls[-1]) == 3
    assert "2 of 3 events are not stored" in caplog.text
    caplog.clear()
    await agent.invoke_async("Three?")
    await agent.invoke_async("Four?")

    texts = ["One?", "A.", "Two?", "B.", "Three?", "C.", "Four?", "D."]
    assert await recorded(system, session_id) == texts
    assert [one["content"][0]["text"] for one in model.calls[-1]] == texts[:-1]
    assert not caplog.records


@pytest.mark.proves("L1", "A6")
async def test_after_its_session_was_erased_an_agent_goes_on_with_windows_of_what_is_new(
    system: RunningSystem, session_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = ScriptedModel(*[says(f"{number} " + "word " * 200) for number in range(9)])
    agent = agent_of(model, session_id, system.nats_url, tokens=700)
    await agent.invoke_async(SECRET)
    await recorded(system, session_id)
    async with connect(system.nats_url, environ={}) as client:
        await client.session("strands", session_id).erase()

    with caplog.at_level(logging.WARNING, "turnfold.integrations"):
        for number in range(1, 9):
            await agent.invoke_async(f"Tell {number}.")

    assert not caplog.records
    assert "4929" not in json.dumps(model.calls[1:])
    assert max(map(len, model.calls)) < 9
    texts = await recorded(system, session_id)
    assert texts[0] == "Tell 1."
    assert len(texts) == 16


@pytest.mark.proves("G1")
async def test_what_a_guardrail_redacts_leaves_the_session(
    system: RunningSystem, session_id: str
) -> None:
    model = GuardedModel(says("Hello."), says("I cannot."), says("Fine."))
    agent = agent_of(model, session_id, system.nats_url)

    for text in ("Hi.", SECRET, "Never mind."):
        await agent.invoke_async(text)

    assert [one["content"][0]["text"] for one in model.calls[-1]] == [
        *("Hi.", "Hello.", REDACTED, "I cannot.", "Never mind.")
    ]
    assert await recorded(system, session_id) == [
        *("Hi.", "Hello.", REDACTED, "I cannot.", "Never mind.", "Fine.")
    ]


@pytest.mark.proves("G1")
async def test_a_redacted_result_stays_the_result_of_its_call(
    system: RunningSystem, session_id: str
) -> None:
    model = GuardedModel(calls("one", "hall", "safe"), says("I cannot."), says("Fine."))
    agent = agent_of(model, session_id, system.nats_url)

    await agent.invoke_async("Look.")
    await agent.invoke_async("Never mind.")

    assert [faults(call) for call in model.calls] == [[], [], []]
    assert await recorded(system, session_id) == [
        *("Look.", '{"place": "hall"}', REDACTED, REDACTED, "I cannot.", "Never mind.", "Fine.")
    ]


@pytest.mark.proves("G1")
async def test_a_request_that_is_redacted_beside_texts_of_turnfold_leaves_the_session(
    system: RunningSystem, session_id: str
) -> None:
    answers = [says(f"{number} " + "word " * 900) for number in range(3)]
    model = GuardedModel(*answers, says("I cannot."), says("Fine."))
    agent = agent_of(model, session_id, system.nats_url, tokens=700)
    for number in range(3):
        await agent.invoke_async(f"Tell {number}.")

    await agent.invoke_async(SECRET)
    assert len(model.calls[-1][-1]["content"]) > 1
    await agent.invoke_async("Never mind.")

    assert "4929" not in json.dumps(model.calls[-1])
    texts = await recorded(system, session_id)
    assert texts[6:] == [REDACTED, "I cannot.", "Never mind.", "Fine."]
    assert len(texts) == 10


@pytest.mark.proves("G1")
async def test_a_message_that_was_changed_later_keeps_its_place(
    system: RunningSystem, session_id: str
) -> None:
    model = ScriptedModel(calls("one", "hall"), says("Empty."), says("Yes."), says("Bye."))
    agent = agent_of(model, session_id, system.nats_url)
    await agent.invoke_async(SECRET)
    agent.messages[0]["content"][0]["text"] = REDACTED

    await agent.invoke_async("Sure?")
    texts = [REDACTED, '{"place": "hall"}', "hall is empty", "Empty.", "Sure?", "Yes."]
    assert await recorded(system, session_id) == texts
    agent.messages[0]["content"][0]["text"] = SECRET
    await agent.invoke_async("Bye.")

    assert [faults(call) for call in model.calls] == [[]] * 4
    assert await recorded(system, session_id) == [SECRET, *texts[1:], "Bye.", "Bye."]


@pytest.mark.proves("G1")
async def test_a_message_that_is_changed_before_a_gap_of_the_window_lands_behind_it(
    system: RunningSystem, session_id: str
) -> None:
    looks = [calls(f"c{number}", "hall " * 60) for number in range(12)]
    model = ScriptedModel(*looks, says("All."), says("Bye."))
    agent = agent_of(model, session_id, system.nats_url, tokens=700)
    await agent.invoke_async("Tell all.")
    gap = 2 * 12 - (len(agent.messages) - 2)
    assert gap > 0
    agent.messages[0]["content"][-1]["text"] = REDACTED
    await agent.invoke_async("Bye.")

    texts = await recorded(system, session_id)
    assert texts[gap] == REDACTED
    assert len(texts) == 1 + 2 * 12 + 3
    assert len(set(texts)) == 5
    assert faults(model.calls[-1]) == []


@pytest.mark.proves("G1")
async def test_a_message_that_grows_is_published_as_it_is_then(
    system: RunningSystem, session_id: str
) -> None:
    model = ScriptedModel(says("Yes."), says("Well."))
    agent = agent_of(model, session_id, system.nats_url)
    await agent.invoke_async("Sure?")
    last = agent.messages[-1]
    agent.messages[-1] = {**last, "content": [*last["content"], {"text": "And more."}]}

    await agent.invoke_async("What?")

    assert [one["content"] for one in model.calls[-1]] == [
        [{"text": "Sure?"}], [{"text": "Yes."}, {"text": "And more."}], [{"text": "What?"}]
    ]  # fmt: skip


@pytest.mark.proves("G1")
async def test_points_of_caches_that_move_change_no_message(
    system: RunningSystem, session_id: str
) -> None:
    model = ScriptedModel(says("Yes."), says("Well."), says("Bye."))
    agent = agent_of(model, session_id, system.nats_url)

    for text in ("Sure?", "What?", "Go."):
        for message in agent.messages:
            message["content"] = [one for one in message["content"] if "cachePoint" not in one]
        await agent.invoke_async([{"text": text}, {"cachePoint": {"type": "default"}}])

    texts = await recorded(system, session_id, include_retracted=True)
    assert texts == ["Sure?", "Yes.", "What?", "Well.", "Go.", "Bye."]
