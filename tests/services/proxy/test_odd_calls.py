"""Calls with something that Turnfold cannot store or tell: they go out, and disturb no others."""

import asyncio
import gzip
import json
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from structlog.testing import capture_logs

from tests.provider import ProviderReply, chunks, completion, running_provider
from tests.running_system import eventually
from tests.services.proxy.conftest import ProxyScene
from turnfold.client import Client, Session, Window
from turnfold.client.events import OutgoingEvent
from turnfold.contracts.subjects import TURN_COMPLETED
from turnfold.errors import Conflict
from turnfold_proxy.apis import APIS
from turnfold_proxy.apis.api import ModelAnswer
from turnfold_proxy.http import ProxyApp
from turnfold_proxy.lookups import RecallTools
from turnfold_proxy.metrics import ProxyMetrics
from turnfold_proxy.pauses import Pauses
from turnfold_proxy.recorder import Call, PreparedCall, Recorder
from turnfold_proxy.upstream import Upstream

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
LISTS = {CHAT: "messages", RESPONSES: "input", "/v1/messages": "messages"}
BYPASSED = "x-turnfold-bypassed"
Json = dict[str, Any]
USER: Json = {"role": "user", "content": "Where is 7341?"}
NESTED: Json = {"role": "user", "content": "So?", "extra": []}
for _ in range(70):
    NESTED["extra"] = [NESTED["extra"]]


@pytest.mark.proves("G10", "C79")
@pytest.mark.parametrize(
    ("path", "odd", "reason"),
    [
        pytest.param(
            CHAT, {"role": "function", "name": "f", "content": "1"}, "bad_request", id="function"
        ),
        pytest.param(CHAT, {"role": "critic", "content": "No."}, "bad_request", id="role"),
        pytest.param(CHAT, NESTED, "bad_request", id="nested"),
        pytest.param(
            CHAT, {"role": "user", "content": "x" * 5 * 2**20}, "too_large", id="above 4 MiB"
        ),
        pytest.param(CHAT, USER | {"extra": 10**4_100}, "bad_request", id="digits"),
        pytest.param(RESPONSES, {"id": "msg_1"}, "unread", id="reference"),
        pytest.param(RESPONSES, {"role": "critic", "content": "No."}, "bad_request", id="item"),
        pytest.param("/v1/messages", {"content": "No."}, "bad_request", id="no role"),
    ],
)
async def test_an_element_that_cannot_be_stored_bypasses_its_own_call_alone(
    scene: ProxyScene, path: str, odd: Json, reason: str, request: pytest.FixtureRequest
) -> None:
    """Without it, the session goes on; nothing of it became a dead letter."""
    name = request.node.callspec.id
    named = {"x-turnfold-session": f"odd {name}"}

    async def ask(elements: list[Json], session: Json = named) -> Any:
        return await scene.http.post(path, json={LISTS[path]: elements}, headers=session)

    bypassed = [await ask([USER, odd]), await ask([USER, odd, USER])]
    sent = scene.provider.requests[-1].body
    other = await ask([USER], {"x-turnfold-session": f"beside {name}"})
    after = await ask([USER])

    assert [one.status_code for one in bypassed] == [200, 200]
    assert [one.headers[BYPASSED] for one in bypassed] == [reason, reason]
    assert sent == {LISTS[path]: [USER, odd, USER]}
    assert BYPASSED not in other.headers
    assert BYPASSED not in after.headers
    texts = await scene.texts(f"odd {name}")
    assert texts[0] == ("user", USER["content"])
    assert await scene.parts.rows("SELECT 1 FROM dead_letters") == []


@pytest.mark.proves("G10", "X2")
async def test_ids_of_other_scripts_pass_through_headers(scene: ProxyScene) -> None:
    """As UTF-8, both ways; a client that writes Latin-1 names the same session."""
    named: Json = {"metadata": {"session_id": "用户-7"}}

    async def ask(headers: dict[str, bytes], **more: Any) -> httpx.Response:
        names = {name.encode(): value for name, value in headers.items()}
        return await scene.http.post(CHAT, json={"messages": [USER], **more}, headers=names)

    first = await ask({"x-turnfold-agent": "助手".encode()}, **named)
    told = dict(first.headers.raw)[b"x-turnfold-session"]
    answers = [
        await ask({"x-turnfold-agent": "助手".encode(), "x-turnfold-session": told}),
        await ask({"x-turnfold-session": "café".encode()}),
        await ask({"x-turnfold-session": "café".encode("latin-1")}),
    ]

    assert told.decode() == "用户-7"
    assert [BYPASSED in one.headers for one in [first, *answers]] == [False] * 4
    assert (await scene.texts("用户-7", "助手"))[0] == ("user", USER["content"])
    assert (await scene.texts("café"))[0] == ("user", USER["content"])


def _list_of(path: str, calls: list[tuple[str | None, str]]) -> list[Json]:
    """Return a question, one answer with these calls by id and name, and their results."""
    if path == CHAT:
        entries = [
            {"id": one, "function": {"name": name, "arguments": "{}"}} for one, name in calls
        ]
        results = [{"role": "tool", "tool_call_id": one, "content": "Ghent"} for one, _ in calls]
        return [USER, {"role": "assistant", "content": None, "tool_calls": entries}, *results]
    if path == RESPONSES:
        items = [
            {"type": "function_call", "call_id": one, "name": name, "arguments": "{}"}
            for one, name in calls
        ]
        output = {"type": "function_call_output", "output": "Ghent"}
        return [USER, *items, *({**output, "call_id": one} for one, _ in calls)]
    uses: list[Json] = [
        {"type": "tool_use", "id": one, "name": name, "input": {}} for one, name in calls
    ]
    blocks = [{"type": "tool_result", "tool_use_id": one, "content": "Ghent"} for one, _ in calls]
    return [USER, {"role": "assistant", "content": uses}, {"role": "user", "content": blocks}]


@pytest.mark.proves("G10", "L5")
@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize(
    "calls",
    [
        pytest.param([("", "track")], id="empty id"),
        pytest.param([(None, "track")], id="no id"),
        pytest.param([("c1", "track"), ("c1", "find")], id="one id twice"),
        pytest.param([("c1", "")], id="no name"),
    ],
)
async def test_calls_that_cannot_be_told_apart_reach_the_provider_with_their_results(
    scene: ProxyScene, path: str, calls: list[tuple[str | None, str]]
) -> None:
    """A window has no such calls: without their results, the model would call again and again."""
    content = json.dumps({LISTS[path]: _list_of(path, calls)}, indent=3)

    answer = await scene.http.post(path, content=content)

    assert scene.provider.requests[-1].content.decode() == content
    assert answer.headers[BYPASSED] == "unread"


@pytest.mark.proves("G10", "L5")
@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_an_id_of_an_earlier_answer_may_return(scene: ProxyScene, path: str) -> None:
    """Some providers number the calls of each answer anew."""
    elements = [*_list_of(path, [("c1", "track")]), *_list_of(path, [("c1", "track")])]
    content = json.dumps({LISTS[path]: elements}, indent=3)

    answer = await scene.http.post(path, content=content)

    assert BYPASSED not in answer.headers
    assert scene.provider.requests[-1].content.decode() == content


@pytest.mark.proves("G10", "C79")
async def test_a_dead_letter_of_the_past_does_not_bypass_a_session(scene: ProxyScene) -> None:
    session = scene.client.session("proxy", "past")
    event = {"event_id": "e", **session.key._asdict(), "messages": [{"role": "critic"}]}
    payload = json.dumps(event).encode()
    await scene.client.publish(OutgoingEvent(TURN_COMPLETED, session.key, "e", payload))
    await eventually(lambda: _is_refused(session))

    answer = await scene.http.post(
        CHAT, json={"messages": [USER]}, headers={"x-turnfold-session": "past"}
    )

    assert BYPASSED not in answer.headers
    assert (await scene.texts("past"))[0] == ("user", USER["content"])


class _DisturbedSession(Session):
    """A session to which another program publishes just before each window."""

    async def context(self, **asked: Any) -> Window:
        await self.turn_completed([{"role": "user", "content": "Me too."}])
        return await super().context(**asked)


@pytest.mark.proves("G10", "C79")
async def test_another_publisher_bypasses_the_calls_of_its_own_session_alone(
    scene: ProxyScene,
) -> None:
    client: Client = scene.client

    def session_of(agent_id: str, session_id: str) -> Session:
        session = client.session(agent_id, session_id)
        return _DisturbedSession(client, session.key) if session_id == "two" else session

    def call_of(session_id: str) -> Call:
        api, body = APIS[CHAT], {"messages": [USER]}
        conversation = api.conversation(body)
        assert conversation is not None
        return Call(api, "twice", session_id, body, conversation, None)

    recorder = Recorder(session_of, client.erasures, Pauses(), wait_seconds=60)
    with pytest.raises(Conflict):
        await recorder.prepare(call_of("two"))
    prepared = await recorder.prepare(call_of("one"))
    await recorder.close()

    assert prepared.tokens > 0


async def _is_refused(session: Session) -> bool:
    return (await session.context(max_tokens=1_000, after="latest")).refused > 0


class _FaultyRecorder(Recorder):
    """A recorder with a fault, which quotes the user."""

    async def prepare(self, call: Call) -> PreparedCall:
        if call.session_id == "prepare":
            raise KeyError(str(call.body))
        return await super().prepare(call)

    def record(
        self, prepared: PreparedCall, answer: ModelAnswer, *, is_whole: bool
    ) -> asyncio.Task[bool] | None:
        if prepared.call.session_id == "record":
            raise IndexError(str(answer))
        return super().record(prepared, answer, is_whole=is_whole)


class _FaultyTools(RecallTools):
    """Tools with a fault in offering them."""

    async def offered(self, call: Call) -> Call:
        raise LookupError(str(call.body))


@pytest.mark.proves("G10", "C79")
@pytest.mark.parametrize(
    ("place", "error"),
    [("offered", "LookupError"), ("prepare", "KeyError"), ("record", "IndexError")],
)
async def test_a_fault_of_the_proxy_stops_no_call(
    scene: ProxyScene, place: str, error: str
) -> None:
    """The call goes out as it came, its answer comes, and the log has the type of the error."""
    client, metrics, upstream = scene.client, ProxyMetrics(), Upstream(scene.provider.url)
    recorder = _FaultyRecorder(client.session, client.erasures, Pauses(), wait_seconds=60)
    tools = _FaultyTools(client.session, Pauses(), wait_seconds=60)
    app = ProxyApp(upstream, recorder, metrics, tools, agent_id="faulty", has_tools=False)
    headers = {
        "x-turnfold-session": place,
        "x-turnfold-tools": "on" if place == "offered" else "off",
    }
    content = b'{"messages":  [{"role": "user", "content": "Where is 7341?"}]}'

    with capture_logs() as logs:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://proxy", timeout=60
        ) as http:
            answer = await http.post(CHAT, content=content, headers=headers)
    await recorder.close()
    await upstream.close()

    assert answer.status_code == 200
    assert answer.json()["choices"]
    assert scene.provider.requests[-1].content == content
    assert answer.headers.get(BYPASSED) == (None if place == "record" else "failed")
    assert error in [one.get("error") for one in logs]
    assert "7341" not in str(logs)
    counted = 'answers_total{ended="unrecorded"}' if place == "record" else 'reason="failed"'
    assert counted in metrics.text().decode()


@pytest.mark.proves("G10", "C79")
async def test_a_message_without_role_gets_the_error_of_its_provider(scene: ProxyScene) -> None:
    scene.provider.script.append(ProviderReply([b'{"type": "error"}'], status=400))

    answer = await scene.http.post("/v1/messages", json={"messages": [{"content": "Hello?"}]})

    assert (answer.status_code, answer.content) == (400, b'{"type": "error"}')


@pytest.mark.proves("G10")
async def test_a_compressed_call_reaches_the_provider_and_its_answer_says_that_it_was_not_read(
    scene: ProxyScene,
) -> None:
    content = gzip.compress(json.dumps({"messages": [USER]}).encode())

    answer = await scene.http.post(CHAT, content=content, headers={"content-encoding": "gzip"})
    metrics = (await scene.http.get("/metrics")).text
    sent = scene.provider.requests[-1]

    assert (sent.content, sent.headers["content-encoding"]) == (content, "gzip")
    assert answer.json()["choices"]
    assert answer.headers[BYPASSED] == "unread"
    assert 'turnfold_proxy_bypassed_total{reason="unread"}' in metrics


@pytest.mark.proves("G10")
async def test_a_base_url_without_its_version_is_recorded_as_well(scene: ProxyScene) -> None:
    headers = {"x-turnfold-session": "no-version"}
    call = {"model": "gpt-4.1", "messages": [{"role": "user", "content": "Where is it?"}]}

    await scene.http.post("/chat/completions", headers=headers, json=call)

    assert scene.provider.requests[-1].path == "/chat/completions"
    assert ("user", "Where is it?") in await scene.texts("no-version")


@pytest.mark.proves("G10")
async def test_a_health_check_without_a_body_asks_the_proxy_and_not_its_provider(
    scene: ProxyScene,
) -> None:
    before = len(scene.provider.requests)

    answers = [await scene.http.head(path) for path in ("/healthz", "/readyz", "/metrics")]

    assert [(one.status_code, one.content) for one in answers] == [(200, b"")] * 3
    assert len(scene.provider.requests) == before


@pytest.mark.proves("G10")
@pytest.mark.parametrize("target", ["*", "*@{other}/v1/models", "*" + "/x" * 30])
async def test_a_target_that_is_no_path_reaches_no_host(scene: ProxyScene, target: str) -> None:
    """It stands where a path stands, and must not end the name of the provider's host."""
    async with running_provider(lambda _: completion("Mine.")) as other:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(scene.url).port)
        line = f"OPTIONS {target.format(other=urlsplit(other.url).netloc)} HTTP/1.1"
        writer.write(f"{line}\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"turnfold_proxy" in answer
    assert other.requests == []


@pytest.mark.proves("G10")
@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        pytest.param(chunks({"content": "It left Ghent."}), "text/plain", id="stream"),
        pytest.param(chunks({"content": "It left Ghent."}), "application/json", id="as json"),
        pytest.param(completion("It left Ghent.").chunks, "text/event-stream", id="no stream"),
        pytest.param([b" \n", *completion("It left Ghent.").chunks], "", id="no type"),
    ],
)
async def test_an_answer_is_read_whatever_its_content_type(
    scene: ProxyScene, pieces: list[bytes], kind: str, request: pytest.FixtureRequest
) -> None:
    """Clients know what they have asked for, and do not read the type."""
    name = f"typed {request.node.callspec.id}"
    scene.provider.script.append(ProviderReply(pieces, kind))

    answer = await scene.http.post(
        CHAT, json={"messages": [USER], "stream": True}, headers={"x-turnfold-session": name}
    )
    texts = await eventually(lambda: _with_answer(scene, name))

    assert answer.content == b"".join(pieces)
    assert texts[-1] == ("assistant", "It left Ghent.")


@pytest.mark.proves("G10")
@pytest.mark.parametrize(
    ("head", "body", "said"),
    [
        (b"304 X\r\ncontent-length: 9", b"", b""),
        (b"200 X\r\ncontent-length: 2\r\ntransfer-encoding: chunked",
         b"4\r\nSent\r\n0\r\n\r\n", b"Sent"),
    ],
    ids=["of no body", "beside chunks"],
)  # fmt: skip
async def test_a_length_that_is_void_cuts_no_answer_off(
    scene: ProxyScene, head: bytes, body: bytes, said: bytes
) -> None:
    """Its connection goes on, too; a header of another proxy does not pass for one of this."""
    raw = b"HTTP/1.1 %b\r\nx-turnfold-version: 7\r\n\r\n%b" % (head, body)
    scene.provider.script.append(ProviderReply([raw], is_raw=True))

    async with httpx.AsyncClient(base_url=scene.url, trust_env=False, timeout=60) as http:
        answers = [await http.get("/v1/files/1"), await http.get("/healthz")]
        streams = [one.extensions["network_stream"] for one in answers]
        first, second = [one.get_extra_info("client_addr") for one in streams]

    assert (answers[0].status_code, answers[0].content) == (int(head[:3]), said)
    assert first == second
    assert "x-turnfold-version" not in answers[0].headers


@pytest.mark.proves("G10")
@pytest.mark.parametrize("header", [b"content-length: 34", b"connection: close"])
async def test_a_provider_may_answer_before_the_end_of_a_long_call_and_close(header: bytes) -> None:
    """It refuses a call that is too long; the caller learns why."""
    refusal = b'{"error": {"message": "too long"}}'

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 X\r\n%b\r\n\r\n%b" % (header, refusal))
        if header == b"connection: close":
            # The end of the answer has to arrive before the reset.
            writer.write_eof()
            await asyncio.sleep(0.2)
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        upstream = Upstream(f"http://{host}:{port}")
        answer = await upstream.send("POST", CHAT, (), b"x" * 20_000_000, is_plain=True)
        content = await answer.aread()
        await upstream.close()

    assert (answer.status_code, content) == (413, refusal)


@pytest.mark.proves("G10")
async def test_an_answer_without_end_during_a_call_is_passed_on_and_fills_no_memory() -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 X\r\n\r\n")
        while True:
            writer.write(b"x" * 1_000_000)
            sent += 1_000_000
            await writer.drain()

    async with await asyncio.start_server(flood, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        upstream = Upstream(f"http://{host}:{port}")
        answer = await upstream.send("POST", CHAT, (), b"x" * 20_000_000, is_plain=True)
        # What the operating system holds comes on top.
        assert sent < 20_000_000
        received = 0
        async for part in answer.aiter_raw():
            received += len(part)
            if received > 40_000_000:
                break
        await answer.aclose()
        await upstream.close()


async def _with_answer(scene: ProxyScene, name: str) -> list[tuple[str, object]] | None:
    texts = await scene.texts(name)
    return texts if len(texts) > 1 else None


@pytest.mark.proves("G10", "C79")
@pytest.mark.parametrize("session_id", ["a\nb", "a\x00b", "a\ud800", "x" * 300])
async def test_an_id_that_cannot_be_one_is_not_told_in_a_header(
    scene: ProxyScene, session_id: str
) -> None:
    body = {"messages": [USER], "prompt_cache_key": session_id}

    answer = await scene.http.post(CHAT, content=json.dumps(body))

    assert answer.status_code == 200
    assert answer.headers[BYPASSED] == "bad_request"
    assert "x-turnfold-session" not in answer.headers
