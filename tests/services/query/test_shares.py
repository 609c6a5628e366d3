"""Nobody takes what belongs to all: one agent holds as much as it can, and another one is answered meanwhile (X6, X9, C72)."""

import asyncio
import json
import os
import resource
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import nats
import pytest
from nats.aio.client import Client as Bus

from tests.running_system import Parts, Service, eventually, running_parts, wait_until
from turnfold.client import Client
from turnfold.errors import Unavailable

Json = dict[str, Any]
USER = {"role": "user", "content": "Where is order 7341?"}
FAR = {"after": 1_000_000, "wait_ms": 5_000}
VICTIM = "/v1/agents/patient/sessions/s/context"
MEGABYTE = 1024 * 1024


@asynccontextmanager
async def installation(
    directory: Path, environ: Json | None = None
) -> AsyncGenerator[tuple[Parts, Service, Client]]:
    """A worker and a query service with a session of the agent `patient`; its requests are those that have to be answered."""
    async with (
        running_parts(directory, environ=environ) as parts,
        parts.running("worker"),
        parts.running("query") as query,
        parts.client() as client,
    ):
        receipt = await client.session("patient", "s").turn_completed([USER])
        await client.session("patient", "s").context(after=receipt.seq, wait_ms=5_000)
        yield parts, query, client


def http(parts: Parts) -> httpx.AsyncClient:
    """A client of HTTP with a connection of its own."""
    return parts.http(timeout=30)


async def is_answered(parts: Parts, client: Client) -> bool:
    """Whether the other agent gets its window now, over HTTP and on the bus, and its events and wishes are taken."""
    async with http(parts) as browser:
        over_http = (await browser.get(VICTIM)).status_code
    window = await client.session("patient", "s").context()
    await client.session("patient", "s").turn_completed([USER])
    await client.session("patient", "s").policy(mode="auto")
    return over_http == 200 and window.messages != []


class Crowd:
    """Connections that one attacker holds open."""

    def __init__(self, parts: Parts) -> None:
        host, _, port = parts.http_url.removeprefix("http://").partition(":")
        self._where = host, int(port)
        self._opened: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def send(self, data: bytes) -> None:
        """Open a connection, and send this on it."""
        reader, writer = await asyncio.open_connection(*self._where, limit=1 << 20)
        writer.write(data)
        self._opened.append((reader, writer))

    async def answers(self) -> list[tuple[bytes, Json]]:
        """The head and the JSON of what was answered until now."""
        return [answer for reader, _ in self._opened if (answer := await _answer(reader))]

    def hang_up(self) -> None:
        """Close every connection."""
        for _, writer in self._opened:
            writer.transport.abort()


async def _answer(reader: asyncio.StreamReader) -> tuple[bytes, Json] | None:
    try:
        async with asyncio.timeout(0.001):
            head = await reader.readuntil(b"\r\n\r\n")
    except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
        return None
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return head, json.loads(await reader.readexactly(length))


def post(agent: str, size: int, *, sent: int) -> bytes:
    """The beginning of a request with a body of this size."""
    head = f"POST /v1/agents/{agent}/sessions/s/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n"
    return head.encode() + b"x" * sent


def resident_bytes(pid: int) -> int:
    """How much memory a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files(pid: int) -> int:
    """How many files and connections a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.proves("X6", "C72")
async def test_512_waiting_requests_of_one_agent_leave_places_to_the_others(tmp_path: Path) -> None:
    async with (
        installation(tmp_path) as (parts, _, client),
        await nats.connect(parts.server.url) as bus,
        http(parts) as browser,
    ):
        is_over, firsts = False, list[Json]()

        async def hold_a_place(number: int) -> None:
            """Wait in vain, or to be let in, again and again for as long as the test lasts."""
            for attempt in count():
                reply = await bus.request(
                    f"context.get.greedy.s{number}", json.dumps(FAR).encode(), timeout=60
                )
                answer = json.loads(reply.data)
                if attempt == 0:
                    firsts.append(answer)
                if is_over:
                    return
                await asyncio.sleep(answer.get("error", {}).get("retry_after_ms", 0) / 1_000)

        async def refused_over_http() -> httpx.Response | None:
            answer = await browser.get("/v1/agents/greedy/sessions/s/context", params=FAR)
            return answer if answer.is_error else None

        async def refused_on_the_bus() -> Unavailable | None:
            try:
                await client.session("greedy", "s").context(after=1_000_000, wait_ms=5_000)
            except Unavailable as error:
                return error
            return None

        crowd = [asyncio.create_task(hold_a_place(number)) for number in range(512)]
        await wait_until(lambda: len(firsts) >= 256)
        answered = await is_answered(parts, client)
        # A place is free for a moment when its request has waited in vain and is made again.
        refused, told = await eventually(refused_over_http), await eventually(refused_on_the_bus)
        is_over = True
        await asyncio.gather(*crowd)

    assert answered
    errors = [answer["error"] for answer in firsts if "error" in answer]
    assert {(error["code"], error["retry_after_ms"]) for error in errors} == {
        ("unavailable", 1_000)
    }
    assert 0 < len(firsts) - len(errors) <= 256
    assert (
        refused.status_code,
        refused.headers["retry-after"],
        refused.json()["error"]["retry_after_ms"],
    ) == (503, "1", 1_000)
    assert told.retry_after_ms == 1_000


@pytest.mark.proves("X6", "C72")
async def test_512_unfinished_bodies_of_one_agent_leave_room_to_the_others(tmp_path: Path) -> None:
    async with installation(tmp_path) as (parts, _, client):
        crowd = Crowd(parts)
        for _ in range(512):
            await crowd.send(post("greedy", 1_000, sent=10))
        answered = await is_answered(parts, client)
        refused = await crowd.answers()
        crowd.hang_up()
        async with http(parts) as browser:
            after = await browser.post("/v1/agents/greedy/sessions/s/events", content=b"{}")

    assert answered
    assert len(refused) >= 200
    assert {
        (head.split()[1], told["error"]["code"], told["error"]["retry_after_ms"])
        for head, told in refused
    } == {(b"503", "unavailable", 1_000)}
    assert all(b"retry-after: 1" in head.lower() for head, _ in refused)
    assert after.status_code == 400


@pytest.mark.proves("X6")
async def test_150_unfinished_bodies_of_4_megabytes_take_no_more_memory_than_there_is_for_them(
    tmp_path: Path,
) -> None:
    async with installation(tmp_path, {"TURNFOLD_MAX_EVENT_BYTES": str(4 * MEGABYTE)}) as (
        parts,
        query,
        client,
    ):
        before = resident_bytes(query.pid)
        crowd = Crowd(parts)
        for number in range(150):
            await crowd.send(post(f"greedy-{number % 10}", 4 * MEGABYTE, sent=4 * MEGABYTE - 1))
        answered = await is_answered(parts, client)
        after = resident_bytes(query.pid)
        crowd.hang_up()

    assert answered
    # 600 MB were sent; 64 are allowed, and as much again may be on its way through the connection.
    assert after - before < 160 * MEGABYTE


@pytest.mark.proves("X9")
@pytest.mark.parametrize(
    "begun",
    [
        b"GET /v1/agents/gre",
        b"POST /console/sign-in HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\ntok",
    ],
    ids=["request lines", "forms"],
)
async def test_thousands_of_half_requests_of_strangers_shut_nobody_out(
    tmp_path: Path, begun: bytes
) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    async with installation(tmp_path) as (parts, query, client):
        crowd = Crowd(parts)
        for _ in range(min(2_500, hard - 500)):
            await crowd.send(begun)
        async with http(parts) as browser:
            alive = (await browser.get("/healthz")).status_code
        answered = await is_answered(parts, client)
        files = open_files(query.pid)
        crowd.hang_up()

    assert alive == 200
    assert answered
    assert files < 1_200


@pytest.mark.proves("X6")
async def test_who_hangs_up_gives_back_the_place_at_once(tmp_path: Path) -> None:
    async with installation(tmp_path, {"TURNFOLD_MAX_WAITING": "16"}) as (parts, _, _client):
        waiting = Crowd(parts)
        request = f"GET /v1/agents/greedy/sessions/s/context?after={FAR['after']}&wait_ms=5000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        patient = {"after": FAR["after"], "wait_ms": 100}
        async with http(parts) as browser:

            async def statuses(number: int) -> Counter[int]:
                path = "/v1/agents/greedy/sessions/s/context"
                return Counter(
                    [(await browser.get(path, params=patient)).status_code for _ in range(number)]
                )

            for _ in range(2):
                await waiting.send(request.encode())
            held = await statuses(1)
            waiting.hang_up()
            # The others would wait for five seconds: a hundred tries are over before.
            freed = await statuses(20)

    assert held == {503: 1}
    assert freed[200] >= 15


async def _told(bus: Bus, subject: str, request: Json) -> Json:
    return dict(
        json.loads((await bus.request(subject, json.dumps(request).encode(), timeout=60)).data)
    )


async def _told_in_the_end(bus: Bus, subject: str, request: Json) -> Json:
    """Ask as a client does, again after `retry_after_ms`: a starved machine may exceed the limit."""
    answer = await _told(bus, subject, request)
    for _ in range(10):
        if answer.get("error", {}).get("code") != "unavailable":
            break
        await asyncio.sleep(answer["error"].get("retry_after_ms", 200) / 1_000)
        answer = await _told(bus, subject, request)
    return answer


@pytest.mark.proves("X6")
async def test_heavy_searches_of_one_agent_hold_up_nobody_and_are_ended(tmp_path: Path) -> None:
    words = [f"{first}{second}" for first in "abcdefghij" for second in "klmnopqrst"]
    text = " ".join(words) + " "
    long = text * (200_000 // len(text))
    async with installation(tmp_path, {"TURNFOLD_REQUEST_SECONDS": "3"}) as (parts, _, client):
        for number in range(20):
            await client.session("greedy", "s").turn_completed(
                [{"role": "user", "content": f"{number} {long}"}]
            )
        # A window of this session may itself take longer than the limit on a loaded machine.
        await parts.caught_up()
        bus = await nats.connect(parts.server.url)
        searching = [
            asyncio.create_task(
                _told(bus, "history.search.greedy.s", {"q": " ".join(words), "limit": 100})
            )
            for _ in range(40)
        ]
        answered = await is_answered(parts, client)
        found = await _told_in_the_end(bus, "history.search.patient.s", {"q": "order"})
        ended = [await task for task in searching]
        again = await _told_in_the_end(bus, "history.search.patient.s", {"q": "order"})
        await bus.close()

    assert answered
    assert found["hits"]
    assert again["hits"]
    refused = [answer["error"] for answer in ended if "error" in answer]
    assert len(refused) >= 32
    assert {error["code"] for error in refused} == {"unavailable"}
