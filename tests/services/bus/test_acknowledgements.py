"""Publishing while other subscribers reply as well, on a real nats-server (O7, C69)."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import DiscardPolicy

import turnfold
from tests.nats_server import NatsServer, nats_server, subscriptions_known
from tests.running_system import wait_until
from turnfold.bus.stream_state import last_sequence
from turnfold.bus.streams import EVENTS
from turnfold.client import session_key, turn_event
from turnfold.contracts.subjects import EVENTS_STREAM
from turnfold.errors import StreamFull, Unavailable
from turnfold.nats_client.acknowledgements import Acknowledgement, Publisher, Rejection
from turnfold.nats_client.connection import NatsClient

SUBJECT = "turn.completed.a.s"
FORGED: Mapping[str, bytes] = {
    "nothing": b"",
    "ok": b'{"ok": true}',
    "list": b"[1, 2]",
    "number": b"7",
    "no JSON": b"\xff{",
    "sequence 1": b'{"stream": "TURNFOLD_EVENTS", "seq": 1}',
    "sequence 9 of 10": b'{"stream": "TURNFOLD_EVENTS", "seq": 9}',
    "far ahead": b'{"stream": "TURNFOLD_EVENTS", "seq": 1000000}',
    "duplicate": b'{"stream": "TURNFOLD_EVENTS", "seq": 3, "duplicate": true}',
    "another stream": b'{"stream": "TURNFOLD_NOTICES", "seq": 11}',
    "full": b'{"error": {"code": 503, "err_code": 10077, "description": "maximum messages exceeded"}}',
    "no batch": b'{"error": {"code": 400, "err_code": 10174, "description": "batch publish is disabled"}}',
}


@pytest.fixture
def answers_match_their_models() -> None:
    """The answers are made here, right and wrong ones."""


@pytest.fixture
async def bus(server: NatsServer) -> AsyncIterator[Client]:
    connection = await nats.connect(server.url)
    await connection.jetstream().add_stream(EVENTS)
    for number in range(10):
        await connection.jetstream().publish(
            SUBJECT, b"{}", headers={"Nats-Msg-Id": f"old-{number}"}
        )
    yield connection
    await connection.close()


@pytest.fixture
async def own(server: NatsServer) -> AsyncIterator[NatsClient]:
    connection = NatsClient()
    await connection.connect(server.url)
    yield connection
    await connection.close()


async def replying(
    bus: Client,
    reply: bytes,
    *,
    subject: str = "turn.completed.>",
    headers: dict[str, str] | None = None,
) -> None:
    async def on_message(message: Msg) -> None:
        if message.reply:
            await bus.publish(message.reply, reply, headers=headers)

    await bus.subscribe(subject, cb=on_message)
    await subscriptions_known(bus)


def event(number: int, says: str = "hello") -> turnfold.OutgoingEvent:
    return turn_event(
        session_key("a", "s"), [{"role": "user", "content": says}], event_id=f"e{number}"
    )


@pytest.mark.proves("O7", "C69")
@pytest.mark.parametrize("name", FORGED)
async def test_each_event_gets_its_own_sequence_whatever_others_reply(
    server: NatsServer, bus: Client, name: str
) -> None:
    async with turnfold.connect(server.url, environ={}) as client:
        undisturbed = await client.publish(event(0))
        await replying(bus, FORGED[name])
        receipts = [await client.publish(event(number)) for number in (1, 2)]
        receipts += await client.publish_batch([event(number) for number in (3, 4, 5)])
        again = await client.publish(event(1))
    async with turnfold.connect(server.url, environ={}) as newcomer:
        first = await newcomer.publish(event(6))

    assert undisturbed.seq == 11
    assert [(one.seq, one.is_duplicate) for one in receipts] == [
        (seq, False) for seq in range(12, 17)
    ]
    assert (again.seq, again.is_duplicate) == (12, True)
    assert first.seq == 17


@pytest.mark.proves("O7")
async def test_a_forger_that_counts_along_is_found_out_by_its_second_reply(
    bus: Client, own: NatsClient
) -> None:
    strays: list[str] = []
    publisher = Publisher(own, EVENTS_STREAM, on_foreign=lambda: strays.append("foreign"))
    before = [await publish(publisher, f"before-{number}") for number in range(2)]

    async def on_message(message: Msg) -> None:
        seq = await last_sequence(own) + 5
        await bus.publish(message.reply, json.dumps({"stream": EVENTS_STREAM, "seq": seq}).encode())

    await bus.subscribe("turn.completed.>", cb=on_message)
    await subscriptions_known(bus)
    await publish(publisher, "counted")
    await asyncio.sleep(0.2)
    after = [await publish(publisher, f"after-{number}") for number in range(3)]

    assert [one.seq for one in before if isinstance(one, Acknowledgement)] == [11, 12]
    assert [one.seq for one in after if isinstance(one, Acknowledgement)] == [14, 15, 16]
    assert strays


async def publish(
    publisher: Publisher, name: str, *, seconds: float = 5.0
) -> Acknowledgement | Rejection:
    return await publisher.publish(SUBJECT, b"{}", headers={"Nats-Msg-Id": name}, seconds=seconds)


@pytest.mark.proves("O7")
async def test_a_forged_word_that_nobody_listens_stops_nothing(
    server: NatsServer, bus: Client
) -> None:
    await replying(bus, b"", headers={"Status": "503"})

    async with turnfold.connect(server.url, environ={}) as client:
        assert [(await client.publish(event(number))).seq for number in range(3)] == [11, 12, 13]


@pytest.mark.proves("O7")
async def test_a_full_stream_is_told_also_beside_strangers(server: NatsServer, bus: Client) -> None:
    await bus.jetstream().update_stream(EVENTS.evolve(max_msgs=10, discard=DiscardPolicy.NEW))
    await replying(bus, b'{"ok": true}')

    async with turnfold.connect(server.url, environ={}, timeout_seconds=1.0) as client:
        with pytest.raises(StreamFull):
            await client.publish(event(1))


@pytest.mark.proves("O7")
@pytest.mark.parametrize(
    "reply", [b"", b"[]", b"null", b'{"ok": true}', b'{"error": null}', b'{"error": []}', b"\xff"]
)
async def test_only_an_answer_is_taken_for_the_answer_to_a_request(
    server: NatsServer, bus: Client, reply: bytes
) -> None:
    await replying(bus, reply, subject="session.get.>")

    async with turnfold.connect(server.url, environ={}, timeout_seconds=0.5) as client:
        with pytest.raises(Unavailable, match="no answer"):
            await client.session("a", "s").status()
    async with turnfold.connect(server.url, environ={}) as client:
        await answering_late(bus, {"agent_id": "a", "session_id": "s", "messages_total": 3})
        assert (await client.session("a", "s").status())["messages_total"] == 3


async def answering_late(bus: Client, answer: dict[str, Any]) -> None:
    async def on_request(message: Msg) -> None:
        await asyncio.sleep(0.05)
        await message.respond(json.dumps(answer).encode())

    await bus.subscribe("session.get.>", cb=on_request)
    await subscriptions_known(bus)


@pytest.mark.proves("O7")
async def test_an_answer_that_only_begins_like_one_is_unavailable_and_no_crash(
    server: NatsServer, bus: Client
) -> None:
    odd = {
        "agent_id": "a",
        "session_id": "s",
        "messages": [],
        "window": 7,
        "account": "x",
        "summary": [1],
    }
    await replying(bus, json.dumps(odd).encode(), subject="context.get.>")

    async with turnfold.connect(server.url, environ={}, timeout_seconds=0.5) as client:
        with pytest.raises(Unavailable, match="does not follow the contract"):
            await client.session("a", "s").context()


@pytest.mark.proves("O7")
async def test_what_a_stranger_answers_to_any_request_is_unavailable_and_no_crash(
    server: NatsServer, bus: Client
) -> None:
    odd = {"known": [], "erased": 5, "sessions": [1], "audit": [1], "ok": True}
    for subject in ("agent.>", "audit.>", "events.>", "session.>"):
        await replying(bus, json.dumps(odd).encode(), subject=subject)

    async with turnfold.connect(server.url, environ={}, timeout_seconds=0.5) as client:
        session = client.session("a", "s")
        for asked in (
            session.tools(),
            session.run_tool("search_history", {"query": "x"}),
            session.policy(),
            client.agent_policy("a"),
            session.erased_events(["e"]),
            all_of(client.sessions("a")),
            all_of(session.audit_trail()),
        ):
            with pytest.raises(Unavailable):
                await asked


async def all_of(values: AsyncIterator[Any]) -> list[Any]:
    return [value async for value in values]


@pytest.mark.proves("O7")
@pytest.mark.parametrize(
    "reply", [b"", b"[]", b'{"ok": true}', b'{"error": {"code": 404, "err_code": 10059}}']
)
async def test_only_jetstream_answers_for_jetstream(
    bus: Client, own: NatsClient, reply: bytes
) -> None:
    await replying(bus, reply, subject="$JS.API.>")

    assert await last_sequence(own) == 10
    assert (await own.jetstream().stream_info(EVENTS_STREAM)).state.messages == 10


@pytest.mark.proves("O7")
async def test_a_word_of_jetstreams_own_form_with_nothing_in_it_is_unavailable(
    tmp_path: Path,
) -> None:
    with nats_server(tmp_path, jetstream=False) as server:
        async with await nats.connect(server.url) as bus:
            await replying(
                bus,
                b'{"type": "io.nats.jetstream.api.v1.stream_info_response", "state": 7}',
                subject="$JS.API.>",
            )
            own = NatsClient()
            await own.connect(server.url)
            with pytest.raises(Unavailable, match="cannot be read"):
                await last_sequence(own)
            await own.close()


@pytest.mark.proves("O7")
@pytest.mark.parametrize(
    "header",
    [
        b"NATS/1.0 \xff\xff\xff\r\n\r\n",
        b"NATS/1.0 503 \xff\r\n\r\n",
        b"NATS/1.0",
        b"xx",
        b"NATS/1.0\r\nx: \xff\r\n\r\n",
    ],
)
@pytest.mark.parametrize("subject", [b"odd.subject", b"odd.\xff\xfe"])
async def test_no_message_of_another_ends_a_connection(
    server: NatsServer, own: NatsClient, subject: bytes, header: bytes
) -> None:
    heard: list[bytes] = []

    async def on_message(message: Msg) -> None:
        heard.append(message.data)

    await own.subscribe("odd.>", cb=on_message)
    await subscriptions_known(own)
    await sent_raw(server, subject, header, b"odd")
    await own.publish("odd.fellow", b"ordinary")
    await wait_until(lambda: len(heard) >= 2)

    assert sorted(heard) == [b"odd", b"ordinary"]


async def sent_raw(server: NatsServer, subject: bytes, header: bytes, data: bytes) -> None:
    """Publish what no client library would."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n')
    writer.write(
        b"HPUB %s %d %d\r\n%s%s\r\nPING\r\n"
        % (subject, len(header), len(header) + len(data), header, data)
    )
    while not (await reader.readline()).startswith(b"PONG"):
        pass
    writer.close()
    await writer.wait_closed()
