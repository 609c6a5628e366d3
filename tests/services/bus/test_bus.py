"""Connections and streams on a real nats-server."""

import asyncio
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from faststream.nats import NatsBroker
from nats.aio.client import Client
from nats.js.api import StorageType, StreamConfig
from structlog.testing import capture_logs

import turnfold
from tests.nats_server import NatsServer, nats_server, subscriptions_known
from tests.running_system import wait_until
from turnfold.bus import (
    broker_options,
    config_differences,
    connect,
    connect_options,
    ensure_streams,
    server_warnings,
    stream_created,
    wait_for_streams,
)
from turnfold.errors import NotAllowed, StartError, Unavailable
from turnfold.settings import Settings, read_settings


@pytest.fixture
async def client(server: NatsServer) -> AsyncIterator[Client]:
    connection = await connect(Settings(nats_url=server.url), name="test")
    yield connection
    await connection.close()


@pytest.mark.proves("L2", "O2")
async def test_streams_and_consumer_are_as_the_contract_says(client: Client) -> None:
    created = await ensure_streams(client, first_seq=1)

    events = (await client.jetstream().stream_info("TURNFOLD_EVENTS")).config
    consumer = (await client.jetstream().consumer_info("TURNFOLD_EVENTS", "ingest")).config
    assert set(events.subjects or ()) == {
        "turn.completed",
        "turn.completed.>",
        "tool.result",
        "tool.result.>",
        "usage.reported",
        "usage.reported.>",
        "turn.retracted",
        "turn.retracted.>",
    }
    assert (events.storage, events.discard, events.duplicate_window, events.allow_atomic) == (
        "file",
        "new",
        600,
        True,
    )
    assert (
        consumer.ack_policy,
        consumer.ack_wait,
        consumer.max_deliver,
        consumer.max_ack_pending,
    ) == ("explicit", 5, -1, 100_000)
    assert await config_differences(client) == []
    assert created == await stream_created(client)
    assert created.endswith("Z")


@pytest.mark.proves("O2")
async def test_provisioning_again_and_by_two_at_once_changes_nothing(client: Client) -> None:
    first = await asyncio.gather(*(ensure_streams(client, first_seq=7) for _ in range(3)))

    again = await ensure_streams(client, first_seq=99)

    state = (await client.jetstream().stream_info("TURNFOLD_EVENTS")).state
    assert {*first, again} == {first[0]}
    assert state.first_seq == 7


@pytest.mark.proves("L3")
async def test_a_stream_made_anew_begins_above_what_was_stored_and_has_another_creation_time(
    client: Client,
) -> None:
    before = await ensure_streams(client, first_seq=1)
    await client.jetstream().publish("turn.completed.a.s", b"{}")
    await client.jetstream().delete_stream("TURNFOLD_EVENTS")

    after = await ensure_streams(client, first_seq=42)
    acknowledged = await client.jetstream().publish("turn.completed.a.s", b"{}")

    assert acknowledged.seq == 42
    assert after != before


@pytest.mark.proves("O2")
async def test_settings_that_drifted_are_named_and_set_right_without_losing_events(
    client: Client,
) -> None:
    created = await ensure_streams(client, first_seq=1)
    jetstream = client.jetstream()
    await jetstream.publish("tool.result.a.s", b"{}")
    config = (await jetstream.stream_info("TURNFOLD_EVENTS")).config
    await jetstream.update_stream(
        config.evolve(
            subjects=["tool.result.>"],
            duplicate_window=120.0,
            allow_atomic=False,
            max_bytes=1 << 30,
            max_msgs_per_subject=1,
        )
    )
    consumer = (await jetstream.consumer_info("TURNFOLD_EVENTS", "ingest")).config
    drifted = consumer.evolve(
        name="ingest",
        ack_wait=7.0,
        filter_subjects=["tool.result.a.>", "tool.result.b.>"],
        headers_only=True,
        inactive_threshold=300.0,
    )
    await jetstream.add_consumer("TURNFOLD_EVENTS", drifted)
    found = await config_differences(client)

    again = await ensure_streams(client, first_seq=1)

    info = await jetstream.stream_info("TURNFOLD_EVENTS")
    assert [one for one in found if "subjects" in one]
    assert [one for one in found if "duplicate_window 120" in one]
    assert [one for one in found if "allow_atomic 0, not True" in one]
    assert [one for one in found if "max_msgs_per_subject 1, not -1" in one]
    assert [one for one in found if "the consumer ingest has ack_wait 7" in one]
    assert [one for one in found if "the consumer ingest has filter_subjects" in one]
    assert [one for one in found if "the consumer ingest has headers_only True" in one]
    assert [one for one in found if "the consumer ingest has inactive_threshold 300" in one]
    assert await config_differences(client) == []
    assert (again, info.state.messages, info.config.max_bytes) == (created, 1, 1 << 30)


@pytest.mark.proves("O2")
async def test_a_stream_that_cannot_be_set_right_stops_the_start(client: Client) -> None:
    await client.jetstream().add_stream(
        StreamConfig(
            name="TURNFOLD_EVENTS", subjects=["turn.completed"], storage=StorageType.MEMORY
        )
    )

    with pytest.raises(StartError, match="storage"):
        await ensure_streams(client, first_seq=1)


@pytest.mark.proves("O2")
async def test_whoever_needs_the_streams_waits_for_them_and_says_so_when_they_do_not_come(
    client: Client,
) -> None:
    with capture_logs() as logged, pytest.raises(StartError, match="run `turnfold migrate`"):
        await wait_for_streams(client, seconds=0.2)
    assert [(line["event"], line["made_by"]) for line in logged] == [
        ("streams.awaited", "turnfold migrate")
    ]

    waiting = asyncio.create_task(wait_for_streams(client, seconds=10))
    created = await ensure_streams(client, first_seq=1)

    assert await waiting == created


@pytest.mark.proves("O2")
async def test_the_creation_time_of_the_stream_survives_a_crash_of_the_server(
    server: NatsServer, client: Client
) -> None:
    before = await ensure_streams(client, first_seq=1)
    await client.jetstream().publish("turn.completed.a.s", b"{}")

    server.kill()
    server.start()
    after = await wait_for_streams(client, seconds=20)

    assert after == before


async def test_a_service_that_waits_for_the_bus_says_so_and_names_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnfold.bus.connection.QUIET_SECONDS", 0.1)
    with nats_server(tmp_path) as running:
        url = running.url
    settings = Settings(nats_url=url.replace("://", "://me:secret@"))

    with capture_logs() as logged, pytest.raises(StartError):
        await connect(settings, name="worker", seconds=0.3)

    awaited = [line for line in logged if line["event"] == "bus.awaited"]
    assert [(line["connection"], "secret" in line["url"]) for line in awaited] == [
        ("worker", False)
    ]


async def test_nobody_on_the_bus_is_said_with_what_would_help(tmp_path: Path) -> None:
    with nats_server(tmp_path) as running:
        url = running.url

    with pytest.raises(
        StartError,
        match=r"no NATS server took a connection at nats://127.0.0.1:\d+ within 0.5 s .*turnfold up",
    ):
        await connect(
            Settings(nats_url=url.replace("://", "://me:secret@")), name="test", seconds=0.5
        )


@pytest.mark.proves("X1")
async def test_wrong_credentials_are_refused_at_once_and_not_repeated(tmp_path: Path) -> None:
    with nats_server(tmp_path, more="authorization { user: worker, password: right }") as running:
        with (
            capture_logs() as logged,
            pytest.raises(StartError, match="refused these credentials") as refused,
        ):
            await connect(
                Settings(nats_url=running.url, nats_user="worker", nats_password="wrong"),
                name="test",
            )
        known = await connect(
            Settings(nats_url=running.url, nats_user="worker", nats_password="right"), name="test"
        )

        assert known.is_connected
        assert "wrong" not in str(refused.value)
        # Each repetition is logged.
        assert not [line for line in logged if line["event"] == "bus.awaited"]
        await known.close()


@pytest.fixture
def certificates(tmp_path: Path) -> dict[str, str]:
    """Who we are for a server that wants encryption, and its own certificate beside it."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for name in ("127.0.0.1", "worker"):
        authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(
            str(tmp_path / f"{name}.pem")
        )
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "another.pem"))
    return {
        "TURNFOLD_NATS_CA": str(tmp_path / "ca.pem"),
        "TURNFOLD_NATS_CERTIFICATE": str(tmp_path / "worker.pem"),
    }


ENCRYPTED = """
tls {{ cert_file: "{0}/127.0.0.1.pem", key_file: "{0}/127.0.0.1.pem", ca_file: "{0}/ca.pem", verify: {1}, handshake_first: {2} }}
"""


@pytest.mark.proves("X1")
@pytest.mark.parametrize(("verify", "first"), [("false", "false"), ("true", "auto")])
async def test_the_bus_is_encrypted_with_certificates_of_ones_own(
    tmp_path: Path, certificates: dict[str, str], verify: str, first: str
) -> None:
    with nats_server(tmp_path, more=ENCRYPTED.format(tmp_path, verify, first)) as running:
        url = running.url.replace("nats://", "tls://")
        environ = certificates | {
            "TURNFOLD_NATS_URL": url,
            "TURNFOLD_NATS_TLS_FIRST": "1" if first == "auto" else "0",
        }
        settings = read_settings(environ)
        plain = await connect(settings, name="test")
        broker = NatsBroker(**broker_options(settings, "test"), logger=None)
        async with turnfold.connect(url, environ=environ) as client, broker:
            await broker.start()
            with pytest.raises(Unavailable, match="no service answers"):
                await client.session("support", "s").context()
        await plain.close()

        with pytest.raises(StartError, match="no NATS server took a connection"):
            await connect(
                read_settings(environ | {"TURNFOLD_NATS_CA": str(tmp_path / "another.pem")}),
                name="test",
                seconds=1,
            )


@pytest.mark.proves("O4")
async def test_the_end_of_an_encrypted_connection_is_no_warning(
    tmp_path: Path, certificates: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with nats_server(tmp_path, more=ENCRYPTED.format(tmp_path, "false", "false")) as running:
        url = running.url.replace("nats://", "tls://")
        environ = certificates | {"TURNFOLD_NATS_URL": url}
        async with turnfold.connect(url, environ=environ):
            pass
        service = await connect(read_settings(environ), name="test")
        running.kill()
        await wait_until(lambda: not service.is_connected)
        await service.close()

    assert caplog.text == ""


@pytest.mark.proves("X1")
async def test_with_encryption_first_a_server_that_offers_none_is_told_nothing(
    server: NatsServer, certificates: dict[str, str]
) -> None:
    environ = certificates | {
        "TURNFOLD_NATS_URL": server.url.replace("nats://", "tls://"),
        "TURNFOLD_NATS_TLS_FIRST": "1",
    }

    with pytest.raises(StartError, match="no NATS server took a connection"):
        await connect(read_settings(environ), name="test", seconds=1)


@pytest.mark.proves("X1", "O5")
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("NKEY", "TURNFOLD_NATS_NKEY names no file that can be read"),
        ("CREDS", "TURNFOLD_NATS_CREDS names no file that can be read"),
        ("CA", "cannot be used"),
    ],
)
async def test_credentials_that_cannot_be_read_are_told_and_not_shown(name: str, told: str) -> None:
    environ = {f"TURNFOLD_NATS_{name}": "/secret/SUAB"}

    with pytest.raises(StartError, match=told) as stopped:
        await connect(read_settings(environ), name="test")
    with pytest.raises(NotAllowed, match=told):
        async with turnfold.connect(environ=environ):
            pass

    shown = "".join(traceback.format_exception(stopped.value))
    assert name == "CA" or "/secret/SUAB" not in shown


@pytest.mark.proves("X1", "O5")
async def test_a_seed_that_is_mistyped_is_told_and_not_shown() -> None:
    environ = {"TURNFOLD_NATS_NKEY": f"SUZZ{'A' * 54}"}

    with pytest.raises(StartError, match="the seed of the nkey is mistyped") as stopped:
        await connect(read_settings(environ), name="test")
    with pytest.raises(NotAllowed, match="the seed of the nkey is mistyped"):
        async with turnfold.connect(environ=environ):
            pass

    assert "SUZZ" not in "".join(traceback.format_exception(stopped.value))


@pytest.mark.proves("X1", "O5")
async def test_a_file_with_a_seed_alone_is_not_taken_for_one_with_a_jwt(tmp_path: Path) -> None:
    seed = tmp_path / "worker.nk"
    seed.write_text(f"SU{'A' * 54}EQ\n")
    environ = {"TURNFOLD_NATS_CREDS": str(seed)}
    told = "holds no JWT; name a seed with TURNFOLD_NATS_NKEY"

    with pytest.raises(StartError, match=told):
        await connect(read_settings(environ), name="test")
    with pytest.raises(NotAllowed, match=told):
        async with turnfold.connect(environ=environ):
            pass


async def test_a_server_without_jetstream_is_told_from_one_that_fails(tmp_path: Path) -> None:
    with nats_server(tmp_path, jetstream=False) as running:
        client = await connect(Settings(nats_url=running.url), name="test")

        with pytest.raises(StartError, match="start it with JetStream"):
            await ensure_streams(client, first_seq=1)

        await client.close()


async def test_a_server_that_takes_only_small_messages_is_advised_against(tmp_path: Path) -> None:
    with nats_server(tmp_path, more="max_payload: 1MB") as running:
        client = await connect(Settings(nats_url=running.url), name="test")

        assert [advice for advice in server_warnings(client) if "set max_payload: 8MB" in advice]

        await client.close()


async def test_a_connection_comes_back_after_the_server_was_away(
    server: NatsServer, client: Client
) -> None:
    await subscriptions_known(client)

    server.kill()
    server.start()

    async with asyncio.timeout(10):
        while not client.stats["reconnects"]:  # noqa: ASYNC110 - the library tells of it in a counter
            await asyncio.sleep(0.01)
        await subscriptions_known(client)


async def test_the_same_settings_connect_a_faststream_broker_and_show_no_password(
    tmp_path: Path,
) -> None:
    with nats_server(tmp_path, more="authorization { user: query, password: secret }") as running:
        settings = Settings(nats_url=running.url, nats_user="query", nats_password="secret")
        broker = NatsBroker(**broker_options(settings, "query"), logger=None)
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
        assert connect_options(settings, "query")["max_reconnect_attempts"] == -1
