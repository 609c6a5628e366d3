"""The session of the OpenAI Agents SDK keeps items to the letter, and gives windows of them."""

import asyncio
from typing import Any

import nats
import pytest
from agents.memory import Session

import turnfold
from tests.hosts.chat import tree
from tests.hosts.conftest import RestartableSystem, RunningSystem
from tests.hosts.openai_agents.items import call, output, reasoning, user
from turnfold.integrations.openai_agents import TurnfoldSession


@pytest.fixture
def session(system: RunningSystem, session_id: str) -> TurnfoldSession:
    """An empty session."""
    return TurnfoldSession("host", session_id, client=system.nats_url, max_tokens=8_000)


async def test_it_is_a_session_of_the_sdk(session: TurnfoldSession) -> None:
    assert isinstance(session, Session)
    assert await session.get_items() == []
    assert await session.get_items(limit=3) == []
    assert await session.pop_item() is None


async def test_items_come_back_to_the_letter(session: TurnfoldSession) -> None:
    """Proves G3."""
    items = [user("look"), reasoning("a"), call("a"), call("b"), output("a"), output("b")]

    await session.add_items(items)

    assert await session.get_items() == items
    assert await session.get_items(limit=3) == items[-3:]


@pytest.mark.parametrize("role", ["system", "developer"])
async def test_instructions_that_several_runs_begin_with_keep_their_places(
    session: TurnfoldSession, role: str
) -> None:
    runs = [[{"role": role, "content": f"Day {day}."}, user(f"look {day}")] for day in range(3)]

    for run in runs:
        await session.add_items(run)

    items = [item for run in runs for item in run]
    assert await session.get_items() == await session.get_items(limit=9) == items
    assert [await session.pop_item() for _ in range(3)] == items[:2:-1]
    assert await session.get_items() == items[:3]


async def test_instructions_keep_their_place_after_an_item_that_no_answer_can_carry(
    session: TurnfoldSession,
) -> None:
    large = [{"role": "user", "content": "\x01" * 698_000}]
    more = [{"role": "system", "content": "Day 2."}, user("look")]

    await session.add_items(large)
    await session.add_items(more)

    assert await session.get_items(limit=2) == more


async def test_a_read_may_wait_for_another_time(system: RunningSystem, session_id: str) -> None:
    session = TurnfoldSession("host", session_id, client=system.nats_url, window={"wait_ms": 4_000})
    await session.add_items([user("look")])

    assert await session.get_items() == [user("look")]


async def test_a_client_of_the_loop_serves_without_another_thread(
    system: RunningSystem, session_id: str
) -> None:
    async with turnfold.connect(system.nats_url) as client:
        session = TurnfoldSession("host", session_id, client=client, max_tokens=8_000)
        await session.add_items([user("look"), user("again")])

        assert await session.get_items() == [user("look"), user("again")]
        assert await session.get_items(limit=1) == [user("again")]
        assert await session.pop_item() == user("again")


@pytest.mark.parametrize("invalid", [{"type": "message"}, "text", user("x") | {"new": {1}}])
async def test_a_list_with_an_invalid_item_leaves_nothing_behind(
    session: TurnfoldSession, invalid: Any
) -> None:
    for count in (1, 1_200):
        with pytest.raises(turnfold.BadRequest):
            await session.add_items([user("look")] * count + [invalid])

    assert await session.get_items(limit=3) == []


@pytest.mark.proves("G3", "L1")
async def test_an_item_that_nests_deeper_than_an_event_may_is_refused_and_loses_no_other(
    session: TurnfoldSession,
) -> None:
    tools = [{"name": "draw", "input_schema": tree()}]
    listed: Any = {"type": "mcp_list_tools", "id": "m", "server_label": "s", "tools": tools}
    await session.add_items([user("look")])

    with pytest.raises(turnfold.BadRequest, match="too_deep"):
        await session.add_items([user("again"), listed])
    await session.add_items([user("again")])

    assert await session.get_items() == [user("look"), user("again")]


@pytest.mark.proves("G3")
async def test_a_negative_limit_returns_all_items(session: TurnfoldSession) -> None:
    items = [user(text) for text in "abc"]
    await session.add_items(items)

    assert [await session.get_items(limit) for limit in (-1, -9)] == [items, items]
    assert await session.get_items(0) == []


async def test_each_pop_takes_one_item_also_of_a_response(session: TurnfoldSession) -> None:
    items = [user("look"), reasoning("a"), call("a"), call("b"), output("a"), output("b")]
    await session.add_items(items)

    popped = []
    while (item := await session.pop_item()) is not None:
        popped.append(item)
        assert await session.get_items(limit=10) == items[: -len(popped)]

    assert popped == items[::-1]


@pytest.mark.proves("G3", "L1")
@pytest.mark.parametrize("method", ["pop_item", "get_items"])
async def test_a_pop_that_lost_the_stream_halfway_is_finished_by_the_next_call(
    own_system: RestartableSystem, method: str
) -> None:
    """Its response was retracted, and no place was left for the other items of it."""
    url = own_system.start().nats_url
    session = TurnfoldSession("host", "user-42", client=url, max_tokens=8_000)
    items = [user("look"), reasoning("a"), call("a"), call("b"), output("a"), output("b")]
    await session.add_items(items)
    for item in items[:3:-1]:
        assert await session.pop_item() == item
    bus = await nats.connect(url)
    stream = await bus.jetstream().stream_info("TURNFOLD_EVENTS")

    room = stream.config.evolve(max_msgs=stream.state.messages + 1)
    await bus.jetstream().update_stream(room)
    with pytest.raises(turnfold.Unavailable):
        await session.pop_item()
    await bus.jetstream().update_stream(stream.config)
    await bus.close()

    if method == "pop_item":
        assert await session.pop_item() == items[3]
    assert await session.get_items(limit=10) == items[:3]


async def test_a_cleared_session_is_empty_and_goes_on(session: TurnfoldSession) -> None:
    await session.add_items([user("one"), user("two")])

    await session.clear_session()
    await session.add_items([user("three")])

    assert await session.get_items() == [user("three")]


def test_a_session_serves_one_loop_after_another(session: TurnfoldSession) -> None:
    asyncio.run(session.add_items([user("first loop")]))
    asyncio.run(session.add_items([user("second loop")]))

    assert asyncio.run(session.get_items()) == [user("first loop"), user("second loop")]


@pytest.mark.proves("G3", "L1")
@pytest.mark.parametrize("times", [1, 2])
async def test_a_pop_that_is_cancelled_after_its_retraction_is_finished_by_the_next_call(
    system: RunningSystem, session: TurnfoldSession, session_id: str, times: int
) -> None:
    """A program that ends cancels again what a time limit has cancelled."""
    items = [user("look"), reasoning("a"), call("a"), call("b")]
    await session.add_items(items)
    bus = await nats.connect(system.nats_url)
    retractions = await bus.subscribe(f"turn.retracted.host.{session_id}")
    await bus.flush()

    before = asyncio.all_tasks()
    popping = asyncio.create_task(session.pop_item())
    await retractions.next_msg()
    for _ in range(times):
        popping.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await popping
    await asyncio.gather(*asyncio.all_tasks() - before)
    await bus.close()

    assert await session.pop_item() == items[3]
    assert await session.get_items(limit=10) == items[:3]
