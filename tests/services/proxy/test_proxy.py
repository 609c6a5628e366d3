"""Model calls through the proxy: real bus, database, services and HTTP on both sides."""

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from signal import SIGTERM
from typing import Any

import httpx
import pytest

from tests.nats_server import nats_server
from tests.ports import free_port
from tests.provider import DATE, ProviderReply, chunks, completion, sse
from tests.running_system import Parts, eventually
from tests.services.proxy.conftest import KEY, ProxyScene
from turnfold.errors import UnknownSession

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/chat/completions"
SYSTEM = {"role": "system", "content": "Be brief."}
STREAM = "text/event-stream"
BYPASSED = "x-turnfold-bypassed"
Json = dict[str, Any]


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def assistant(text: str) -> Json:
    return {"role": "assistant", "content": text}


async def asked(scene: ProxyScene, messages: list[Json], **headers: str) -> httpx.Response:
    """Send one call that is not streamed."""
    named = {f"x-turnfold-{name}": value for name, value in headers.items()}
    return await scene.http.post(
        PATH, json={"model": "gpt-4.1", "messages": messages}, headers=named
    )


@pytest.mark.proves("G10", "X1")
async def test_a_call_reaches_the_provider_as_it_came_and_its_answer_the_caller(
    scene: ProxyScene,
) -> None:
    """The turn is recorded, and the key is in no row and in no log."""
    reply = completion("It left Ghent this morning.")
    scene.provider.script.append(reply)
    content = json.dumps(
        {"model": "gpt-4.1", "messages": [SYSTEM, user("Where is 7341?")]}, indent=3
    )

    answer = await scene.http.post(f"{PATH}?a=b%2Fc", content=content)
    sent = scene.provider.requests[-1]
    session_id = answer.headers["x-turnfold-session"]
    texts = await eventually(lambda: _of_length(scene, session_id, 2))

    assert (sent.path, sent.content.decode()) == (f"{PATH}?a=b%2Fc", content)
    assert sent.headers["authorization"] == f"Bearer {KEY}"
    assert not [name for name in sent.headers if name.startswith("x-turnfold")]
    assert answer.content == reply.chunks[0]
    assert answer.headers["x-request-id"] == "req-1"
    assert answer.headers.get_list("date") == [DATE]
    assert answer.headers.get_list("server") == ["provider"]
    assert int(answer.headers["x-turnfold-tokens"]) > 0
    assert answer.headers["x-turnfold-version"] == "0"
    assert "x-turnfold-bypassed" not in answer.headers
    assert texts == [("user", "Where is 7341?"), ("assistant", "It left Ghent this morning.")]
    rows = await scene.parts.rows("SELECT * FROM messages_view")
    assert KEY not in f"{rows} {scene.parts.words()} {session_id}"


@pytest.mark.proves("G10", "C78")
async def test_a_stream_is_relayed_chunk_by_chunk_and_what_the_client_sends_back_is_known(
    scene: ProxyScene,
) -> None:
    """The client writes the answer in its own way: with other fields, spaces and arguments.

    Some providers repeat the id of a call, empty, with the pieces of its arguments.
    """
    call = {"name": "track", "arguments": ""}
    deltas: list[Json] = [
        {"role": "assistant", "content": "I will "},
        {"content": "look."},
        {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": call}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"order": '}}]},
        {
            "tool_calls": [
                {"index": 0, "id": "", "type": "", "function": {"name": "", "arguments": "7341}"}}
            ]
        },
    ]
    reply = ProviderReply(chunks(*deltas, usage={"prompt_tokens": 9}), STREAM, gate=asyncio.Event())
    scene.provider.script.append(reply)
    messages = [SYSTEM, user("Where is order 7341, please?")]
    request = {"model": "gpt-4.1", "messages": messages, "stream": True}

    got: list[bytes] = []
    async with scene.http.stream("POST", PATH, json=request) as answer:
        session_id = answer.headers["x-turnfold-session"]
        async for chunk in answer.aiter_raw():
            # The provider writes no second chunk before the caller has the first.
            assert reply.gate
            reply.gate.set()
            got.append(chunk)
    back = {
        "role": "assistant", "content": "I will look. ", "refusal": None, "annotations": [],
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "track", "arguments": '{"order":7341}'}}],
    }  # fmt: skip
    result = {"role": "tool", "tool_call_id": "call_1", "content": "Ghent"}
    again = await asked(scene, [*messages, back, result])
    texts = await eventually(lambda: _of_length(scene, session_id, 4))

    assert b"".join(got) == b"".join(reply.chunks)
    assert again.headers["x-turnfold-session"] == session_id
    assert scene.provider.requests[-1].body["messages"] == [*messages, back, result]
    assert texts == [
        ("user", "Where is order 7341, please?"), ("assistant", "I will look."), ("tool", "Ghent"),
        ("assistant", "It left Ghent."),
    ]  # fmt: skip
    assert not await scene.has_retracted(session_id)


@pytest.mark.proves("G10", "C78", "L11")
async def test_a_long_conversation_is_trimmed_with_a_stable_beginning_and_edits_are_recognised(
    scene: ProxyScene,
) -> None:
    messages: list[Json] = [SYSTEM]
    sent: list[list[Json]] = []
    for number in range(12):
        messages.append(user(f"Question {number}: " + f"item {number} " * 60))
        answer = await asked(scene, messages, session="long", budget="900", agent="ada")
        assert int(answer.headers["x-turnfold-tokens"]) <= 900
        sent.append(scene.provider.requests[-1].body["messages"])
        messages.append(answer.json()["choices"][0]["message"])
    await eventually(lambda: _of_length(scene, "long", 24, "ada"))
    retried = await asked(scene, messages[:-1], session="long", budget="900", agent="ada")
    resent = scene.provider.requests[-1].content

    assert retried.status_code == 200
    assert [one[0] for one in sent] == [SYSTEM] * 12
    assert [one[-1]["content"][:11] for one in sent[-3:]] == [
        f"Question {n}:"[:11] for n in (9, 10, 11)
    ]
    assert len(sent[-1]) < len(messages) - 1
    await asked(scene, messages[:-1], session="long", budget="900", agent="ada")
    assert scene.provider.requests[-1].content == resent

    edited = [*messages[:5], user("Something else?")]
    await asked(scene, edited, session="long", agent="ada")
    texts = await eventually(lambda: _of_length(scene, "long", 6, "ada"))
    assert scene.provider.requests[-1].body["messages"] == edited
    assert texts[-2:] == [("user", "Something else?"), ("assistant", "It left Ghent.")]


@pytest.mark.proves("G10", "L11")
async def test_steps_of_tools_continue_the_window_of_the_call_before(scene: ProxyScene) -> None:
    """Nobody waits until they are stored; all of them are stored, and what is sent stays valid."""
    messages: list[Json] = []
    for number in range(12):
        messages += [user(f"Question {number}: " + "item " * 150), assistant(f"Answer {number}.")]
    messages.append(user("And where is 7341?"))
    sent: list[list[Json]] = []
    for number in range(4):
        function = {"name": "track", "arguments": "{}"}
        call = {"id": f"c{number}", "type": "function", "function": function}
        scene.provider.script.append(completion(None, calls=[call]))
        answer = await asked(scene, messages, session="steps", budget="1500")
        assert int(answer.headers["x-turnfold-tokens"]) <= 1_500
        sent.append(scene.provider.requests[-1].body["messages"])
        result = {"role": "tool", "tool_call_id": f"c{number}", "content": "Ghent"}
        messages += [answer.json()["choices"][0]["message"], result]
    texts = await eventually(lambda: _of_length(scene, "steps", 32))

    assert len(sent[0]) < 25
    # Steps of one turn begin as the one before, and each ends with its own call and result.
    assert all(later[: len(one)] == one for one, later in pairwise(sent))
    assert sent[-1][-2:] == messages[-4:-2]
    assert [role for role, _ in texts[-7:]] == ["assistant", "tool"] * 3 + ["assistant"]


@pytest.mark.proves("G10", "L1", "L2")
@pytest.mark.parametrize("change", ["popped", "added", "replaced", "erased"])
async def test_a_session_that_another_program_changed_is_made_equal_to_the_next_call(
    scene: ProxyScene, change: str
) -> None:
    """The proxy publishes what is new without asking; the window tells that this was not enough."""
    name = f"changed-{change}"
    session = scene.client.session("proxy", name)
    messages = [user("Where is 7341?")]
    messages.append((await asked(scene, messages, session=name)).json()["choices"][0]["message"])
    messages.append(user("And 7342?"))
    messages.append((await asked(scene, messages, session=name)).json()["choices"][0]["message"])
    await eventually(lambda: _of_length(scene, name, 4))

    if change == "erased":
        await session.erase()
    if change in ("popped", "replaced"):
        await session.pop()
    if change in ("added", "replaced"):
        await session.turn_completed([assistant("It is lost.")])
    messages.append(user("And 7343?"))
    answer = await asked(scene, messages, session=name)
    messages.append(answer.json()["choices"][0]["message"])

    assert BYPASSED not in answer.headers
    assert scene.provider.requests[-1].body["messages"] == messages[:-1]
    expected = [(one["role"], one["content"]) for one in messages]
    await eventually(lambda: _is_held(scene, name, expected))


@pytest.mark.proves("G10", "C79")
async def test_a_stream_that_ends_early_is_recorded_as_far_as_it_came(scene: ProxyScene) -> None:
    """C79: the caller hangs up, then the provider breaks off."""
    pieces = chunks({"role": "assistant", "content": "It left"}, {"content": " Ghent."})
    left = ProviderReply(pieces, STREAM, gate=asyncio.Event())
    broken = ProviderReply(pieces[:1], STREAM, is_cut=True)
    scene.provider.script.extend([left, broken])

    def request(text: str) -> Json:
        return {"model": "gpt-4.1", "messages": [user(text)], "stream": True}

    async with scene.http.stream("POST", PATH, json=request("Hang up?")) as answer:
        session_id = answer.headers["x-turnfold-session"]
        assert await anext(answer.aiter_raw()) == pieces[0]
    await asyncio.wait_for(scene.provider.hung_up.wait(), 60)
    hung_up = await eventually(lambda: _of_length(scene, session_id, 2))
    got = b""
    with pytest.raises(httpx.RemoteProtocolError):  # noqa: PT012 - it fails while it is read
        async with scene.http.stream("POST", PATH, json=request("Break off?")) as answer:
            session_id = answer.headers["x-turnfold-session"]
            async for chunk in answer.aiter_raw():
                got += chunk
    broken_off = await eventually(lambda: _of_length(scene, session_id, 2))

    assert hung_up == [("user", "Hang up?"), ("assistant", "It left")]
    assert got == pieces[0]
    assert broken_off == [("user", "Break off?"), ("assistant", "It left")]


@pytest.mark.proves("G10", "C79")
async def test_an_answer_is_recorded_if_the_caller_leaves_between_its_last_byte_and_its_end(
    scene: ProxyScene,
) -> None:
    whole = completion("It left Ghent.")
    whole.gate = asyncio.Event()
    scene.provider.script.append(whole)
    request = {"model": "gpt-4.1", "messages": [user("Leave?")]}

    async with scene.http.stream("POST", PATH, json=request) as answer:
        session_id = answer.headers["x-turnfold-session"]
        assert await anext(answer.aiter_raw()) == whole.chunks[0]
    await asyncio.wait_for(scene.provider.hung_up.wait(), 60)
    texts = await eventually(lambda: _of_length(scene, session_id, 2))

    assert texts == [("user", "Leave?"), ("assistant", "It left Ghent.")]


@pytest.mark.proves("G10", "C79", "O4")
async def test_a_stream_that_a_stop_cuts_is_recorded_as_far_as_it_came(scene: ProxyScene) -> None:
    """It outlasts the time that running requests have when the proxy stops."""
    pieces = chunks({"role": "assistant", "content": "It left"}, {"content": " Ghent."})
    endless = ProviderReply(pieces, STREAM, gate=asyncio.Event())
    scene.provider.script.append(endless)
    port = str(free_port())
    request = {"model": "gpt-4.1", "messages": [user("Stop?")], "stream": True}
    async with (
        scene.parts.running("proxy", environ={"TURNFOLD_PROXY_PORT": port}) as proxy,
        httpx.AsyncClient(trust_env=False, timeout=60) as http,
    ):
        url, named = f"http://127.0.0.1:{port}{PATH}", {"x-turnfold-session": "stopped"}
        with pytest.raises(httpx.RemoteProtocolError):  # noqa: PT012 - it fails while it is read
            async with http.stream("POST", url, json=request, headers=named) as answer:
                async for _ in answer.aiter_raw():
                    proxy.signal(SIGTERM)
        status = await proxy.ended()
    texts = await eventually(lambda: _of_length(scene, "stopped", 2))

    assert status == 0
    assert texts == [("user", "Stop?"), ("assistant", "It left")]


@pytest.mark.proves("G10", "C79")
async def test_without_turnfold_calls_go_out_as_they_came(scene: ProxyScene) -> None:
    """C79: the bus is away; and other requests of the provider always pass."""
    away = f"nats://127.0.0.1:{free_port()}"
    port = str(free_port())
    environ = {
        "TURNFOLD_NATS_URL": away,
        "TURNFOLD_PROXY_PORT": port,
        "TURNFOLD_PROXY_WAIT_SECONDS": "0.5",
    }
    content = b'{"model": "m",  "messages": [{"role": "user", "content": "Hello?"}]}'
    base = f"http://127.0.0.1:{port}"
    async with (
        scene.parts.running("proxy", environ=environ),
        httpx.AsyncClient(base_url=base, trust_env=False, timeout=60) as http,
    ):
        answers = [await http.post(PATH, content=content) for _ in range(2)]
        sent = [one.content for one in scene.provider.requests[-2:]]
        metrics = (await http.get("/metrics")).text

    assert sent == [content, content]
    assert [one.headers["x-turnfold-bypassed"] for one in answers] == ["unavailable"] * 2
    assert all(one.json()["choices"] for one in answers)
    assert 'turnfold_proxy_bypassed_total{reason="unavailable"} 2.0' in metrics

    models = await scene.http.get("/v1/models")
    unread = await scene.http.post(PATH, content=b"no JSON")
    assert models.status_code == unread.status_code == 200
    assert [one.path for one in scene.provider.requests[-2:]] == ["/v1/models", PATH]
    assert unread.headers["x-turnfold-bypassed"] == "unread"


@pytest.mark.proves("G10")
@pytest.mark.parametrize("depth", [100, 600, 900])
@pytest.mark.parametrize("name", ["extra", "cache_control", "content"])
async def test_a_call_that_is_nested_deeply_reaches_the_provider(
    scene: ProxyScene, depth: int, name: str
) -> None:
    nested = '{"a": ' * depth + "1" + "}" * depth
    begun = f'{{"messages": [{{"role": "user", "content": "{name} {depth}", "{name}": [{nested}]}}'
    answered = f', {{"role": "assistant", "content": "So.", "{name}": [{nested}]}}'
    calls = [begun + "]}", begun + answered + ', {"role": "user", "content": "And?"}]}']

    answers = [await scene.http.post(PATH, content=call.encode()) for call in calls]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert [one.content.decode() for one in scene.provider.requests[-2:]] == calls


@pytest.mark.proves("G10", "C78", "C79")
async def test_messages_of_anthropic_come_and_go_in_their_own_shape(scene: ProxyScene) -> None:
    """Marks of the provider's cache move from call to call, and are never stored."""
    mark = {"cache_control": {"type": "ephemeral"}}
    system = [{"type": "text", "text": "Be brief.", **mark}]
    question: Json = {
        "role": "user",
        "content": [{"type": "text", "text": "Where are both?", **mark}],
    }
    uses: list[Json] = [
        {"type": "tool_use", "id": f"toolu_{n}", "name": "track", "input": {"order": n}}
        for n in (1, 2)
    ]
    events: list[Json] = [
        {"type": "message_start", "message": {"role": "assistant", "content": [], "usage": {"input_tokens": 9}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "I look."}},
        {"type": "content_block_stop", "index": 0},
    ]  # fmt: skip
    for index, use in enumerate(uses, 1):
        text = json.dumps(use["input"])
        events += [
            {"type": "content_block_start", "index": index, "content_block": {**use, "input": {}}},
            {"type": "content_block_delta", "index": index, "delta": {"type": "input_json_delta", "partial_json": text[:3]}},
            {"type": "content_block_delta", "index": index, "delta": {"type": "input_json_delta", "partial_json": text[3:]}},
            {"type": "content_block_stop", "index": index},
        ]  # fmt: skip
    last: Json = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 3}}
    pieces = [_event(event) for event in (*events, last, {"type": "message_stop"})]
    spoken = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "Ghent."}],
    }
    scene.provider.script += [
        ProviderReply(pieces, STREAM), ProviderReply([json.dumps(spoken).encode()]),
        ProviderReply(pieces[:3], STREAM, is_cut=True),
    ]  # fmt: skip
    request: Json = {"model": "claude-sonnet-4-5", "max_tokens": 1_000, "system": system}

    first = await scene.http.post(
        "/v1/messages", json=request | {"messages": [question], "stream": True}
    )
    del question["content"][0]["cache_control"]
    results: list[Json] = [
        {"type": "tool_result", "tool_use_id": use["id"], "content": "Ghent"} for use in uses
    ]
    results[-1] |= mark
    messages: list[Json] = [
        question,
        {"role": "assistant", "content": [{"type": "text", "text": "I look."}, *uses]},
        {"role": "user", "content": results},
    ]
    second = await scene.http.post("/v1/messages", json=request | {"messages": messages})
    sent = scene.provider.requests[-1].body
    messages += [{"role": "assistant", "content": "Ghent."}, {"role": "user", "content": "Sure?"}]
    with pytest.raises(httpx.RemoteProtocolError):
        await scene.http.post("/v1/messages", json=request | {"messages": messages, "stream": True})
    session_id = first.headers["x-turnfold-session"]
    texts = await eventually(lambda: _of_length(scene, session_id, 7))

    assert first.content == b"".join(pieces)
    assert sent == request | {"messages": messages[:3]}
    assert second.headers["x-turnfold-session"] == session_id
    assert [role for role, _ in texts] == [
        "user", "assistant", "tool", "tool", "assistant", "user", "assistant",
    ]  # fmt: skip
    rows = await scene.parts.rows(
        "SELECT text, body FROM messages_view WHERE session_id = ?", session_id
    )
    assert len(rows) == 7
    assert "cache_control" not in str(rows)
    assert rows[-1]["text"] == "I look."


@pytest.mark.proves("G10")
async def test_a_message_that_reaches_its_limit_within_a_call_is_recorded_up_to_it(
    scene: ProxyScene,
) -> None:
    """The provider ends the block all the same."""
    use = {"type": "tool_use", "id": "toolu_1", "name": "write", "input": {}}
    cut = {"type": "input_json_delta", "partial_json": '{"text": "It le'}
    scene.provider.script.append(
        sse(
            {"type": "message_start", "message": {"role": "assistant", "content": []}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "I write."}},
            {"type": "content_block_stop", "index": 0},
            {"type": "content_block_start", "index": 1, "content_block": use},
            {"type": "content_block_delta", "index": 1, "delta": cut},
            {"type": "content_block_stop", "index": 1},
            {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}},
            {"type": "message_stop"},
        )
    )  # fmt: skip
    request = {"model": "claude-sonnet-4-5", "max_tokens": 9, "stream": True}

    answer = await scene.http.post("/v1/messages", json=request | {"messages": [user("Write?")]})
    session_id = answer.headers["x-turnfold-session"]
    texts = await eventually(lambda: _of_length(scene, session_id, 2))

    assert texts == [("user", "Write?"), ("assistant", "I write.")]


@pytest.mark.proves("G10", "C78")
async def test_a_shortened_answer_is_sent_with_the_fields_that_the_caller_sent_back(
    scene: ProxyScene,
) -> None:
    """The session holds the reasoning as the provider wrote it, which may refuse to read it."""
    arguments = json.dumps({"order": "7341 in Ghent, " * 400})
    call = {"id": "c1", "type": "function", "function": {"name": "track", "arguments": arguments}}
    delta = {"role": "assistant", "reasoning": "Hm.", "tool_calls": [{"index": 0, **call}]}
    scene.provider.script.append(ProviderReply(chunks(delta), STREAM))
    messages = [user("Where is 7341?")]
    request = {"model": "gpt-4.1", "messages": messages, "stream": True}
    headers = {"x-turnfold-session": "reasoned", "x-turnfold-budget": "900"}

    await scene.http.post(PATH, json=request, headers=headers)
    await eventually(lambda: _of_length(scene, "reasoned", 2))
    messages.append({"role": "assistant", "tool_calls": [call]})
    messages.append({"role": "tool", "tool_call_id": "c1", "content": "Ghent"})
    await asked(scene, messages, session="reasoned", budget="900")

    sent = scene.provider.requests[-1].body["messages"][-2]
    assert "TRUNCATED" in sent["tool_calls"][0]["function"]["arguments"]
    assert (sent.keys(), sent["tool_calls"][0].keys()) == (messages[-2].keys(), call.keys())


@pytest.mark.proves("G10", "C78", "C79")
async def test_neighbors_of_one_role_reach_anthropic_as_they_came(scene: ProxyScene) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    use = {"type": "tool_use", "id": "toolu_1", "name": "track", "input": {"order": 7341}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Ghent"}
    texts = [{"type": "text", "text": f"Question {number}?"} for number in range(4)]
    messages: list[Json] = [
        {"role": "user", "content": [texts[0] | mark]},
        {"role": "user", "content": [texts[1]]},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result, texts[2] | mark]},
        {"role": "user", "content": "And 7342?"},
    ]
    request = {"model": "claude-sonnet-4-5", "max_tokens": 100, "messages": messages}
    content = json.dumps(request, indent=3)
    headers = {"x-turnfold-session": "neighbors"}

    answer = await scene.http.post("/v1/messages", content=content, headers=headers)

    assert BYPASSED not in answer.headers
    assert scene.provider.requests[-1].content.decode() == content


@pytest.mark.proves("G10", "C76")
async def test_items_of_responses_come_and_go_to_the_letter(scene: ProxyScene) -> None:
    """Reasoning stays with its item; what the provider keeps itself is not touched."""
    reasoning = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAA" * 50}
    call = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "track",
            "arguments": '{"order": 7341}', "status": "completed"}  # fmt: skip
    text = {"type": "output_text", "text": "Ghent.", "annotations": []}
    spoken = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [text],
    }
    done: list[Json] = [
        {"type": "response.created", "response": {"id": "r", "status": "in_progress", "output": []}},
        {"type": "response.output_item.done", "output_index": 0, "item": reasoning},
        {"type": "response.output_item.done", "output_index": 1, "item": call},
        {"type": "response.completed", "response": {"id": "r", "status": "completed", "output": [reasoning, call]}},
    ]  # fmt: skip
    whole = {"id": "r", "object": "response", "status": "completed", "output": [spoken]}
    scene.provider.script += [
        ProviderReply([_event(event) for event in done], STREAM),
        ProviderReply([json.dumps(whole).encode()]),
    ]
    request: Json = {"model": "gpt-5", "instructions": "Be brief.", "store": False}
    asked_first = {"role": "user", "content": "Where is 7341?"}

    first = await scene.http.post(
        "/v1/responses", json=request | {"input": "Where is 7341?", "stream": True}
    )
    back = [asked_first, reasoning, {name: one for name, one in call.items() if name != "status"}]
    output = {"type": "function_call_output", "call_id": "call_1", "output": "Ghent"}
    second = await scene.http.post("/v1/responses", json=request | {"input": [*back, output]})
    sent = scene.provider.requests[-1].body["input"]
    session_id = first.headers["x-turnfold-session"]
    await eventually(lambda: _of_length(scene, session_id, 5))
    scene.provider.script.append(ProviderReply([json.dumps(whole).encode()]))
    kept = await scene.http.post(
        "/v1/responses", json=request | {"input": "And?", "previous_response_id": "r"}
    )
    items = [one.element async for one in scene.client.session("proxy", session_id).originals()]

    assert sent == [*back, output]
    assert second.headers["x-turnfold-session"] == session_id
    assert items == [asked_first, reasoning, call, output, spoken]
    assert kept.headers["x-turnfold-bypassed"] == "unread"


def _event(event: Json) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


async def _is_held(scene: ProxyScene, session_id: str, expected: list[tuple[str, object]]) -> bool:
    """Whether a session holds this and nothing else."""
    try:
        return await scene.texts(session_id) == expected
    except UnknownSession:
        return False


async def _of_length(
    scene: ProxyScene, session_id: str, length: int, agent_id: str = "proxy"
) -> list[tuple[str, object]] | None:
    """The texts of a session once it has so many."""
    texts = await scene.texts(session_id, agent_id)
    return texts if len(texts) == length else None


@pytest.mark.proves("X6")
async def test_no_page_of_another_site_calls_the_model_or_writes_a_session(
    scene: ProxyScene,
) -> None:
    before = len(scene.provider.requests)
    for foreign in (
        {"sec-fetch-site": "cross-site"},
        {"host": "evil.example"},
        {"origin": "https://evil.example"},
        {"origin": "https://evil.example", "x-forwarded-host": "agents.example, internal"},
    ):
        for content_type in ("application/json", "text/plain"):
            answer = await scene.http.post(
                "/v1/chat/completions",
                content=b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}',
                headers={"content-type": content_type, **foreign},
            )
            assert answer.status_code == 403
        assert (await scene.http.get("/v1/models", headers=foreign)).status_code == 403
        assert (await scene.http.get("/healthz", headers=foreign)).status_code == 200

    assert len(scene.provider.requests) == before
    # A page of its own site, behind a reverse proxy that has replaced the name.
    for names in ("internal, agents.example", "agents.example:8443 , internal"):
        own = {"origin": "https://agents.example:8443", "x-forwarded-host": names}
        assert (await scene.http.get("/v1/models", headers=own)).status_code == 200


@pytest.mark.proves("G10", "O5")
async def test_the_proxy_uses_the_credentials_of_the_file(tmp_path: Path) -> None:
    config = tmp_path / "turnfold.toml"
    config.write_text('nats_user = "proxy"\nnats_password = "secret"\n')
    environ = {
        "TURNFOLD_CONFIG": str(config),
        "TURNFOLD_PROXY_UPSTREAM": "http://127.0.0.1:1",
        "TURNFOLD_PROXY_PORT": str(free_port()),
    }

    with nats_server(tmp_path, more="authorization { user: proxy, password: secret }") as server:
        async with Parts(tmp_path, server, environ).running("proxy") as proxy:
            assert proxy.is_ready
