"""Batches of events on a real bus: all of them are in the stream or none, each once, and in order."""

import asyncio
import json
from collections.abc import AsyncIterator, Generator, Sequence
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client as Bus
from nats.aio.msg import Msg
from nats.js.api import DiscardPolicy, StreamConfig, SubjectTransform

import turnfold
import turnfold.client.client as client_module
from tests.nats_server import NatsServer, nats_server, subscriptions_known
from turnfold.client import BufferOptions, OutgoingEvent, session_key, turn_event
from turnfold.contracts.subjects import EVENTS_STREAM, EVENTS_SUBJECTS
from turnfold.errors import Conflict, StreamFull, TooLarge, Unavailable

STREAM = StreamConfig(
    name=EVENTS_STREAM, subjects=list(EVENTS_SUBJECTS), duplicate_window=600.0, allow_atomic=True
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[NatsServer, None, None]:
    with nats_server(tmp_path_factory.mktemp("bus"), more="max_payload: 64KB") as running:
        yield running


@pytest.fixture
async def bus(server: NatsServer) -> AsyncIterator[Bus]:
    """A bus with an empty stream of events."""
    connection = await nats.connect(server.url, max_reconnect_attempts=-1, reconnect_time_wait=0.1)
    await connection.jetstream().add_stream(STREAM)
    yield connection
    await server.delete_stream(connection, EVENTS_STREAM)
    await connection.close()


def event(
    event_id: str, session_id: str = "s", *, says: str = "Where is order 7341?"
) -> OutgoingEvent:
    return turn_event(
        session_key("support", session_id), [{"role": "user", "content": says}], event_id=event_id
    )


def events(count: int, name: str = "e") -> list[OutgoingEvent]:
    return [event(f"{name}{number}", f"s{number % 3}") for number in range(count)]


async def stored(bus: Bus) -> list[str]:
    """The ids of the events in the stream, in order; no sequence is without one."""
    stream = bus.jetstream(timeout=10)
    last = (await stream.stream_info(EVENTS_STREAM)).state.last_seq
    messages = [await stream.get_msg(EVENTS_STREAM, seq) for seq in range(1, last + 1)]
    return [json.loads(message.data or b"")["event_id"] for message in messages]


def ids(of: Sequence[OutgoingEvent]) -> list[str]:
    return [one.event_id for one in of]


@pytest.mark.proves("I1", "L3")
async def test_a_batch_is_in_the_stream_in_its_order_when_publishing_returns(
    server: NatsServer, bus: Bus
) -> None:
    batch = events(50)

    async with turnfold.connect(server.url) as client:
        receipts = await client.publish_batch(batch)
        newest = [client.newest_seq(session_key("support", f"s{number}")) for number in range(3)]

    assert await stored(bus) == ids(batch)
    assert [(one.event_id, one.seq) for one in receipts] == [
        (f"e{number}", number + 1) for number in range(50)
    ]
    assert newest == [49, 50, 48]


@pytest.mark.proves("W5")
async def test_an_old_event_that_is_published_again_makes_no_token_older(
    server: NatsServer, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W5: also of a session that was dropped for newer ones: its windows would lack messages."""
    monkeypatch.setattr(client_module, "REMEMBERED_SESSIONS", 2)
    async with turnfold.connect(server.url) as client:
        for number in range(3):
            await client.publish(event(f"first-{number}", "old"))
        for session in ("a", "b", "c"):
            await client.publish(event(session, session))
        await client.publish(event("first-0", "old"))

        assert client.newest_seq(session_key("support", "old")) >= 3

    assert len(await stored(bus)) == 6


async def test_batches_of_none_of_one_and_of_as_many_as_may_be_are_stored(
    server: NatsServer, bus: Bus
) -> None:
    async with turnfold.connect(server.url) as client:
        assert await client.publish_batch([]) == []
        assert [one.seq for one in await client.publish_batch([event("one")])] == [1]
        assert [one.seq for one in await client.publish_batch(events(1_000))] == list(
            range(2, 1_002)
        )
        with pytest.raises(TooLarge, match="1001 events; publish at most 1000 at once"):
            await client.publish_batch(events(1_001, "more"))

    assert (await bus.jetstream().stream_info(EVENTS_STREAM)).state.messages == 1_001


async def test_a_batch_of_one_event_is_published_as_an_event(server: NatsServer, bus: Bus) -> None:
    """The server waits for its disk before it acknowledges a batch; calls of a proxy would wait."""
    async with turnfold.connect(server.url) as client:
        await client.publish_batch([event("one")])
        await client.publish_batch(events(2))

    headers = [(await bus.jetstream().get_msg(EVENTS_STREAM, seq)).headers or {} for seq in (1, 2)]
    assert ["Nats-Batch-Id" in one for one in headers] == [False, True]


@pytest.mark.proves("L1")
async def test_a_batch_that_cannot_go_whole_leaves_nothing(server: NatsServer, bus: Bus) -> None:
    batch = [*events(5), event("large", says="x" * 100_000), *events(5, "later")]

    async with turnfold.connect(server.url) as client:
        with pytest.raises(TooLarge, match="larger than the NATS server accepts"):
            await client.publish_batch(batch)
        assert await stored(bus) == []
        receipts = await client.publish_batch([one for one in batch if one.event_id != "large"])

    assert [(one.seq, one.is_duplicate) for one in receipts] == [
        (number, False) for number in range(1, 11)
    ]


@pytest.mark.proves("L1")
async def test_a_batch_without_its_end_leaves_nothing_when_the_bus_is_killed(
    server: NatsServer, bus: Bus
) -> None:
    opened = await bus.request(
        "turn.completed.support.s",
        b"{}",
        headers={"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1"},
    )
    for number in range(2, 500):
        await bus.publish(
            "turn.completed.support.s",
            b"{}",
            headers={"Nats-Batch-Id": "b", "Nats-Batch-Sequence": str(number)},
        )
    await subscriptions_known(bus)
    server.kill()
    server.start()

    async with turnfold.connect(server.url) as client:
        receipts = await client.publish_batch(events(10))

    assert opened.data == b""
    assert [one.seq for one in receipts] == list(range(1, 11))


@pytest.mark.proves("L1", "L2", "L3")
async def test_batches_outlast_kills_of_the_bus(server: NatsServer, bus: Bus) -> None:
    batches = [events(300, name) for name in "abc"]
    heard = await bus.subscribe("turn.completed.>")
    await subscriptions_known(bus)

    async with turnfold.connect(server.url, timeout_seconds=1, attempts=20) as client:
        for batch in batches:
            publishing = asyncio.create_task(client.publish_batch(batch))
            while (
                json.loads((await heard.next_msg(timeout=10)).data)["event_id"] != batch[0].event_id
            ):
                pass
            server.kill()
            server.start()
            receipts = await publishing
            assert [one.event_id for one in receipts] == ids(batch)

    assert await stored(bus) == [one for batch in batches for one in ids(batch)]


@pytest.mark.proves("L2")
async def test_what_stands_in_a_batch_twice_is_published_once(server: NatsServer, bus: Bus) -> None:
    async with turnfold.connect(server.url) as client:
        receipts = await client.publish_batch([event("a"), event("b"), event("a"), event("c")])

    assert await stored(bus) == ["a", "b", "c"]
    assert [one.seq for one in receipts] == [1, 2, 1, 3]


@pytest.mark.proves("L2", "L3")
async def test_what_was_published_before_is_not_stored_again(server: NatsServer, bus: Bus) -> None:
    async with turnfold.connect(server.url) as client:
        await client.publish_batch([event("a"), event("b")])
        receipts = await client.publish_batch([event("x"), event("b"), event("y")])
        again = await client.publish_batch([event("x"), event("b"), event("y")])

    assert await stored(bus) == ["a", "b", "x", "y"]
    assert [(one.seq, one.is_duplicate) for one in receipts] == [(3, False), (2, True), (4, False)]
    assert [(one.seq, one.is_duplicate) for one in again] == [(3, True), (2, True), (4, True)]


async def test_a_stream_that_takes_no_batches_gets_the_events_one_by_one(
    server: NatsServer, bus: Bus
) -> None:
    await bus.jetstream().update_stream(STREAM.evolve(allow_atomic=False))

    async with turnfold.connect(server.url) as client:
        receipts = await client.publish_batch(events(20))

    assert await stored(bus) == ids(events(20))
    assert [one.seq for one in receipts] == list(range(1, 21))


@pytest.mark.proves("L2")
async def test_a_server_that_knows_no_batches_does_not_pass_other_content_as_a_copy(
    server: NatsServer, bus: Bus
) -> None:
    restored = SubjectTransform(src="old.>", dest=">")
    await bus.jetstream().update_stream(
        STREAM.evolve(subjects=["old.>"], subject_transform=restored)
    )

    async def store(message: Msg) -> None:
        """Store each event by itself, as servers before 2.12 do."""
        headers = {
            name: value
            for name, value in (message.headers or {}).items()
            if not name.startswith("Nats-Batch-")
        }
        reply = await bus.request(f"old.{message.subject}", message.data, headers=headers)
        await message.respond(reply.data)

    subscription = await bus.subscribe("turn.completed.>", cb=store)
    async with turnfold.connect(server.url) as client:
        receipts = await client.publish_batch([event("a"), event("b")])
        again = await client.publish_batch([event("a"), event("c")])
        with pytest.raises(Conflict):
            await client.publish_batch([event("a", says="Where is order 8?"), event("d")])
    await subscription.unsubscribe()

    assert await stored(bus) == ["a", "b", "c"]
    assert [(one.seq, one.is_duplicate) for one in receipts] == [(1, False), (2, False)]
    assert [(one.seq, one.is_duplicate) for one in again] == [(1, True), (3, False)]


@pytest.mark.proves("L1")
async def test_a_stream_without_room_takes_nothing_of_a_batch(server: NatsServer, bus: Bus) -> None:
    await bus.jetstream().update_stream(STREAM.evolve(max_msgs=10, discard=DiscardPolicy.NEW))

    async with turnfold.connect(server.url) as client:
        await client.publish_batch(events(8))
        with pytest.raises(StreamFull):
            await client.publish_batch(events(8, "more"))

    assert await stored(bus) == ids(events(8))


@pytest.mark.proves("L3")
async def test_a_batch_does_not_overtake_events_that_wait_for_the_bus(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        async with turnfold.connect(
            server.url, timeout_seconds=0.5, buffering=BufferOptions(wait_seconds=0.0)
        ) as client:
            # There is no stream yet, so nothing is acknowledged.
            waiting = await client.publish(event("first"))
            with pytest.raises(Unavailable, match="wait for the bus"):
                await client.publish_batch([event("second")])
            async with await nats.connect(server.url) as bus:
                await bus.jetstream().add_stream(STREAM)
                receipts = await client.publish_batch([event("other", "of another session")])
    assert waiting.is_waiting
    assert [one.is_waiting for one in receipts] == [False]


@pytest.mark.proves("L3")
async def test_sessions_in_batches_side_by_side_keep_their_order(
    server: NatsServer, bus: Bus
) -> None:
    sessions = [
        [event(f"{session}-{number}", session) for number in range(25)] for session in "abcdefghij"
    ]

    async with turnfold.connect(server.url) as client:
        count = await client.publish_sessions(sessions, in_flight=4, at_once=10)

    found = await stored(bus)
    assert count == 250
    assert [
        [one for one in found if one.startswith(f"{session}-")] for session in "abcdefghij"
    ] == [ids(one) for one in sessions]
