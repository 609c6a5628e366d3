"""Tools that the proxy answers: the model looks things up, and the caller only sees the answer."""

import gzip
import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from tests.provider import ProviderReply, chunks, completion, sse
from tests.running_system import eventually
from tests.services.proxy.conftest import ProxyScene
from turnfold.client import Session
from turnfold.errors import Unavailable
from turnfold_proxy.http import ProxyApp
from turnfold_proxy.lookups import RecallTools
from turnfold_proxy.metrics import ProxyMetrics
from turnfold_proxy.pauses import Pauses
from turnfold_proxy.recorder import Recorder
from turnfold_proxy.upstream import Upstream

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]
ON = {"x-turnfold-tools": "on"}
TOOL = "search_history"
QUERY = {"query": "quokka"}
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
OWN_TOOL = {"type": "function", "function": {"name": "track", "parameters": {"type": "object"}}}
ECHOED: Json = {"tools": [{"type": "function", "name": TOOL, "strict": False}]}
"""The tools of a request, which its response repeats."""


def chat_call(name: str = TOOL, call_id: str = "call_1") -> Json:
    function = {"name": name, "arguments": json.dumps(QUERY)}
    return {"id": call_id, "type": "function", "function": function}


def looking(path: str, *, is_streamed: bool) -> ProviderReply:
    """An answer that says a word and calls a tool of the proxy."""
    if path == CHAT:
        if not is_streamed:
            return completion("I look.", calls=[chat_call()])
        calls = [{"index": 0, **chat_call()}]
        deltas: list[Json] = [{"role": "assistant", "content": "I look."}, {"tool_calls": calls}]
        return ProviderReply(chunks(*deltas), "text/event-stream")
    if path == MESSAGES:
        thought = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
        use = {"type": "tool_use", "id": "toolu_1", "name": TOOL, "input": QUERY}
        message = {"type": "message", "role": "assistant", "content": [thought, use], "usage": {}}
        if not is_streamed:
            return ProviderReply([json.dumps(message).encode()])
        delta = {"type": "input_json_delta", "partial_json": json.dumps(QUERY)}
        return sse(
            {"type": "message_start", "message": {**message, "content": []}},
            {"type": "content_block_start", "index": 0, "content_block": thought},
            {"type": "content_block_stop", "index": 0},
            {"type": "content_block_start", "index": 1, "content_block": {**use, "input": {}}},
            {"type": "content_block_delta", "index": 1, "delta": delta},
            {"type": "content_block_stop", "index": 1},
            {"type": "message_stop"},
        )
    call = {
        "type": "function_call",
        "call_id": "call_1",
        "name": TOOL,
        "arguments": json.dumps(QUERY),
    }
    output: list[Json] = [{"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}, call]
    return _response(output, is_streamed=is_streamed)


def spoken(path: str, *, is_streamed: bool) -> ProviderReply:
    """An answer without a call."""
    if path == CHAT:
        delta: Json = {"role": "assistant", "content": "In Ghent."}
        streamed = ProviderReply(chunks(delta), "text/event-stream")
        return streamed if is_streamed else completion("In Ghent.")
    text = {"type": "text", "text": "In Ghent."}
    if path == MESSAGES:
        message = {"type": "message", "role": "assistant", "content": [text], "usage": {}}
        if not is_streamed:
            return ProviderReply([json.dumps(message).encode()])
        return sse(
            {"type": "message_start", "message": {**message, "content": []}},
            {"type": "content_block_start", "index": 0, "content_block": text},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_stop"},
        )
    said = {"type": "message", "role": "assistant", "content": [text | {"type": "output_text"}]}
    return _response([said], is_streamed=is_streamed)


def _response(output: list[Json], *, is_streamed: bool) -> ProviderReply:
    begun = {"id": "r", "object": "response", "status": "in_progress", "output": [], **ECHOED}
    response = begun | {"status": "completed", "output": output}
    if not is_streamed:
        return ProviderReply([json.dumps(response).encode()])
    return sse(
        {"type": "response.created", "response": begun},
        {"type": "response.completed", "response": response},
    )


def request_of(path: str, session_id: str, *, is_streamed: bool) -> Json:
    """A request that names its session in a header."""
    asked = {"role": "user", "content": f"Where is the quokka of {session_id}?"}
    body: Json = {"model": "gpt-4.1", "stream": is_streamed}
    if path == RESPONSES:
        return body | {"input": [asked]}
    return body | {"messages": [asked]} | ({"max_tokens": 99} if path == MESSAGES else {})


@pytest.mark.proves("G10", "F4")
@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
async def test_the_model_looks_things_up_and_the_caller_sees_the_answer_alone(
    scene: ProxyScene, path: str, is_streamed: bool
) -> None:
    session_id = f"lookup-{path[4:8]}-{is_streamed}"
    answer = spoken(path, is_streamed=is_streamed)
    scene.provider.script += [looking(path, is_streamed=is_streamed), answer]
    request = request_of(path, session_id, is_streamed=is_streamed)

    reply = await scene.http.post(
        path, json=request, headers=ON | {"x-turnfold-session": session_id}
    )
    first, second = (one.body for one in scene.provider.requests[-2:])
    texts = await eventually(lambda: _texts(scene, session_id, 2))

    field = "input" if path == RESPONSES else "messages"
    assert reply.content == b"".join(answer.chunks)
    assert reply.headers["x-turnfold-lookups"] == "1"
    assert TOOL in json.dumps(first["tools"])
    assert first[field] == request[field]
    assert second["tools"] == first["tools"]
    assert second[field][: len(first[field])] == first[field]
    called, result = json.dumps(second[field][1:-1]), json.dumps(second[field][-1])
    assert TOOL in called
    assert "quokka" in result
    assert "<turnfold-recall>" in result
    # Thoughts and reasoning stay with the call that they belong to.
    assert path == CHAT or "c2ln" in called or "gAAA" in called
    assert [role for role, _ in texts] == ["user", "assistant"]


@pytest.mark.proves("G10", "F4")
async def test_calls_of_both_kinds_in_one_answer_break_no_pair(scene: ProxyScene) -> None:
    """The lookup is answered first, and the model calls the caller's tool with its result."""
    both = completion(None, calls=[chat_call("track", "own"), chat_call()])
    last = completion(None, calls=[chat_call("track", "own-2")])
    scene.provider.script += [both, last]
    request = request_of(CHAT, "both", is_streamed=False) | {"tools": [OWN_TOOL]}

    reply = await scene.http.post(CHAT, json=request, headers=ON | {"x-turnfold-session": "both"})
    sent = scene.provider.requests[-1].body
    follow = {"role": "tool", "tool_call_id": "own-2", "content": "Ghent"}
    message = reply.json()["choices"][0]["message"]
    scene.provider.script.append(completion("In Ghent."))
    again = request | {"messages": [*request["messages"], message, follow]}
    await scene.http.post(CHAT, json=again, headers=ON | {"x-turnfold-session": "both"})

    assert reply.content == last.chunks[0]
    assert sent["tools"][0] == OWN_TOOL
    assert [call["id"] for call in sent["messages"][-2]["tool_calls"]] == ["call_1"]
    assert sent["messages"][-1]["tool_call_id"] == "call_1"
    assert len(scene.provider.requests[-1].body["messages"]) == 3
    texts = await eventually(lambda: _texts(scene, "both", 4))
    assert [role for role, _ in texts] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.proves("G10", "F4")
async def test_an_answer_whose_coding_is_only_named_is_read(scene: ProxyScene) -> None:
    """It was asked for a second time without the tools, after all lookups."""
    kind = "application/json\r\ncontent-encoding: none"
    looked, told = completion(None, calls=[chat_call()]), completion("In Ghent.")
    scene.provider.script += [ProviderReply(one.chunks, kind) for one in (looked, told)]
    before = len(scene.provider.requests)

    reply = await scene.http.post(
        CHAT, json=request_of(CHAT, "named", is_streamed=False), headers=ON
    )

    assert reply.content == told.chunks[0]
    assert len(scene.provider.requests) == before + 2


@pytest.mark.proves("G10", "F4")
async def test_a_model_that_does_not_stop_and_a_provider_without_tools_get_the_plain_call(
    scene: ProxyScene,
) -> None:
    cut = completion(None, calls=[chat_call()])
    cut_off = chunks({"role": "assistant", "tool_calls": [{"index": 0, **chat_call()}]})[0]
    broken = cut_off.replace(b'\\"quokka\\"}', b'\\"quo')
    refused = ProviderReply([b'{"error": {"message": "no tools"}}'], status=400)
    packed = ProviderReply(
        [gzip.compress(cut.chunks[0])], "application/json\r\ncontent-encoding: gzip"
    )
    wrong = chat_call() | {"function": {"name": TOOL, "arguments": '{"words": 1}'}}
    replies = {
        "never": [cut] * 6,
        "refused": [refused],
        "cut off": [ProviderReply([broken], "text/event-stream")],
        "compressed": [packed],
        "wrong": [completion(None, calls=[wrong])],
        "away": [],
    }
    sent: dict[str, list[Any]] = {}
    for name, script in replies.items():
        before = len(scene.provider.requests)
        scene.provider.script += [*script, completion("In Ghent.")]
        content = json.dumps(request_of(CHAT, name, is_streamed=False), indent=1)
        headers = {"x-turnfold-session": name} | ({} if name == "away" else ON)
        reply = await scene.http.post(CHAT, content=content, headers=headers)
        sent[name] = [one.content.decode() for one in scene.provider.requests[before:]]
        assert reply.json()["choices"][0]["message"]["content"] == "In Ghent."
        assert (sent[name][-1] == content) == (name != "wrong")

    assert [len(one) for one in sent.values()] == [7, 2, 2, 2, 2, 1]
    assert "last lookup" in sent["never"][5]
    assert "query: is required" in json.loads(sent["wrong"][1])["messages"][-1]["content"]


@pytest.mark.proves("G10", "F4")
async def test_a_lookup_in_a_stream_of_another_content_type_is_answered(scene: ProxyScene) -> None:
    reply = looking(CHAT, is_streamed=True)
    reply.kind = "text/plain"
    scene.provider.script += [reply, spoken(CHAT, is_streamed=True)]
    request = request_of(CHAT, "typed", is_streamed=True)

    answer = await scene.http.post(CHAT, json=request, headers=ON)

    assert answer.headers["x-turnfold-lookups"] == "1"
    assert answer.content == b"".join(spoken(CHAT, is_streamed=True).chunks)


@pytest.mark.proves("G10", "F4")
async def test_a_response_in_the_background_has_no_tools_that_its_caller_does_not_know(
    scene: ProxyScene,
) -> None:
    """The caller asks for it later, and would have to answer the lookups itself."""
    queued = {"id": "r", "object": "response", "status": "queued", "output": []}
    scene.provider.script.append(ProviderReply([json.dumps(queued).encode()]))
    content = json.dumps({"model": "gpt-5", "input": "Where is it?", "background": True})

    answer = await scene.http.post(RESPONSES, content=content, headers=ON)

    assert answer.json() == queued
    assert scene.provider.requests[-1].content.decode() == content


@pytest.mark.proves("G10", "F4")
@pytest.mark.parametrize("name", [TOOL, "track"])
async def test_a_response_that_ends_within_a_lookup_is_asked_for_again(
    scene: ProxyScene, name: str
) -> None:
    """One that ends within a call of the caller's tool is passed on, whatever tools it repeats."""
    item = {"type": "function_call", "call_id": "call_1", "name": name, "arguments": ""}
    response = {"id": "r", "status": "in_progress", "output": [], **ECHOED}
    cut = sse(
        {"type": "response.created", "response": response},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
    )
    answer = spoken(RESPONSES, is_streamed=True)
    scene.provider.script += [cut, answer] if name == TOOL else [cut]
    request = request_of(RESPONSES, f"within-{name}", is_streamed=True)

    reply = await scene.http.post(RESPONSES, json=request, headers=ON)

    assert reply.content == b"".join((answer if name == TOOL else cut).chunks)
    assert ("tools" in scene.provider.requests[-1].body) == (name != TOOL)


@pytest.mark.proves("G10", "F4")
@pytest.mark.parametrize(("is_answer", "most_asked"), [(False, 1), (True, 4)])
async def test_an_answer_waits_in_vain_for_one_lookup_at_most(
    scene: ProxyScene, is_answer: bool, most_asked: int
) -> None:
    """The model gets a result for each of its calls, in both rounds, and then answers."""
    asked: list[str] = []

    class AwaySession(Session):
        async def run_tool(self, name: str, arguments: Mapping[str, Any]) -> str:
            asked.append(f"{name} {arguments}")
            raise Unavailable("no reply", is_answer=is_answer)

    client, upstream, pauses = scene.client, Upstream(scene.provider.url), Pauses()
    recorder = Recorder(client.session, client.erasures, pauses, wait_seconds=60)
    tools = RecallTools(
        lambda *ids: AwaySession(client, client.session(*ids).key), pauses, wait_seconds=60
    )
    app = ProxyApp(upstream, recorder, ProxyMetrics(), tools, agent_id="proxy", has_tools=True)
    calls = [chat_call(call_id="one"), chat_call(call_id="two")]
    scene.provider.script += [completion(None, calls=calls)] * 2 + [completion("In Ghent.")]
    transport = httpx.ASGITransport(app)

    async with httpx.AsyncClient(transport=transport, base_url="http://proxy", timeout=60) as http:
        request = request_of(CHAT, f"away-{is_answer}", is_streamed=False)
        reply = await http.post(CHAT, json=request)
    await recorder.close()
    await upstream.close()

    messages = scene.provider.requests[-1].body["messages"]
    results = [one["content"] for one in messages if one["role"] == "tool"]
    assert reply.json()["choices"][0]["message"]["content"] == "In Ghent."
    assert len(asked) == most_asked
    assert len(results) == 4
    assert {text[:18] for text in results} == {"The lookup failed."}


async def _texts(scene: ProxyScene, session_id: str, length: int) -> Any:
    texts = await scene.texts(session_id)
    return texts if len(texts) == length else None
