"""The route of windows reads URLs as FastAPI does, and watches only slow requests."""

import asyncio
from typing import Annotated, Any

import httpx
import pytest
from fastapi import FastAPI, Query
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnfold.contracts.requests import ContextQuery
from turnfold.process.request_limits import ConcurrencyLimiter
from turnfold.settings import Settings
from turnfold_query.http.request_reading import BodyMemory, ConcurrencyMiddleware
from turnfold_query.http.windows import query_of

URLS = (
    "",
    "max_tokens=8000",
    "max_tokens=8000&max_tokens=9",
    "max_tokens=",
    "max_tokens=-1",
    "max_tokens=1e3",
    "max_tokens=%31%30",
    "max_tokens=0x10",
    "max_tokens=nan",
    "wait_ms=5.0&after=17",
    "after=latest&wait_ms=99999",
    "after=never",
    "model=",
    "model=a%2Fb+c",
    "model=%C3%BC&query=%E6%97%A5",
    "model=%ff",
    "query=a;b",
    "query=a=b&&",
    "query",
    "as_of=3",
    "as_of=2026-01-01T00:00:00Z",
    "recall=false&recall_tokens=5",
    "recall=0",
    "recall=maybe",
    "recall_share=0.5&recall_tokens=100",
    "recall_share=1",
    "format=anthropic&placement=user&mode=emergency",
    "format=xml",
    "entries=yes&bodies=changed",
    "entries=2",
    "max_messages=0",
    "unknown=1",
    "MAX_TOKENS=5",
)


@pytest.fixture(scope="module")
def fastapi_reading() -> FastAPI:
    app = FastAPI()

    @app.get("/")
    async def read(query: Annotated[ContextQuery, Query()]) -> dict[str, Any]:
        return query.request().model_dump()

    return app


@pytest.mark.parametrize("url", URLS)
async def test_a_url_asks_for_the_same_window_as_with_fastapi(
    url: str, fastapi_reading: FastAPI
) -> None:
    transport = httpx.ASGITransport(fastapi_reading)
    async with httpx.AsyncClient(transport=transport) as client:
        answer = await client.get(f"http://test/?{url}")

    query = query_of(url.encode())

    assert (query is None) == (answer.status_code == 422)
    if query is not None:
        assert query.request().model_dump(mode="json") == answer.json()


SCOPE = {
    "type": "http", "method": "GET", "path": "/v1/agents/a/sessions/s/context",
    "query_string": b"", "headers": [],
}  # fmt: skip


def limited(app: ASGIApp, *, seconds: float = 30.0) -> ConcurrencyMiddleware:
    return ConcurrencyMiddleware(
        app,
        ConcurrencyLimiter(Settings()),
        BodyMemory(10**6, 10**6),
        most_bytes=lambda _: 1_000,
        seconds=seconds,
        on_refusal=lambda _: None,
    )


class Caller:
    """The server's side of one connection: what it sent, and whether the caller hangs up."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.hangs_up = asyncio.Event()
        self._is_told = False

    async def receive(self) -> Message:
        if not self._is_told:
            self._is_told = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.hangs_up.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int | None:
        return next((int(message["status"]) for message in self.sent if "status" in message), None)


async def _answer(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x"})


async def test_a_quick_read_starts_no_task() -> None:
    tasks: set[asyncio.Task[Any]] = set()

    async def app(_: Scope, _receive: Receive, send: Send) -> None:
        tasks.update(asyncio.all_tasks())
        await _answer(send)

    caller = Caller()
    await limited(app)(SCOPE, caller.receive, caller.send)

    assert caller.status == 200
    assert tasks == {asyncio.current_task()}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/agents/a/sessions/s/context"),
        ("POST", "/v1/agents/a/sessions/s/tools/search_history"),
        ("POST", "/v1/agents/a/events/known"),
    ],
)
async def test_a_read_ends_when_its_caller_hangs_up(method: str, path: str) -> None:
    ended = asyncio.Event()
    caller = Caller()

    async def app(_: Scope, _receive: Receive, _send: Send) -> None:
        caller.hangs_up.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    asked = SCOPE | {"method": method, "path": path}
    # A limit for the case that it does not end.
    async with asyncio.timeout(10):
        await limited(app)(asked, caller.receive, caller.send)

    assert ended.is_set()
    assert not caller.sent


@pytest.mark.parametrize("path", ["/events", "/tools/pop/x", "/policy", "/pop"])
async def test_a_command_runs_to_its_end_when_its_caller_hangs_up(path: str) -> None:
    caller = Caller()

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await receive()
        caller.hangs_up.set()
        await asyncio.sleep(0.02)
        await _answer(send)

    asked = SCOPE | {"method": "POST", "path": f"/v1/agents/a/sessions/tools{path}"}
    await limited(app)(asked, caller.receive, caller.send)

    assert caller.status == 200


async def test_an_answer_that_has_begun_is_finished() -> None:
    caller = Caller()

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        caller.hangs_up.set()
        left = await receive()
        await asyncio.sleep(0.02)
        await send({"type": "http.response.body", "body": left["type"].encode()})

    await limited(app, seconds=0.01)(SCOPE, caller.receive, caller.send)

    assert [message.get("body") for message in caller.sent] == [None, b"x", b"http.disconnect"]


async def test_a_read_that_takes_too_long_is_refused() -> None:
    caller = Caller()

    async def app(_: Scope, _receive: Receive, _send: Send) -> None:
        await asyncio.Event().wait()

    await limited(app, seconds=0.01)(SCOPE, caller.receive, caller.send)

    assert caller.status == 503
