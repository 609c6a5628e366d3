"""The limits of a connection: long heads, pipelined requests, and requests to upgrade."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.ports import free_port
from tests.running_system import wait_until
from turnfold.errors import StartError
from turnfold.process.http_server import HttpServer

GET = b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n"
UPLOAD = b"POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"
CONNECTIONS = 100
SECONDS = 20


class Application:
    """Answers with the path and the body, as soon as `may_answer` is set; counts what began."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.begun = 0
        self.headers: list[tuple[bytes, bytes]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun += 1
        parts = [scope["path"].encode()]
        while True:
            message = await receive()
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                break
        await self.may_answer.wait()
        self.headers = list(scope["headers"])
        body = b"".join(parts)
        length = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": body})

    async def has_begun(self, requests: int) -> None:
        await wait_until(lambda: self.begun >= requests, every=0)


class Peer:
    """A client that sends bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def answer(self) -> tuple[bytes, bytes]:
        """The head and the body of the next answer."""
        async with asyncio.timeout(SECONDS):
            head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            return head, await self._reader.readexactly(length)

    async def rest(self) -> bytes:
        """The bytes that come until the server closes the connection."""
        async with asyncio.timeout(SECONDS):
            try:
                return await self._reader.read()
            except ConnectionError:
                return b""

    async def flood(self, head: bytes, part: bytes, times: int) -> int:
        """Send a part again and again; return how many were sent before the connection ended."""
        try:
            await self.send(head)
            for number in range(times):
                await self.send(part)
                await asyncio.sleep(0)
                if self._reader.at_eof():
                    return number
        except ConnectionError:
            return 0
        return times

    def close(self) -> None:
        self._writer.close()


class Peers:
    """Clients of one server."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._all: list[Peer] = []

    async def another(self) -> Peer:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", self._port))
        self._all.append(peer)
        return peer

    def close(self) -> None:
        for peer in self._all:
            peer.close()


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncGenerator[Peers]:
    server = HttpServer(
        app, host="127.0.0.1", port=free_port(), port_setting="port", connections=CONNECTIONS
    )
    await server.open()
    peers = Peers(server.port)
    try:
        yield peers
    finally:
        peers.close()
        await server.close()


@asynccontextmanager
async def connected(app: ASGIApp) -> AsyncGenerator[Peer]:
    async with served(app) as peers:
        yield await peers.another()


async def test_a_server_that_ends_by_itself_tells_its_service_why() -> None:
    async def fail() -> None:
        raise RuntimeError("no more ticks")

    server = HttpServer(Application(), host="127.0.0.1", port=0, port_setting="port", connections=1)
    await server.open()
    server._server.config.timeout_notify = -1
    server._server.config.callback_notify = fail

    with pytest.raises(RuntimeError, match="no more ticks"):
        await server.until(asyncio.Event())

    await server._server.shutdown()


@pytest.mark.proves("A6")
async def test_no_connection_is_accepted_before_the_server_is_opened() -> None:
    """A6: a query server opens it last, when it hears of erasures; a server that never opened closes."""
    port = free_port()
    server = HttpServer(
        Application(), host="127.0.0.1", port=port, port_setting="port", connections=1
    )
    for _ in range(20):
        await asyncio.sleep(0.01)
        with pytest.raises(OSError, match="Connect"):
            await asyncio.open_connection("127.0.0.1", port)
    await server.close()


async def test_requests_of_one_connection_are_answered_one_after_the_other() -> None:
    async with connected(Application()) as peer:
        for number in range(3):
            await peer.send(GET % number)
            _, body = await peer.answer()
            assert body == b"/%d" % number


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with connected(Application()) as peer:
        await peer.send(b"".join(GET % number for number in range(10)))

        bodies = [(await peer.answer())[1] for _ in range(10)]

    assert bodies == [b"/%d" % number for number in range(10)]


async def test_a_connection_with_too_many_pipelined_requests_is_dropped() -> None:
    app = Application()
    app.may_answer.clear()
    async with connected(app) as peer:
        await peer.send(b"".join(GET % number for number in range(100)))

        rest = await peer.rest()
        app.may_answer.set()

    assert b"200" not in rest
    assert app.begun <= 1


@pytest.mark.proves("X6", "X9")
@pytest.mark.parametrize("earlier", [b"", GET % 1], ids=["alone", "after another"])
async def test_unfinished_bodies_on_every_connection_shut_nobody_out(earlier: bytes) -> None:
    app = Application()
    async with served(app) as peers:
        for number in range(2 * CONNECTIONS):
            await (await peers.another()).send(earlier + UPLOAD + b"bo")
            if number < CONNECTIONS:
                await app.has_begun((number + 1) * (2 if earlier else 1))
        peer = await peers.another()
        await peer.send(GET % 7)
        _, body = await peer.answer()

    assert body == b"/7"


@pytest.mark.proves("X6")
async def test_a_flood_of_idle_connections_ends_no_body_that_is_being_sent() -> None:
    app = Application()
    async with served(app) as peers:
        sending = await peers.another()
        await sending.send(UPLOAD + b"bo")
        await app.has_begun(1)
        for _ in range(2 * CONNECTIONS):
            await peers.another()
        await sending.send(b"dy")
        _, body = await sending.answer()

    assert body == b"/bbody"


@pytest.mark.proves("X6")
async def test_a_connection_with_a_whole_request_is_closed_for_no_other() -> None:
    app = Application()
    app.may_answer.clear()
    async with served(app) as peers:
        waiting = await peers.another()
        await waiting.send(UPLOAD + b"body" + UPLOAD + b"bo")
        await app.has_begun(1)
        for number in range(2 * CONNECTIONS):
            await (await peers.another()).send(UPLOAD + b"bo" if number % 2 else b"GET /")
        app.may_answer.set()
        _, body = await waiting.answer()

    assert body == b"/bbody"


def error_in(response: bytes) -> Any:
    """Return the error of a whole response that refuses with 400."""
    head, _, body = response.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert b"content-type: application/json" in head
    return json.loads(body)["error"]


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * 80_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 80_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n"
        + b"".join(b"X-%d: %s\r\n" % (number, b"a" * 50) for number in range(1_600))
        + b"\r\n",
    ],
    ids=["path", "header", "headers"],
)
async def test_a_head_above_the_limit_is_a_bad_request(head: bytes) -> None:
    app = Application()
    async with connected(app) as peer:
        await peer.send(head)

        rest = await peer.rest()

    assert error_in(rest) == {
        "code": "bad_request",
        "message": "the request line and headers are longer than 65,536 bytes",
    }
    assert not app.begun


async def test_bytes_that_are_no_request_are_a_bad_request() -> None:
    async with connected(Application()) as peer:
        await peer.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
        rest = await peer.rest()

    assert error_in(rest)["code"] == "bad_request"


@pytest.mark.parametrize(
    "head",
    [
        b"GET /",
        b"GET / HTTP/1.1\r\nHost: x\r\nX-Endless: ",
        b"GET / HTTP/1.1\r\nHost: x\r\nX-Endless",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Endless: ",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;endless=",
    ],
    ids=["path", "value", "name", "trailer", "extension"],
)
async def test_an_endless_part_of_a_head_ends_the_connection(head: bytes) -> None:
    async with connected(Application()) as peer:
        sent = await peer.flood(head, b"a" * 8_192, 1_000)

    assert sent < 1_000


async def test_a_long_body_in_many_parts_is_no_head() -> None:
    async with connected(Application()) as peer:
        await peer.send(b"POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 400000\r\n\r\n")
        for _ in range(100):
            await peer.send(b"b" * 4_000)
        _, long = await peer.answer()
        await peer.send(GET % 7)
        _, next_body = await peer.answer()

    assert len(long) == 400_002
    assert next_body == b"/7"


@pytest.mark.parametrize("parts", [1, 3])
async def test_a_request_to_upgrade_is_read_like_any_other(parts: int) -> None:
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: A\r\n"
    request = b"POST /u HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n%s\r\nbody" % upgrade
    size = -(-len(request) // parts)
    async with connected(Application()) as peer:
        for _ in range(2):
            for start in range(0, len(request), size):
                await peer.send(request[start : start + size])
                await asyncio.sleep(0.01)
            _, body = await peer.answer()
            assert body == b"/ubody"
        await peer.send(GET % 7)
        _, body = await peer.answer()

    assert body == b"/7"


@pytest.mark.parametrize("more", [b"", b"Connection: Upgrade\r\nUpgrade: h2c\r\n"])
@pytest.mark.parametrize("length", [[], [(b"content-length", b"8")]], ids=["open", "known"])
async def test_a_client_that_knows_no_chunks_gets_none(
    more: bytes, length: list[tuple[bytes, bytes]]
) -> None:
    """The end of the connection is the end of the body, as HTTP/1.0 has it."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": length})
        for part in (b"It left", b"!", b""):
            await send({"type": "http.response.body", "body": part, "more_body": bool(part)})

    async with connected(answer) as peer:
        await peer.send(b"GET / HTTP/1.0\r\n%s\r\n" % more)
        head, _, body = (await peer.rest()).lower().partition(b"\r\n\r\n")

    assert body == b"it left!"
    assert b"transfer-encoding" not in head
    assert (b"content-length: 8" in head) == bool(length)


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_an_application_that_fails_is_answered_for(version: bytes) -> None:
    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        raise LookupError

    async with connected(fail) as peer:
        await peer.send(b"GET / HTTP/%s\r\nHost: a\r\nConnection: close\r\n\r\n" % version)
        head, _, body = (await peer.rest()).partition(b"\r\n\r\n")

    assert (head[:12], body) == (b"HTTP/1.1 500", b"Internal Server Error")


async def test_spaces_around_the_value_of_a_header_are_no_part_of_it() -> None:
    """A proxy could not send them on: its client refuses such a value."""
    app = Application()
    async with connected(app) as peer:
        await peer.send(b"GET / HTTP/1.1\r\nHost: x\r\nA: \t b c \t \r\n\r\n")
        await peer.answer()

    assert app.headers == [(b"host", b"x"), (b"a", b"b c")]


async def test_fields_after_a_body_are_no_headers() -> None:
    """A token there would stand in for one that a proxy in front has removed."""
    app = Application()
    async with connected(app) as peer:
        await peer.send(b"POST /b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        await peer.send(b"4\r\nbody\r\n0\r\nAuthorization: Bearer x\r\n\r\n")
        _, body = await peer.answer()

    assert body == b"/bbody"
    assert app.headers == [(b"host", b"x"), (b"transfer-encoding", b"chunked")]


async def test_a_request_to_connect_is_a_bad_request() -> None:
    async with connected(Application()) as peer:
        await peer.send(b"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n")
        rest = await peer.rest()

    assert error_in(rest)["code"] == "bad_request"


@pytest.mark.proves("O3")
async def test_the_reason_why_a_port_cannot_be_used_is_told() -> None:
    port = free_port()
    settings: dict[str, Any] = {"host": "127.0.0.1", "port": port, "connections": 8}
    first = HttpServer(Application(), **settings, port_setting="TURNFOLD_HTTP_PORT")
    second = HttpServer(Application(), **settings, port_setting="TURNFOLD_HTTP_PORT")
    await first.open()

    told = rf":{port} \(Address already in use\); choose another port with TURNFOLD_HTTP_PORT"
    with pytest.raises(StartError, match=told):
        await second.open()

    await second.close()
    await first.close()


@pytest.mark.proves("O3")
@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"certificate": "none.pem"}, "HTTPS cannot be served (No such file or directory)"),
        ({"certificate": "junk.pem"}, "HTTPS cannot be served ([SSL"),
        ({"certificate_key": "junk.pem"}, "HTTPS cannot be served (a key without a certificate)"),
        ({"host": "no-such-host.invalid"}, "; choose an address of this machine"),
        ({"host": "192.0.2.1"}, "; choose an address of this machine"),
    ],
)
async def test_a_port_is_not_blamed_for_a_certificate_or_a_host(
    tmp_path: Path, setting: dict[str, str], told: str
) -> None:
    (tmp_path / "junk.pem").write_text("junk")
    files = {name: tmp_path / value for name, value in setting.items() if name != "host"}
    given: dict[str, Any] = {"host": setting.get("host", "127.0.0.1"), **files}
    server = HttpServer(
        Application(),
        **given,
        port=0,
        port_setting="TURNFOLD_HTTP_PORT",
        connections=8,
    )

    with pytest.raises(StartError) as caught:
        await server.open()
    await server.close()

    assert told in str(caught.value)
    assert "TURNFOLD_HTTP_PORT" not in str(caught.value)
