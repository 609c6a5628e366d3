"""Connections and streams on a real nats-server."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from faststream.nats import NatsBroker
from nats.aio.client import Client
from nats.js.api import StorageType, StreamConfig

from tests.nats_server import NatsServer, nats_server
from turnfold.bus import broker_options, connect, connect_options, differences, provision, server_warnings, stream_created, wait_for_streams
from turnfold.errors import StartError
from turnfold.settings import Settings


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with nats_server(tmp_path) as running:
        yield running


@pytest.fixture
async def client(server: NatsServer) -> AsyncIterator[Client]:
    connection = await connect(Settings(nats_url=server.url), name="test", role="provisioner")
    yield connection
    await connection.close()


@pytest.mark.proves("L2", "O2")
async def test_streams_and_consumer_are_as_the_contract_says(client: Client) -> None:
    created = await provision(client, first_seq=1)

    events = (await client.jetstream().stream_info("TURNFOLD_EVENTS")).config
    consumer = (await client.jetstream().consumer_info("TURNFOLD_EVENTS", "ingest")).config
    assert set(events.subjects or ()) == {"turn.completed", "turn.completed.>", "tool.result", "tool.result.>"}
    assert (events.storage, events.discard, events.duplicate_window) == ("file", "new", 600)
    assert (consumer.ack_policy, consumer.ack_wait, consumer.max_deliver, consumer.max_ack_pending) == ("explicit", 5, -1, 20_000)
    assert await differences(client) == []
    assert created == await stream_created(client)
    assert created.endswith("Z")


@pytest.mark.proves("O2")
async def test_provisioning_again_and_by_two_at_once_changes_nothing(client: Client) -> None:
    first = await asyncio.gather(*(provision(client, first_seq=7) for _ in range(3)))

    again = await provision(client, first_seq=99)

    state = (await client.jetstream().stream_info("TURNFOLD_EVENTS")).state
    assert {*first, again} == {first[0]}
    assert state.first_seq == 7


@pytest.mark.proves("L3")
async def test_a_stream_made_anew_begins_above_what_was_stored_and_has_another_creation_time(client: Client) -> None:
    before = await provision(client, first_seq=1)
    await client.jetstream().publish("turn.completed.a.s", b"{}")
    await client.jetstream().delete_stream("TURNFOLD_EVENTS")

    after = await provision(client, first_seq=42)
    acknowledged = await client.jetstream().publish("turn.completed.a.s", b"{}")

    assert acknowledged.seq == 42
    assert after != before


@pytest.mark.proves("O2")
async def test_settings_that_drifted_are_named_and_set_right_without_losing_events(client: Client) -> None:
    created = await provision(client, first_seq=1)
    jetstream = client.jetstream()
    await jetstream.publish("tool.result.a.s", b"{}")
    config = (await jetstream.stream_info("TURNFOLD_EVENTS")).config
    await jetstream.update_stream(config.evolve(subjects=["tool.result.>"], duplicate_window=120.0, max_bytes=1 << 30))
    consumer = (await jetstream.consumer_info("TURNFOLD_EVENTS", "ingest")).config
    await jetstream.add_consumer("TURNFOLD_EVENTS", consumer.evolve(name="ingest", ack_wait=7.0))
    found = await differences(client)

    again = await provision(client, first_seq=1)

    info = await jetstream.stream_info("TURNFOLD_EVENTS")
    assert [one for one in found if "subjects" in one]
    assert [one for one in found if "duplicate_window 120" in one]
    assert [one for one in found if "the consumer ingest has ack_wait 7" in one]
    assert await differences(client) == []
    assert (again, info.state.messages, info.config.max_bytes) == (created, 1, 1 << 30)


@pytest.mark.proves("O2")
async def test_a_stream_that_cannot_be_set_right_stops_the_start(client: Client) -> None:
    await client.jetstream().add_stream(StreamConfig(name="TURNFOLD_EVENTS", subjects=["turn.completed"], storage=StorageType.MEMORY))

    with pytest.raises(StartError, match="storage"):
        await provision(client, first_seq=1)


@pytest.mark.proves("O2")
async def test_whoever_needs_the_streams_waits_for_them_and_says_so_when_they_do_not_come(client: Client) -> None:
    with pytest.raises(StartError, match="run `turnfold migrate`"):
        await wait_for_streams(client, seconds=0.2)

    waiting = asyncio.create_task(wait_for_streams(client, seconds=10))
    created = await provision(client, first_seq=1)

    assert (await waiting).created == created


@pytest.mark.proves("O2")
async def test_the_creation_time_of_the_stream_survives_a_crash_of_the_server(server: NatsServer, client: Client) -> None:
    before = await provision(client, first_seq=1)
    await client.jetstream().publish("turn.completed.a.s", b"{}")

    server.kill()
    server.start()
    after = (await wait_for_streams(client, seconds=20)).created

    assert after == before


async def test_nobody_on_the_bus_is_said_in_time_with_what_would_help(tmp_path: Path) -> None:
    with nats_server(tmp_path) as running:
        url = running.url
    began = time.monotonic()

    with pytest.raises(StartError, match=r"no NATS server took a connection at nats://127.0.0.1:\d+ within 0.5 s .*turnfold up"):
        await connect(Settings(nats_url=url.replace("://", "://me:secret@")), name="test", role="worker", seconds=0.5)

    assert time.monotonic() - began < 3


@pytest.mark.proves("X1")
async def test_wrong_credentials_are_refused_at_once_and_not_repeated(tmp_path: Path) -> None:
    with nats_server(tmp_path, more="authorization { user: worker, password: right }") as running:
        began = time.monotonic()

        with pytest.raises(StartError, match="refused these credentials") as refused:
            await connect(Settings(nats_url=running.url, nats_user="worker", nats_password="wrong"), name="test", role="worker")
        known = await connect(Settings(nats_url=running.url, nats_user="worker", nats_password="right"), name="test", role="worker")

        assert known.is_connected
        assert "wrong" not in str(refused.value)
        assert time.monotonic() - began < 5
        await known.close()


async def test_a_server_without_jetstream_is_told_from_one_that_fails(tmp_path: Path) -> None:
    with nats_server(tmp_path, jetstream=False) as running:
        client = await connect(Settings(nats_url=running.url), name="test", role="provisioner")

        with pytest.raises(StartError, match="start it with JetStream"):
            await provision(client, first_seq=1)

        await client.close()


async def test_a_server_that_takes_only_small_messages_is_advised_against(tmp_path: Path) -> None:
    with nats_server(tmp_path, more="max_payload: 1MB") as running:
        client = await connect(Settings(nats_url=running.url), name="test", role="provisioner")

        assert [advice for advice in server_warnings(client) if "set max_payload: 8MB" in advice]

        await client.close()


async def test_a_connection_comes_back_after_the_server_was_away(server: NatsServer, client: Client) -> None:
    await client.flush()

    server.kill()
    server.start()

    async with asyncio.timeout(10):
        while not client.stats["reconnects"]:  # noqa: ASYNC110 - the library tells of it in a counter
            await asyncio.sleep(0.01)
        await client.flush()


async def test_the_same_settings_connect_a_faststream_broker_and_show_no_password(tmp_path: Path) -> None:
    with nats_server(tmp_path, more="authorization { user: query, password: secret }") as running:
        settings = Settings(nats_url=running.url, nats_user="query", nats_password="secret")
        broker = NatsBroker(**broker_options(settings, "query", role="query"), logger=None)
        heard: asyncio.Queue[Any] = asyncio.Queue()

        @broker.subscriber("greeting")
        async def on_greeting(body: str) -> None:
            heard.put_nowait(body)

        async with broker:
            await broker.start()
            await broker.publish("hello", "greeting")
            async with asyncio.timeout(5):
                assert await heard.get() == "hello"

        assert "secret" not in str(broker.specification.url)
        assert connect_options(settings, "query", role="query")["max_reconnect_attempts"] == -1
