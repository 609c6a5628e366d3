"""Long conversations of each API through the proxy: what a provider is sent is always valid."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.hosts.chat import BUDGETS, TURNS, size
from tests.hosts.chat import faults as chat_faults
from tests.hosts.openai_agents.items import faults as item_faults
from tests.hosts.proxy.conftest import Start
from tests.provider import ProviderReply, ProviderRequest, completion
from turnfold.shapes import chat_from_anthropic

PLACES = ("hall", "yard")
Json = dict[str, Any]


def look(place: str) -> str:
    return f"{place} holds " + ", ".join(f"crate {number}" for number in range(40))


def chat_reply(messages: Sequence[Json]) -> Json:
    calls = [
        {
            "id": f"t{len(messages)}-{messages[-1]['content']}-{place}",
            "type": "function",
            "function": {"name": "look", "arguments": json.dumps({"place": place})},
        }
        for place in PLACES
    ]
    is_asked = messages[-1]["role"] == "user"
    reply = completion(None, calls=calls) if is_asked else completion("Done.")
    body: Json = json.loads(reply.chunks[0])
    return body


def chat_turn(answer: Json) -> tuple[list[Json], list[Json]]:
    message = answer["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": look(call["id"])}
        for call in message.get("tool_calls") or ()
    ]
    return [message], results


def responses_reply(items: Sequence[Json]) -> Json:
    last = items[-1]
    name = str(last.get("content") or last["call_id"])
    output: list[Json] = [
        {"type": "reasoning", "id": f"rs_{name}", "summary": [], "encrypted_content": "gAAA" * 50}
    ]
    if last.get("role") == "user":
        output += [
            {
                "type": "function_call",
                "id": f"fc_{name}_{place}",
                "call_id": f"{name}-{place}",
                "name": "look",
                "arguments": json.dumps({"place": place}),
                "status": "completed",
            }
            for place in PLACES
        ]
    else:
        text = {"type": "output_text", "text": "Done.", "annotations": []}
        said = {"type": "message", "id": f"m_{name}", "role": "assistant", "status": "completed"}
        output.append({**said, "content": [text]})
    return {"id": "r", "object": "response", "status": "completed", "output": output}


def responses_turn(answer: Json) -> tuple[list[Json], list[Json]]:
    results = [
        {"type": "function_call_output", "call_id": one["call_id"], "output": look(one["call_id"])}
        for one in answer["output"]
        if one["type"] == "function_call"
    ]
    return answer["output"], results


def messages_reply(messages: Sequence[Json]) -> Json:
    last = messages[-1]["content"]
    content: list[Json] = [{"type": "text", "text": "Done."}]
    if isinstance(last, str) or last[-1]["type"] == "text":
        name = last if isinstance(last, str) else last[-1]["text"]
        content = [{"type": "thinking", "thinking": "Both.", "signature": "gAAA" * 50}]
        content += [
            {
                "type": "tool_use",
                "id": f"{name}-{place}".replace(" ", "_").replace(",", "").replace(".", ""),
                "name": "look",
                "input": {"place": place},
            }
            for place in PLACES
        ]
    return {"id": "m", "type": "message", "role": "assistant", "content": content}


def messages_turn(answer: Json) -> tuple[list[Json], list[Json]]:
    results = [
        {"type": "tool_result", "tool_use_id": one["id"], "content": look(one["id"])}
        for one in answer["content"]
        if one["type"] == "tool_use"
    ]
    said = {"role": "assistant", "content": answer["content"]}
    return [said], [{"role": "user", "content": results}] if results else []


def message_faults(messages: Sequence[Json]) -> list[str]:
    roles = [one["role"] for one in messages]
    turns = ["user" if place % 2 == 0 else "assistant" for place in range(len(roles))]
    return [
        *chat_faults(chat_from_anthropic(messages)),
        *(["turns"] if roles != turns else []),
    ]


@dataclass(frozen=True)
class Loop:
    """An agent's loop over one API: its list in a request, and what comes of an answer."""

    path: str
    field: str
    reply: Callable[[Sequence[Json]], Json]
    turn: Callable[[Json], tuple[list[Json], list[Json]]]
    faults: Callable[[Sequence[Json]], list[str]]

    async def run(self, http: httpx.AsyncClient, session_id: str, budget: int) -> None:
        """Run so many turns with parallel calls."""
        headers = {"x-turnfold-session": session_id, "x-turnfold-budget": str(budget)}
        elements: list[Json] = []
        for number in range(TURNS):
            new = [{"role": "user", "content": f"Look again, {number}."}]
            while new:
                elements += new
                body = {"model": "gpt-4.1", "max_tokens": 500, self.field: elements}
                answer = await http.post(self.path, json=body, headers=headers)
                assert "x-turnfold-bypassed" not in answer.headers
                said, new = self.turn(answer.json())
                elements += said


LOOPS = {
    loop.path: loop
    for loop in (
        Loop("/v1/chat/completions", "messages", chat_reply, chat_turn, chat_faults),
        Loop("/v1/responses", "input", responses_reply, responses_turn, item_faults),
        Loop("/v1/messages", "messages", messages_reply, messages_turn, message_faults),
    )
}


def reply(request: ProviderRequest) -> ProviderReply:
    loop = LOOPS[request.path]
    return ProviderReply([json.dumps(loop.reply(request.body[loop.field])).encode()])


@pytest.mark.proves("G10")
@pytest.mark.timeout(900)
@pytest.mark.stress
@pytest.mark.parametrize("budget", BUDGETS)
async def test_two_hundred_turns_with_parallel_calls_break_no_pair_of_any_api(
    proxied: Start, session_id: str, budget: int
) -> None:
    async with proxied(reply) as (provider, url):
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=120) as http:
            await asyncio.gather(
                *(loop.run(http, f"{session_id}{path}", budget) for path, loop in LOOPS.items())
            )
        requests = provider.requests

    for path, loop in LOOPS.items():
        sent = [one.body[loop.field] for one in requests if one.path == path]
        assert len(sent) == 2 * TURNS
        assert [fault for elements in sent for fault in loop.faults(elements)] == []
        sizes = [size(elements) for elements in sent]
        assert budget / 2 < max(sizes) <= budget * 1.1
