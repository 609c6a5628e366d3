"""Publishing while the bus is away: events wait, in order, and go out as the same events when it is back."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest

import turnfold
from tests.nats_server import NatsServer, nats_server
from tests.running_system import eventually, running_parts, wait_until
from turnfold.client import Client, Receipt
from turnfold.client.buffer import BufferOptions
from turnfold.contracts.subjects import EVENTS_STREAM
from turnfold.errors import NotAllowed, Unavailable

Json = dict[str, Any]
SHORT = BufferOptions(wait_seconds=0.1, close_seconds=0.1)
AGENT_ONLY = """
authorization {
  users: [
    {user: admin, password: admin}
    {user: support, password: secret, permissions: {publish: ["turn.completed.support.>"], subscribe: ["_INBOX_support.>"]}}
  ]
}
"""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    with nats_server(tmp_path) as running:
        await running.make_stream()
        yield running


async def stored(server: NatsServer) -> list[Json]:
    """The events of the stream, in order."""
    connection = await nats.connect(server.url)
    try:
        stream = connection.jetstream()
        state = (await stream.stream_info(EVENTS_STREAM)).state
        return [
            json.loads((await stream.get_msg(EVENTS_STREAM, seq)).data or b"")
            for seq in range(state.first_seq, state.last_seq + 1)
        ]
    finally:
        await connection.close()


async def said(client: Client, text: str, session_id: str = "user-42") -> Receipt:
    return await client.session("support", session_id).turn_completed(
        [{"role": "user", "content": text}]
    )


def texts(events: list[Json], session_id: str = "user-42") -> list[str]:
    return [
        event["messages"][0]["content"] for event in events if event["session_id"] == session_id
    ]


@pytest.mark.proves("R3")
async def test_while_the_bus_answers_a_buffered_event_is_acknowledged_like_any_other(
    server: NatsServer,
) -> None:
    async with turnfold.connect(server.url, buffering=BufferOptions(wait_seconds=20)) as client:
        receipts = [await said(client, "one"), await said(client, "two")]
        waiting = client.unpublished

    assert [(receipt.seq, receipt.is_waiting) for receipt in receipts] == [(1, False), (2, False)]
    assert waiting == ()


@pytest.mark.proves("R3", "L1", "L2", "L3")
async def test_what_was_published_while_the_bus_was_away_follows_in_order_as_the_same_events(
    server: NatsServer,
) -> None:
    numbers = [str(number) for number in range(20)]
    async with turnfold.connect(
        server.url, timeout_seconds=1, attempts=1, buffering=SHORT
    ) as client:
        await said(client, "before")
        server.kill()
        receipts = await asyncio.wait_for(all_said(client, numbers), 30)
        waiting = client.unpublished
        server.start()
        await wait_until(lambda: not client.unpublished)
        await said(client, "after")
        events = await eventually(lambda: stored(server))

    assert all(receipt.is_waiting and receipt.seq == 0 for receipt in receipts)
    assert texts(events) == ["before", *numbers, "after"]
    assert texts(events, "other") == numbers
    assert {event.event_id for event in waiting} == {receipt.event_id for receipt in receipts}
    assert {event["event_id"] for event in events} >= {receipt.event_id for receipt in receipts}


async def all_said(client: Client, numbers: list[str]) -> list[Receipt]:
    return [
        await said(client, number, session_id)
        for number in numbers
        for session_id in ("user-42", "other")
    ]


@pytest.mark.proves("R3")
async def test_a_full_buffer_refuses_the_newest_and_keeps_what_waits(server: NatsServer) -> None:
    async with turnfold.connect(
        server.url,
        timeout_seconds=0.5,
        attempts=1,
        buffering=BufferOptions(max_events=2, wait_seconds=0.1, close_seconds=0.1),
    ) as client:
        server.kill()
        await said(client, "one")
        await said(client, "two")
        with pytest.raises(Unavailable, match=r"buffer is full \(2 events wait for the bus\)"):
            await said(client, "three")
        server.start()
        await wait_until(lambda: not client.unpublished)
        await said(client, "four")

    assert texts(await stored(server)) == ["one", "two", "four"]


@pytest.mark.proves("R3")
async def test_a_buffer_is_full_by_bytes_too(server: NatsServer) -> None:
    async with turnfold.connect(server.url, buffering=BufferOptions(max_bytes=1_000)) as client:
        with pytest.raises(Unavailable, match="buffer is full"):
            await said(client, "x" * 1_000)


@pytest.mark.proves("R3", "C62")
async def test_an_agent_may_start_before_the_bus_does(server: NatsServer) -> None:
    server.kill()
    async with turnfold.connect(
        server.url, timeout_seconds=0.3, attempts=1, buffering=SHORT
    ) as client:
        receipt = await said(client, "while nobody was there")
        with pytest.raises(Unavailable):
            await client.session("support", "user-42").context()
        server.start()
        await wait_until(lambda: not client.unpublished)

    assert receipt.is_waiting
    assert [event["event_id"] for event in await stored(server)] == [receipt.event_id]


@pytest.mark.proves("R3")
async def test_what_could_not_be_published_at_all_is_told_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with turnfold.connect(
        "nats://127.0.0.1:1", timeout_seconds=0.2, attempts=1, buffering=SHORT
    ) as client:
        receipt = await said(client, "nobody is there")

    assert [event.event_id for event in client.unpublished] == [receipt.event_id]
    assert "lost unless published again (1)" in caplog.text
    with pytest.raises(Unavailable, match="the client is closed"):
        await said(client, "too late")


@pytest.mark.proves("R3")
async def test_calls_of_a_client_that_closed_before_it_was_connected_say_so() -> None:
    async with turnfold.connect(
        "nats://127.0.0.1:1", timeout_seconds=1.0, attempts=1, buffering=SHORT
    ) as client:
        session = client.session("support", "s")
        waiting = asyncio.create_task(session.context())
        await asyncio.sleep(0)

    for call in (waiting, session.context()):
        with pytest.raises(Unavailable, match="the client is closed"):
            await call


@pytest.mark.proves("G2")
async def test_calls_of_a_client_that_was_connected_and_closed_say_so(server: NatsServer) -> None:
    async with turnfold.connect(server.url) as client:
        session = client.session("support", "s")

    for call in (session.context(), session.turn_completed([{"role": "user", "content": "hi"}])):
        with pytest.raises(Unavailable, match="the client is closed"):
            await call


@pytest.mark.proves("R3", "G2")
async def test_a_close_that_is_cancelled_leaves_no_connection_and_no_task(tmp_path: Path) -> None:
    kept: list[Client] = []

    async def work(url: str) -> None:
        buffering = BufferOptions(wait_seconds=0.1, close_seconds=60)
        async with turnfold.connect(url, environ={}, buffering=buffering) as client:
            kept.append(client)
            await said(client, "never acknowledged")

    async def is_closing() -> bool:
        try:
            for client in kept:
                await said(client, "one more", "other")
        except Unavailable as error:
            return "closed" in str(error)
        return False

    with nats_server(tmp_path) as without_stream:
        before = len(asyncio.all_tasks())
        working = asyncio.create_task(work(without_stream.url))
        await eventually(is_closing)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        await wait_until(lambda: len(asyncio.all_tasks()) == before)

    assert kept[0].unpublished


@pytest.mark.proves("R3", "X1")
async def test_an_event_that_may_never_be_published_is_told_and_holds_up_no_other(
    tmp_path: Path,
) -> None:
    with nats_server(tmp_path, more=AGENT_ONLY) as guarded:
        await guarded.make_stream(user="admin", password="admin")
        environ = {"TURNFOLD_NATS_USER": "support", "TURNFOLD_NATS_PASSWORD": "secret"}
        buffering = BufferOptions(wait_seconds=20)
        async with turnfold.connect(
            guarded.url, inbox_prefix="_INBOX_support", environ=environ, buffering=buffering
        ) as client:
            with pytest.raises(NotAllowed):
                await client.session("other", "user-42").turn_completed(
                    [{"role": "user", "content": "one"}]
                )
            receipt = await said(client, "two")

    assert receipt.seq == 1


@pytest.mark.proves("R3")
async def test_only_the_first_event_waits_while_the_bus_is_away(server: NatsServer) -> None:
    """G2: an agent waited a second for each event."""
    options = BufferOptions(wait_seconds=0.5, close_seconds=10)
    async with turnfold.connect(
        server.url, environ={}, buffering=options, timeout_seconds=0.5
    ) as client:
        sessions = [client.session("support", f"user-{number}") for number in range(10)]
        server.kill()
        loop = asyncio.get_running_loop()
        began = loop.time()
        away = [await session.turn_completed([{"role": "user"}]) for session in sessions]
        waited = loop.time() - began
        server.start()

        await eventually(lambda: _is_empty(client))
        back = await sessions[0].turn_completed([{"role": "user"}])

    assert all(receipt.is_waiting for receipt in away)
    assert waited < options.wait_seconds * len(sessions)
    assert not back.is_waiting
    assert len(await stored(server)) == 11


async def _is_empty(client: Client) -> bool:
    return not client.unpublished


async def limit_stream(server: NatsServer, most_messages: int) -> None:
    connection = await nats.connect(server.url)
    stream = connection.jetstream()
    config = (await stream.stream_info(EVENTS_STREAM)).config
    config.max_msgs = most_messages
    await stream.update_stream(config)
    await connection.close()


@asynccontextmanager
async def through_a_portal(url: str) -> AsyncGenerator[turnfold.PortalClient, None]:
    client = turnfold.PortalClient(url, environ={}, buffering=SHORT)
    yield client
    await asyncio.to_thread(client.close)


def directly(url: str) -> AbstractAsyncContextManager[Client]:
    return turnfold.connect(url, environ={}, buffering=SHORT)


def shown(window: turnfold.Window) -> list[str]:
    return [body["content"] for body in window.messages]


@pytest.mark.proves("W5", "R3")
@pytest.mark.parametrize("connected", [directly, through_a_portal])
async def test_nothing_is_fresh_while_events_of_the_same_client_wait_in_its_buffer(
    tmp_path: Path,
    connected: Callable[[str], AbstractAsyncContextManager[Client | turnfold.PortalClient]],
) -> None:
    async with (
        running_parts(tmp_path) as parts,
        parts.running("worker"),
        parts.running("query"),
        connected(parts.server.url) as client,
    ):
        session = client.session("support", "user-42")
        await session.turn_completed([{"role": "user", "content": "one"}])
        earlier = await session.context(wait_ms=5_000)
        await limit_stream(parts.server, 1)
        receipt = await session.turn_completed([{"role": "user", "content": "two"}])
        stale = [
            await session.context(),
            await session.context(after="latest", known=earlier),
        ]
        page = await session.history(after="latest")
        await limit_stream(parts.server, -1)
        fresh = await session.context(known=stale[-1], wait_ms=5_000)
        tail = await session.tail(wait_ms=5_000)

    assert earlier.fresh
    assert receipt.is_waiting
    assert [page.fresh, *[window.fresh for window in stale]] == [False, False, False]
    assert (fresh.fresh, shown(fresh)) == (True, ["one", "two"])
    assert [stored.message["content"] for stored in tail] == ["one", "two"]


@asynccontextmanager
async def with_an_event_in_the_buffer(directory: Path) -> AsyncGenerator[Client, None]:
    """A client of which "one" is stored, and "two" waits until the stream takes more."""
    async with (
        running_parts(directory) as parts,
        parts.running("worker"),
        parts.running("query"),
        directly(parts.server.url) as client,
    ):
        session = client.session("support", "user-42")
        await session.turn_completed([{"role": "user", "content": "one"}])
        await limit_stream(parts.server, 1)
        receipt = await session.turn_completed([{"role": "user", "content": "two"}])
        assert receipt.is_waiting
        lifting = asyncio.create_task(limit_stream(parts.server, -1))
        yield client
        await lifting


@pytest.mark.proves("W5", "R3")
async def test_a_tail_waits_for_the_events_in_the_buffer(tmp_path: Path) -> None:
    async with with_an_event_in_the_buffer(tmp_path) as client:
        tail = await client.session("support", "user-42").tail(wait_ms=5_000)

    assert [stored.message["content"] for stored in tail] == ["one", "two"]


@pytest.mark.proves("W5", "R3")
async def test_a_pop_takes_the_newest_message_also_if_it_was_in_the_buffer(tmp_path: Path) -> None:
    async with with_an_event_in_the_buffer(tmp_path) as client:
        session = client.session("support", "user-42")
        popped = await session.pop()
        left = await session.tail(wait_ms=5_000)

    assert [stored.message["content"] for stored in popped] == ["two"]
    assert [stored.message["content"] for stored in left] == ["one"]


@pytest.mark.proves("A6", "R3")
@pytest.mark.parametrize(
    "erase",
    [
        lambda client: client.session("support", "user-42").erase(),
        lambda client: client.erase_agent("support"),
        lambda client: client.erase_agent("support", prefix="user-"),
    ],
)
async def test_what_was_in_the_buffer_does_not_come_back_after_an_erasure(
    tmp_path: Path, erase: Callable[[Client], Awaitable[Json]]
) -> None:
    async with with_an_event_in_the_buffer(tmp_path) as client:
        await erase(client)
        unpublished = client.unpublished
        tail = await client.session("support", "user-42").tail(wait_ms=5_000)

    assert (unpublished, tail) == ((), [])
