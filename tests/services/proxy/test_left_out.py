"""Clients that repeat an answer without its reasoning: it is the same conversation."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.provider import ProviderReply, completion
from tests.running_system import eventually
from tests.services.proxy.conftest import HeldSession, ProxyScene
from turnfold.client import Session, Window
from turnfold.errors import Unavailable
from turnfold_proxy.apis import APIS
from turnfold_proxy.apis.api import ModelAnswer
from turnfold_proxy.http import ProxyApp
from turnfold_proxy.lookups import RecallTools
from turnfold_proxy.metrics import ProxyMetrics
from turnfold_proxy.pauses import Pauses
from turnfold_proxy.recorder import Call, Recorder
from turnfold_proxy.upstream import Upstream

pytestmark = pytest.mark.asyncio(loop_scope="module")

BYPASSED = "x-turnfold-bypassed"
ENCRYPTED = "gAAAA" * 20
Json = dict[str, Any]
Dialect = Callable[[int], tuple[bytes, list[Json], list[Json], Json]]
"""The answer of a step, its elements as the model wrote them and without reasoning, its result."""


def chat(number: int) -> tuple[bytes, list[Json], list[Json], Json]:
    function = {"name": "track", "arguments": "{}"}
    call = {"id": f"c{number}", "type": "function", "function": function}
    answer = completion(None, calls=[call])
    body = json.loads(answer.chunks[0])
    message = body["choices"][0]["message"]
    thought: Json = message | {"reasoning_content": f"Hm {number}."}
    body["choices"][0]["message"] = thought
    result: Json = {"role": "tool", "tool_call_id": f"c{number}", "content": "Ghent"}
    return json.dumps(body).encode(), [thought], [message], result


def responses(number: int) -> tuple[bytes, list[Json], list[Json], Json]:
    reasoning: Json = {
        "id": f"rs_{number}",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": f"Hm {number}."}],
        "encrypted_content": ENCRYPTED,
    }
    text = {"type": "output_text", "text": "I look.", "annotations": []}
    said: Json = {"id": f"m{number}", "type": "message", "role": "assistant", "content": [text]}
    call: Json = {"id": f"fc_{number}", "type": "function_call", "call_id": f"c{number}", "name": "track",
            "arguments": "{}", "status": "completed"}  # fmt: skip
    written: list[Json] = [
        reasoning,
        said,
        reasoning | {"id": f"rs_{number}b", "summary": []},
        call,
    ]
    body = {"id": "r", "object": "response", "status": "completed", "output": written}
    result = {"type": "function_call_output", "call_id": f"c{number}", "output": "Ghent"}
    return json.dumps(body).encode(), written, [said, call], result


def messages(number: int) -> tuple[bytes, list[Json], list[Json], Json]:
    thinking = {"type": "thinking", "thinking": f"Hm {number}.", "signature": "c2ln"}
    use = {"type": "tool_use", "id": f"c{number}", "name": "track", "input": {}}
    # Clients leave out a blank text, too, because the provider refuses it.
    message = {"role": "assistant", "content": [thinking, {"type": "text", "text": "\n\n"}, use]}
    result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": "Ghent"}
    return (
        json.dumps(message | {"type": "message"}).encode(),
        [message],
        [{"role": "assistant", "content": [use]}],
        {"role": "user", "content": [result]},
    )


DIALECTS = [
    pytest.param("/v1/chat/completions", "messages", chat, id="chat"),
    pytest.param("/v1/responses", "input", responses, id="responses"),
    pytest.param("/v1/messages", "messages", messages, id="messages"),
]


async def step(
    scene: ProxyScene, http: httpx.AsyncClient, path: str, listed: Json, dialect: Dialect, at: int
) -> tuple[list[Json], list[Json], Json]:
    """Send a list, which arrives as it was, until the answer is stored; return what that adds."""
    session = scene.client.session("proxy", f"left {path}")
    content, written, left, result = dialect(at)
    scene.provider.script.append(ProviderReply([content]))
    answer = await http.post(path, json=listed, headers={"x-turnfold-session": f"left {path}"})
    assert answer.status_code == 200
    assert BYPASSED not in answer.headers
    assert scene.provider.requests[-1].body == listed

    async def is_stored() -> bool:
        await session.history(newest=1, after="latest", wait_ms=5_000)
        return f"Hm {at}." in str([one async for one in session.originals()])

    await eventually(is_stored)
    return written, left, result


@pytest.mark.proves("G10", "C78", "L1", "L11")
@pytest.mark.parametrize(("path", "field", "dialect"), DIALECTS)
async def test_an_answer_without_its_reasoning_is_the_recorded_answer(
    scene: ProxyScene, path: str, field: str, dialect: Dialect
) -> None:
    """Nothing is retracted, also by a proxy that was restarted, and what was left out stays out."""
    client, upstream = scene.client, Upstream(scene.provider.url)
    recorder = Recorder(client.session, client.erasures, Pauses(), wait_seconds=60)
    tools = RecallTools(client.session, Pauses(), wait_seconds=60)
    app = ProxyApp(upstream, recorder, ProxyMetrics(), tools, agent_id="proxy", has_tools=False)
    transport = httpx.ASGITransport(app)
    question: Json = {"role": "user", "content": "Where is it?"}
    whole, short = [question], [question]
    async with httpx.AsyncClient(transport=transport, base_url="http://proxy", timeout=60) as http:
        for number in range(7):
            # Another proxy goes on, and then the client has begun to send reasoning back.
            caller = scene.http if number < 4 else http
            listed = whole if number == 5 else short
            written, left, result = await step(
                scene, caller, path, {field: listed}, dialect, number
            )
            more = [question] if number == 1 else []
            whole += [*written, result, *more]
            short += [*left, result, *more]
    await recorder.close()
    await upstream.close()

    assert not await scene.has_retracted(f"left {path}")


class _HeldSession(HeldSession):
    """A held session, of which so many windows fail, as if a worker was behind for too long."""

    gate = asyncio.Event()
    has_asked = asyncio.Event()
    failures = 0

    async def context(self, **asked: Any) -> Window:
        window = await super().context(**asked)
        if _HeldSession.failures:
            _HeldSession.failures -= 1
            raise Unavailable("not all is stored yet", is_answer=True)
        return window


async def _recorded_thoughts(
    scene: ProxyScene, name: str, path: str, field: str, dialect: Dialect, *, failures: int = 0
) -> list[int]:
    """The numbers of the five calls whose thoughts are stored; the second one's window is held."""
    api, client = APIS[path], scene.client
    gate, has_asked = _HeldSession.gate, _HeldSession.has_asked
    gate.set()

    def session_of(agent_id: str, session_id: str) -> Session:
        return _HeldSession(client, client.session(agent_id, session_id).key)

    recorder = Recorder(session_of, client.erasures, Pauses(), wait_seconds=60)
    own: list[Json] = [{"role": "user", "content": "Where is it?"}]
    for number in range(5):
        if number == 1:
            gate.clear()
            has_asked.clear()
            _HeldSession.failures = failures
        body = {"model": "m", field: own}
        conversation = api.conversation(body)
        assert conversation is not None
        prepared = await recorder.prepare(Call(api, "proxy", name, body, conversation, None))
        if number == 1:
            await has_asked.wait()
        _, written, left, result = dialect(number)
        assert recorder.record(prepared, ModelAnswer(written), is_whole=True)
        own = [*own, *left, result]
        if number == 0:
            await recorder.close()
    gate.set()
    await recorder.close()

    session = client.session("proxy", name)
    await session.history(newest=1, after="latest", wait_ms=5_000)
    stored = str([one async for one in session.originals()])
    assert _HeldSession.failures == 0
    return [number for number in range(5) if f"Hm {number}." in stored]


@pytest.mark.proves("G10", "C78")
@pytest.mark.parametrize(("path", "field", "dialect"), DIALECTS)
async def test_answers_are_recorded_with_their_reasoning_if_calls_come_before_they_are_stored(
    scene: ProxyScene, path: str, field: str, dialect: Dialect
) -> None:
    """Calls that continue a window do not wait until the calls before are stored."""
    recorded = await _recorded_thoughts(scene, f"held {path}", path, field, dialect)

    assert recorded == [0, 1, 2, 3, 4]


@pytest.mark.proves("G10", "C78", "L1")
@pytest.mark.parametrize(("path", "field", "dialect"), DIALECTS)
async def test_an_answer_is_recorded_with_its_reasoning_if_its_call_was_not_and_the_next_one_came(
    scene: ProxyScene, path: str, field: str, dialect: Dialect
) -> None:
    """The next list has the answer without its reasoning."""
    recorded = await _recorded_thoughts(scene, f"failed {path}", path, field, dialect, failures=1)

    assert recorded == [0, 1, 2, 3, 4]


@pytest.mark.proves("G10", "C78", "W3")
@pytest.mark.parametrize(("path", "field", "dialect"), DIALECTS)
@pytest.mark.parametrize("is_kept", [False, True])
async def test_a_trimmed_window_has_the_reasoning_that_the_caller_sends_and_no_other(
    scene: ProxyScene, path: str, field: str, dialect: Dialect, *, is_kept: bool
) -> None:
    headers = {"x-turnfold-session": f"trimmed {is_kept} {path}", "x-turnfold-budget": "1500"}
    own: list[Json] = []
    sent: list[Json] = []
    for number in range(10):
        content, written, left, result = dialect(number)
        if number % 2 == 0:
            own.append({"role": "user", "content": f"Question {number}? " + "item " * 400})
        scene.provider.script.append(ProviderReply([content]))
        body = {"model": "m", field: own}
        answer = await scene.http.post(path, json=body, headers=headers)
        assert BYPASSED not in answer.headers
        sent = scene.provider.requests[-1].body[field]
        assert is_kept or "Hm" not in str(sent)
        kinds = [one.get("type") for one in sent]
        assert not any(
            kind == "reasoning" and kinds[place + 1] not in ("message", "function_call")
            for place, kind in enumerate(kinds)
        )
        own += [*(written if is_kept else left), result]

    assert len(sent) < len(own) - 2
    assert not is_kept or "Hm 8." in str(sent)
    assert not await scene.has_retracted(headers["x-turnfold-session"])


@pytest.mark.proves("G10", "C78", "L1")
async def test_reasoning_at_the_end_of_a_list_or_an_answer_is_stored_with_the_next_item(
    scene: ProxyScene,
) -> None:
    """A response that was cut off ends with reasoning, and the caller may send it back."""
    headers = {"x-turnfold-session": "ends with reasoning"}
    session = scene.client.session("proxy", headers["x-turnfold-session"])
    question: Json = {"type": "message", "role": "user", "content": "Where is it?"}
    thoughts: list[Json] = [
        {"id": f"rs_{at}", "type": "reasoning", "summary": []} for at in range(4)
    ]
    text = {"type": "output_text", "text": "In Ghent.", "annotations": []}
    said: Json = {"id": "m", "type": "message", "role": "assistant", "content": [text]}
    own = [question, thoughts[0]]

    # A list ends with reasoning and gets no answer, then an answer ends so, or is nothing else.
    for answer in ([], [thoughts[1], said, thoughts[2]], [thoughts[3]], [said]):
        body = {"id": "r", "object": "response", "status": "incomplete", "output": answer}
        scene.provider.script.append(ProviderReply([json.dumps(body).encode()]))
        reply = await scene.http.post("/v1/responses", json={"input": own}, headers=headers)
        assert BYPASSED not in reply.headers
        own += [*answer, question]
    await scene.http.post("/v1/responses", json={"input": own}, headers=headers)

    async def is_stored() -> bool:
        await session.history(newest=1, after="latest", wait_ms=5_000)
        stored = [one async for one in session.originals()]
        return [one.element for one in stored][: len(own)] == own

    await eventually(is_stored)
    assert not await scene.has_retracted(headers["x-turnfold-session"])
