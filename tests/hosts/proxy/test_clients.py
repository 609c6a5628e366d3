"""The providers' own Python clients, unmodified, through the proxy."""

import json
from typing import Any

import anthropic
import openai
import pytest

from tests.hosts.conftest import RunningSystem
from tests.hosts.proxy.conftest import Start
from tests.provider import ProviderReply, ProviderRequest, chunks, completion, sse

Json = dict[str, Any]
KEY = "sk-quokka"


async def stored(system: RunningSystem, session_id: str) -> list[Any]:
    """The roles of a session."""
    return [one.message["role"] for one in await system.stored("proxy", session_id)]


def openai_reply(request: ProviderRequest) -> ProviderReply:
    """Call a tool once, then answer, streamed if asked."""
    if request.path == "/v1/models":
        model = {"id": "gpt-4.1", "object": "model", "created": 1, "owned_by": "me"}
        return ProviderReply([json.dumps({"object": "list", "data": [model]}).encode()])
    body = request.body
    if request.path == "/v1/responses":
        text = {"type": "output_text", "text": "In Ghent.", "annotations": []}
        item = {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [text],
        }
        response = {
            "id": "r", "object": "response", "created_at": 1, "status": "completed", "model": "gpt-4.1",
            "output": [item], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
        }  # fmt: skip
        if not body.get("stream"):
            return ProviderReply([json.dumps(response).encode()])
        begun = {**response, "status": "in_progress", "output": []}
        added = {**item, "status": "in_progress", "content": []}
        return sse(
            {"type": "response.created", "response": begun, "sequence_number": 0},
            {"type": "response.output_item.added", "output_index": 0, "item": added, "sequence_number": 1},
            {"type": "response.output_item.done", "output_index": 0, "item": item, "sequence_number": 2},
            {"type": "response.completed", "response": response, "sequence_number": 3},
        )  # fmt: skip
    function = {"name": "track", "arguments": '{"order": 7341}'}
    call = {"id": "call_1", "type": "function", "function": function}
    is_answered = body["messages"][-1]["role"] == "tool"
    if not body.get("stream"):
        return completion("In Ghent.") if is_answered else completion(None, calls=[call])
    if is_answered:
        deltas: list[Json] = [{"role": "assistant", "content": "In "}, {"content": "Ghent."}]
    else:
        deltas = [{"role": "assistant", "tool_calls": [{"index": 0, **call}]}]
    return ProviderReply(chunks(*deltas), "text/event-stream")


def anthropic_reply(request: ProviderRequest) -> ProviderReply:
    """Answer with a text, streamed if asked."""
    usage = {"input_tokens": 9, "output_tokens": 3}
    message = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": "In Ghent."}], "stop_reason": "end_turn",
        "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    if not request.body.get("stream"):
        return ProviderReply([json.dumps(message).encode()])
    return sse(
        {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "In Ghent."}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        {"type": "message_stop"},
    )  # fmt: skip


@pytest.mark.proves("G10")
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_the_client_of_openai(
    system: RunningSystem, proxied: Start, session_id: str, is_streamed: bool
) -> None:
    headers = {"x-turnfold-session": session_id}
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is 7341?"},
    ]  # fmt: skip
    tools: list[Any] = [
        {"type": "function", "function": {"name": "track", "parameters": {"type": "object"}}}
    ]
    async with (
        proxied(openai_reply) as (provider, url),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, default_headers=headers) as client,
    ):
        for _ in range(2):
            if is_streamed:
                async with client.chat.completions.stream(
                    model="gpt-4.1", messages=messages, tools=tools
                ) as stream:
                    answer: Any = (await stream.get_final_completion()).choices[0].message
            else:
                done = await client.chat.completions.create(
                    model="gpt-4.1", messages=messages, tools=tools
                )
                answer = done.choices[0].message
            messages.append(answer.model_dump())
            if answer.tool_calls:
                call_id = answer.tool_calls[0].id
                messages.append({"role": "tool", "tool_call_id": call_id, "content": "Ghent"})
        assert [model.id async for model in client.models.list()] == ["gpt-4.1"]
        asked: Json = {"model": "gpt-4.1", "input": "And now?", "store": False}
        named = {"x-turnfold-session": f"{session_id}-r"}
        if is_streamed:
            async with client.responses.stream(**asked, extra_headers=named) as events:
                text = (await events.get_final_response()).output_text
        else:
            text = (await client.responses.create(**asked, extra_headers=named)).output_text
    # The proxy has recorded all calls before it ends.
    roles = await stored(system, session_id)

    assert (messages[-1]["content"], text) == ("In Ghent.", "In Ghent.")
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert provider.requests[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.proves("G10")
async def test_the_client_of_anthropic(
    system: RunningSystem, proxied: Start, session_id: str
) -> None:
    messages: list[Any] = [{"role": "user", "content": "Where is 7341?"}]
    asked: Json = {"model": "claude-sonnet-4-5", "max_tokens": 100, "system": "Be brief."}
    headers = {"x-turnfold-session": session_id}
    async with (
        proxied(anthropic_reply) as (provider, url),
        anthropic.AsyncAnthropic(base_url=url, api_key=KEY, default_headers=headers) as client,
    ):
        first = await client.messages.create(**asked, messages=messages)
        messages += [
            {"role": "assistant", "content": first.content}, {"role": "user", "content": "Sure?"},
        ]  # fmt: skip
        async with client.messages.stream(**asked, messages=messages) as stream:
            second = await stream.get_final_message()
    # The proxy has recorded all calls before it ends.
    roles = await stored(system, session_id)

    assert second.content[0].text == "In Ghent."
    assert roles == ["user", "assistant", "user", "assistant"]
    assert provider.requests[0].headers["x-api-key"] == KEY
