"""Who asked is what the server says, whatever header blocks a client sends (A7, X5)."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
from faststream.nats import NatsMessage
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.nats_server import NatsServer, nats_server, subscriptions_known
from tests.running_system import running_parts, wait_until
from turnfold.bus.broker import Broker, passthrough_decoder
from turnfold.bus.connection import broker_options, connect
from turnfold.client import session_key, turn_event
from turnfold.nats_client.corrected import REQUEST_INFO
from turnfold.settings import Settings

ACCOUNTS = """
accounts {
  SERVICES { users: [{user: service, password: secret}], exports: [{service: "asked.*"}] }
  CLIENT { users: [{user: client, password: secret}], imports: [{service: {account: SERVICES, subject: "asked.*"}, share: true}] }
}
"""
FORGED = b'{"acc": "OTHER", "user": "forged"}'
NAMES = (
    b"Nats-Request-Info",
    b"Nats-Request-Info ",
    b"\tNats-Request-Info",
    b"nats-request-info",
    b" Nats-Request-Info\t",
)
ENDS = (
    b"\r\n\r\n",
    b"\r\n",
    b"",
    b"\r\n\xff\xff\xff",
    b"\r\ngarbage",
    b"\r\n\xff",
    b"\r\n ",
    b"\r\nX: y",
    b"\r\n\r\n\r\n",
    b"\n\n",
    b"\x00\x00\x00\x00",
)
BLOCKS = [
    b"NATS/1.0"
    + status
    + b"\r\n"
    + (name + b": " + FORGED + b"\r\n") * (times - 1)
    + name
    + b": "
    + FORGED
    + end
    for status in (b"", b" 200", b" 503 No", b" 200 \xff", b" \xff")
    for name in NAMES
    for times in (1, 2, 3)
    for end in ENDS
] + [
    b"",
    b"\r\n",
    b"NATS/1.0",
    b"NATS/1.0 ",
    b"NATS/1.0\r\n",
    b"NATS/1.0\r\n\r\n",
    b"\xff" * 8,
    b"\xff" * 40,
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("headers"), more=ACCOUNTS, jetstream=False) as running:
        yield running


Handler = Callable[[Msg], Awaitable[None]]


@asynccontextmanager
async def plain_service(settings: Settings, handler: Handler) -> AsyncGenerator[None]:
    client = await connect(settings, name="plain")
    try:
        await client.subscribe("asked.*", cb=handler)
        for _ in range(2):
            await subscriptions_known(client)
        yield
    finally:
        await client.close()


@asynccontextmanager
async def framework_service(settings: Settings, handler: Handler) -> AsyncGenerator[None]:
    broker = Broker(broker_options(settings, "framework"))

    @broker.subscriber("asked.*", decoder=passthrough_decoder, no_reply=True)
    async def on_request(message: NatsMessage) -> None:
        assert isinstance(message.raw_message, Msg)
        await handler(message.raw_message)

    await broker.start()
    try:
        for _ in range(2):
            await subscriptions_known(broker.config.connection_state.connection)
        yield
    finally:
        await broker.stop()


@pytest.mark.parametrize("service", [plain_service, framework_service])
async def test_no_header_block_of_a_client_forges_who_asked(
    server: NatsServer, service: Callable[..., object]
) -> None:
    settings = Settings(nats_url=server.url.replace("nats://", "nats://service:secret@"))
    heard: dict[int, str | None] = {}

    async def on_message(message: Msg) -> None:
        heard[int(message.data)] = (message.headers or {}).get(REQUEST_INFO)

    async with (
        service(settings, on_message),  # type: ignore[attr-defined]
        await nats.connect(
            server.url,
            user="client",
            password="secret",
            name='Nats-Request-Info: {"user": "forged"}',
        ) as client,
    ):
        for number, block in enumerate(BLOCKS):
            await send(client, "asked.x", block, b"%d" % number)
        await wait_until(lambda: len(heard) == len(BLOCKS), told=lambda: len(heard))

    assert [BLOCKS[number] for number, info in heard.items() if _user(info) == "forged"] == []
    assert None not in heard.values(), (
        "a request whose asker cannot be read is not one without an asker"
    )
    # A block that ends as it should is read whole, whatever stands in it.
    sound = [
        number
        for number, block in enumerate(BLOCKS)
        if block.endswith(b"\r\n\r\n") and block.startswith(b"NATS/1.0\r\n")
    ]
    assert {_user(heard[number]) for number in sound} == {"client"}


def _user(info: str | None) -> str | None:
    """The user that a reader of the header believes; None where it is no JSON."""
    try:
        return str(json.loads(info or "")["user"])
    except ValueError:
        return None


def test_the_blocks_are_many() -> None:
    assert len(BLOCKS) == len(set(BLOCKS)) > 400


STATUSES = (
    b" 404 No Messages",
    b" 408 Request Timeout",
    b" 409 Consumer Deleted",
    b" 503",
    b" 200 \xff",
    b" \xff",
    b"",
)
ODD_BLOCKS = [
    b"NATS/1.0" + status + b"\r\n" + lines + end
    for status in STATUSES
    for lines in (
        b"",
        b"Status: 404\r\n",
        b"Status: 409\r\nDescription: Consumer Deleted\r\n",
        b"traceparent: \xff\r\n",
    )
    for end in (b"\r\n", b"", b"\xff\xff")
] + [b"", b"\r\n", b"NATS/1.0", b"\xff" * 8]


@pytest.mark.proves("I5")
async def test_header_blocks_of_events_and_requests_silence_nobody(tmp_path: Path) -> None:
    """O7: each block is sent with an event and with a request; all events are stored, also from the stream into a new database."""
    async with (
        running_parts(tmp_path) as parts,
        parts.client() as client,
    ):
        async with (
            parts.running("worker"),
            parts.running("query"),
            await nats.connect(parts.server.url) as bus,
        ):
            for number, block in enumerate(ODD_BLOCKS):
                event = turn_event(
                    session_key("attacker", "odd"),
                    [{"role": "user", "content": f"Odd {number}."}],
                    event_id=f"odd-{number}",
                )
                await send(bus, event.subject, block, event.payload)
                await send(bus, "context.get.attacker.odd", block, b"{}")
                await send(bus, "session.policy.attacker.odd", block, b"{}")
            session = client.session("support", "user-42")
            await session.turn_completed([{"role": "user", "content": "Where is order 7341?"}])
            window = await session.context(wait_ms=5_000)
            assert (window.fresh, window.account.total) == (True, 1)
            assert await session.policy(mode="manual")
            await parts.caught_up()
        parts.database.unlink()
        await parts.migrate()
        async with parts.running("worker"):
            await parts.caught_up()
            stored = await parts.rows("SELECT count(*) AS events FROM events")

    assert stored == [{"events": len(ODD_BLOCKS) + 1}]


async def send(bus: Client, subject: str, block: bytes, body: bytes) -> None:
    """Publish with this header block, to the letter; a block that the server refuses would end the connection."""
    command = f"HPUB {subject} _INBOX.x {len(block)} {len(block) + len(body)}\r\n".encode()
    await bus._send_command(command + block + body + b"\r\n")
    await subscriptions_known(bus)
