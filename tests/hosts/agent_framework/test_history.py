"""Agents of the framework remember what was said, and their models see valid windows (G8)."""

# pyright: reportAttributeAccessIssue=false

import asyncio
import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from agent_framework import Agent, AgentLoopMiddleware, AgentSession, Content, Message, tool

from tests.hosts.agent_framework.models import ScriptedClient, calls, faults, size
from tests.hosts.chat import BUDGETS, TURNS, look
from tests.hosts.conftest import RunningSystem
from turnfold.client import OutgoingEvent, PortalClient, Receipt
from turnfold.core.window.forms import STAND_IN
from turnfold.errors import BadRequest, CannotFit, Unavailable
from turnfold.integrations.agent_framework import NO_RESULT, TurnfoldHistoryProvider

LOOK = tool(approval_mode="never_require")(look)


@pytest.fixture
def history(system: RunningSystem, session_id: str) -> TurnfoldHistoryProvider:
    """The history of an agent that nobody else uses."""
    return TurnfoldHistoryProvider(session_id, client=system.nats_url, max_tokens=8_000)


def agent_of(client: ScriptedClient, history: TurnfoldHistoryProvider) -> Agent:
    return Agent(client=client, instructions="Be brief.", tools=[LOOK], context_providers=[history])


async def asked(agent: Agent, text: str, session: AgentSession, *, is_streamed: bool) -> str:
    """Run one turn in one of the framework's two ways."""
    if not is_streamed:
        return str((await agent.run(text, session=session)).text)
    stream = agent.run(text, session=session, stream=True)
    return "".join([update.text async for update in stream])


def as_dicts(messages: list[Message]) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = json.loads(json.dumps([one.to_dict() for one in messages]))
    return told


@pytest.mark.proves("G8")
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_run_with_parallel_calls_is_remembered_by_the_next_program(
    system: RunningSystem, history: TurnfoldHistoryProvider, session_id: str, is_streamed: bool
) -> None:
    """Proves G8."""
    client = ScriptedClient(calls("one", "hall", "yard"), ["Nothing is missing."])
    first = await asked(
        agent_of(client, history), "What is missing?", AgentSession(session_id="s"),
        is_streamed=is_streamed,
    )  # fmt: skip
    later = ScriptedClient(["I looked at two places."])
    other = TurnfoldHistoryProvider(session_id, client=system.nats_url, max_tokens=8_000)
    second = await asked(
        agent_of(later, other), "Where did you look?", AgentSession(session_id="s"),
        is_streamed=is_streamed,
    )  # fmt: skip

    assert first == "Nothing is missing."
    assert second == "I looked at two places."
    [call] = later.calls
    assert [one.role for one in call] == [
        *("user", "assistant", *["tool"] * (len(call) - 4), "assistant", "user")
    ]
    assert faults(call) == []
    kinds = [content.type for one in call for content in one.contents]
    assert kinds.count("function_call") == kinds.count("function_result") == 2
    assert kinds.count("text_reasoning") == 1
    said = [one["contents"] for one in as_dicts(call)]
    assert said[:-2] == [one["contents"] for one in as_dicts(client.calls[-1])]


@pytest.mark.proves("G8")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.stress
async def test_two_hundred_turns_with_parallel_calls_break_no_pair(
    system: RunningSystem, session_id: str, budget: int
) -> None:
    """Proves G8."""
    client = ScriptedClient()
    history = TurnfoldHistoryProvider(session_id, client=system.nats_url, max_tokens=budget)
    agent = agent_of(client, history)
    session = AgentSession(session_id="stress")

    for turn in range(TURNS):
        client.script += [calls(f"t{turn}", "hall", "yard"), [f"Done with {turn}."]]
        await asked(agent, f"Look again, {turn}.", session, is_streamed=turn % 2 == 1)

    assert [fault for call in client.calls for fault in faults(call)] == []
    # A run begins with a window; the calls of the run itself are added to it.
    assert max(map(size, client.calls[::2])) <= budget * 1.1
    assert [call[-1].text for call in client.calls[::2]] == [
        f"Look again, {turn}." for turn in range(TURNS)
    ]


@pytest.mark.proves("G8")
async def test_messages_come_back_to_the_letter(history: TurnfoldHistoryProvider) -> None:
    """Proves G8."""
    image = Content.from_data(b"\x89PNG", "image/png")
    call = Content.from_function_call("c1", "look", arguments='{"place": "hall"}', id="one")
    messages = [
        Message("system", ["Be kind."]),
        Message("user", ["Look at ", image, "this: \ud83d"], author_name="Ada", message_id="m1"),
        Message("assistant", [Content.from_text_reasoning(text="So."), call, call_of("c2")]),
        Message("tool", [result_of("c1"), result_of("c2")], additional_properties={"a": [1, None]}),
        Message("assistant", ["Done.", Content.from_usage({"input_token_count": 7})]),
        Message("user", [Content.from_function_approval_response(True, "a1", call_of("c3"))]),
        Message("assistant", []),
        Message("user", ["So?"]),
    ]

    await history.save_messages("s", messages)

    assert as_dicts(await history.get_messages("s")) == as_dicts(messages)


@tool(approval_mode="always_require")  # type: ignore[untyped-decorator]
def visit(place: str) -> str:
    """Go to a place."""
    return f"{place} is open"


@pytest.mark.proves("G8")
async def test_parallel_calls_that_share_an_id_keep_their_results(
    history: TurnfoldHistoryProvider,
) -> None:
    """Proves G8: the framework's client of Ollama uses the name of the tool for the id."""
    places = ("hall", "yard")
    calls = [Content.from_function_call("look", "look", arguments={"at": one}) for one in places]
    results = [Content.from_function_result("look", result=one) for one in places]
    said = [
        Message("user", [Content.from_text("Look.")]),
        Message("assistant", calls),
        Message("tool", results),
        Message("assistant", [Content.from_text("Done.")]),
    ]

    await history.save_messages("s", said)

    assert as_dicts(await history.get_messages("s")) == as_dicts(said)


@pytest.mark.proves("G8")
@pytest.mark.parametrize("answers", [1, 2])
async def test_calls_that_wait_for_approval_are_made_once_it_is_given(
    history: TurnfoldHistoryProvider, answers: int
) -> None:
    asked_for = [
        Content.from_function_call(f"c-{one}", "visit", arguments={"place": one})
        for one in ("hall", "yard")
    ]
    client = ScriptedClient(asked_for, *[["Both are open."]] * 2)
    agent = Agent(client=client, tools=[visit], context_providers=[history])
    session = AgentSession(session_id="s")

    response = await agent.run("Go to both.", session=session)
    while requests := response.user_input_requests:
        given = [one.to_function_approval_response(True) for one in requests[:answers]]
        response = await agent.run(Message("user", given), session=session)
    await agent.run("Thanks.", session=session)

    sent = client.calls[-1]
    assert [fault for call in (client.calls[1], sent) for fault in faults(call)] == []
    results = [one for told in sent for one in told.contents if one.type == "function_result"]
    assert [one.result for one in results] == ["hall is open", "yard is open"]


@pytest.mark.proves("G8")
async def test_the_history_of_each_service_call_has_one_result_for_each_call(
    history: TurnfoldHistoryProvider,
) -> None:
    client = ScriptedClient(calls("one", "hall", "yard"), calls("two", "roof"), ["Nothing."])
    agent = Agent(
        client=client,
        tools=[LOOK],
        context_providers=[history],
        require_per_service_call_history_persistence=True,
    )

    await agent.run("What is missing?", session=AgentSession(session_id="s"))

    assert [faults(call) for call in client.calls] == [[], [], []]
    results = [
        one.result for told in client.calls[-1] for one in told.contents if one.result is not None
    ]
    assert len(results) == 3
    assert all("crate 99" in str(one) for one in results)


@pytest.mark.proves("G8")
async def test_calls_that_nobody_answers_do_not_stand_open_beside_a_new_request(
    history: TurnfoldHistoryProvider,
) -> None:
    saved = [
        Message("user", ["Look."]),
        Message("assistant", [call_of("c1"), call_of("c2")]),
        Message("tool", [result_of("c1")]),
    ]
    await history.save_messages("s", saved)
    client = ScriptedClient(["Fine."], ["Sure."])
    agent = agent_of(client, history)
    session = AgentSession(session_id="s")

    assert as_dicts(await history.get_messages("s")) == as_dicts(saved)
    for text in ("Never mind.", "Sure?"):
        await agent.run(text, session=session)

    assert [faults(call) for call in client.calls] == [[], []]
    assert [call[-1].text for call in client.calls] == ["Never mind.", "Sure?"]


def call_of(name: str) -> Content:
    return Content.from_function_call(name, "look", arguments={"place": name})


def result_of(name: str) -> Content:
    return Content.from_function_result(name, result=f"result {name}")


async def test_values_that_are_no_json_are_saved_as_text(history: TurnfoldHistoryProvider) -> None:
    at = datetime(2026, 11, 29, tzinfo=UTC)
    call = Content.from_function_call("c1", "look", arguments={"at": at})
    thought = Content.from_text_reasoning(text="So.", additional_properties={"at": at})

    await history.save_messages(
        "s", [Message("user", ["When?"]), Message("assistant", [thought, call])]
    )

    _, called = await history.get_messages("s")
    assert called.contents[0].additional_properties == {"at": str(at)}
    assert called.contents[1].arguments == {"at": str(at)}


async def test_a_transcript_that_is_saved_again_is_stored_once(
    history: TurnfoldHistoryProvider,
) -> None:
    turn = [
        Message("user", ["Look."]),
        Message("assistant", [call_of("c1"), call_of("c2")]),
        Message("tool", [result_of("c1"), result_of("c2")]),
    ]
    more = [Message("assistant", ["Done."]), Message("user", ["Again."])]

    await history.save_messages("s", turn)
    await history.save_messages("s", [*turn, *more])
    await history.save_messages("s", [Message("user", ["Again."])])

    texts = as_dicts([*turn, *more, more[-1]])
    assert as_dicts(await history.get_messages("s")) == texts


async def test_an_exchange_that_is_repeated_is_stored_each_time(
    history: TurnfoldHistoryProvider,
) -> None:
    # As the framework's client of Ollama does, which uses the name of the tool for the id.
    looked = [
        Message("user", ["Look."]),
        Message("assistant", [Content.from_function_call("look", "look")]),
        Message("tool", [result_of("look")]),
        Message("assistant", ["Done."]),
    ]
    turns = [
        *[looked] * 3,
        [Message("user", ["Water the plants."]), Message("assistant", ["Done."])],
        *[[Message("user", ["Next."]), Message("assistant", ["Done."])] for _ in range(3)],
    ]

    for turn in turns:
        await history.save_messages("s", turn)

    said = [message for turn in turns for message in turn]
    assert as_dicts(await history.get_messages("s")) == as_dicts(said)


async def test_a_run_that_no_event_can_hold_is_saved(history: TurnfoldHistoryProvider) -> None:
    names = [f"c{number}" for number in range(45)]
    results = [Content.from_function_result(name, result="x" * 100_000) for name in names]
    run = [
        Message("user", ["Look."]),
        Message("assistant", [call_of(name) for name in names]),
        Message("tool", results),
        Message("assistant", ["Done."]),
    ]

    await history.save_messages("s", run)

    assert (await history.get_messages("s"))[-1].text == "Done."


async def test_without_a_session_there_is_nothing_to_read_and_nowhere_to_save(
    history: TurnfoldHistoryProvider,
) -> None:
    assert await history.get_messages(None) == []
    assert await history.get_messages("unknown") == []
    with pytest.raises(BadRequest, match="has no session"):
        await history.save_messages(None, [Message("user", ["Hello."])])
    await history.save_messages("s", [])
    assert await history.get_messages("s") == []


async def test_a_window_that_no_budget_allows_says_what_it_needs(
    system: RunningSystem, session_id: str
) -> None:
    small = TurnfoldHistoryProvider(session_id, client=system.nats_url, max_tokens=10)
    await small.save_messages("s", [Message("user", ["word " * 500])])

    with pytest.raises(CannotFit) as caught:
        await small.get_messages("s")

    assert caught.value.needed_tokens


async def test_instructions_that_several_runs_begin_with_keep_their_places(
    history: TurnfoldHistoryProvider,
) -> None:
    """Proves G8."""
    runs = [
        [Message("system", [f"Day {day}."]), Message("user", ["Look."]), Message("assistant", ["Done."])]
        for day in range(3)
    ]  # fmt: skip

    for run in runs:
        await history.save_messages("s", run)

    said = [message for run in runs for message in run]
    assert as_dicts(await history.get_messages("s")) == as_dicts(said)


async def test_instructions_of_a_long_first_save_keep_their_places(
    system: RunningSystem, session_id: str
) -> None:
    """It takes two events, of which the second begins with instructions."""
    history = TurnfoldHistoryProvider(session_id, client=system.nats_url, max_tokens=100_000)
    said = [Message("user", [f"Note {number}."]) for number in range(998)]
    said = [Message("system", ["Be kind."]), *said, Message("system", ["Be brief."])]

    await history.save_messages("s", [*said, Message("user", ["So?"])])

    shown = [message.text for message in await history.get_messages("s")]
    assert shown[0] == "Be kind."
    assert shown[-2:] == ["Be brief.", "So?"]


async def test_a_save_that_fails_half_way_leaves_nothing_that_nobody_can_read(
    history: TurnfoldHistoryProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = PortalClient.publish

    async def failing(client: PortalClient, event: OutgoingEvent) -> Receipt:
        if event.kind == "turn.retracted":
            raise Unavailable("the bus is away")
        return await publish(client, event)

    monkeypatch.setattr(PortalClient, "publish", failing)
    said = [Message("user", ["Look."])]
    await history.save_messages("s", said)
    more = [Message("system", ["Day 2."]), Message("user", ["So?"])]
    with suppress(Unavailable):
        await history.save_messages("s", more)

    shown = await history.get_messages("s")
    assert as_dicts(shown) in (as_dicts(said), as_dicts([*said, *more]))


async def test_a_read_may_wait_for_another_time(system: RunningSystem, session_id: str) -> None:
    history = TurnfoldHistoryProvider(session_id, client=system.nats_url, window={"wait_ms": 4_000})
    await history.save_messages("s", [Message("user", ["Look."])])

    assert [message.text for message in await history.get_messages("s")] == ["Look."]


async def test_sessions_that_run_at_once_stay_apart(history: TurnfoldHistoryProvider) -> None:
    names = [f"s{number}" for number in range(10)]

    await asyncio.gather(
        *(history.save_messages(one, [Message("user", [f"I am {one}."])]) for one in names)
    )
    read = await asyncio.gather(*(history.get_messages(one) for one in names))

    assert [[message.text for message in messages] for messages in read] == [
        [f"I am {one}."] for one in names
    ]


def test_a_call_without_a_result_reads_as_in_every_window() -> None:
    assert NO_RESULT == STAND_IN


@pytest.mark.proves("W12")
async def test_what_a_loop_says_as_the_user_is_no_request_of_a_person(
    system: RunningSystem, history: TurnfoldHistoryProvider, session_id: str
) -> None:
    """Each input of the loop would be the newest request, and what was asked for would leave."""
    loop = AgentLoopMiddleware(
        should_continue=lambda **_: True, record_feedback=lambda **_: "Half.", max_iterations=3
    )
    client = ScriptedClient(["One."], ["Two."], ["Three."])
    agent = Agent(client=client, context_providers=[history], middleware=[loop])

    await agent.run("Count to three.", session=AgentSession(session_id="s"))

    stored = await system.stored(session_id, "s")
    of_user = [one for one in stored if one.message["role"] == "user"]
    assert [one.is_meta for one in of_user] == [False, *[True] * 4]


@pytest.mark.proves("W12")
async def test_progress_that_a_person_tells_is_a_request(
    system: RunningSystem, history: TurnfoldHistoryProvider, session_id: str
) -> None:
    text = "Progress so far:\n- the hall is done\n\nNow look into the yard."
    await history.save_messages("s", [Message("user", [text]), Message("assistant", ["Empty."])])

    stored = await system.stored(session_id, "s")
    assert [one.is_meta for one in stored] == [False, False]
