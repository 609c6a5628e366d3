"""nanobot's real release, unmodified, through the proxy."""

import json
from pathlib import Path
from typing import Any

import pytest
from nanobot import Nanobot

from tests.hosts.conftest import RunningSystem
from tests.hosts.proxy.conftest import Start
from tests.provider import ProviderReply, ProviderRequest, chunks
from turnfold.client import connect
from turnfold.client.token_counter import counter

TURNS = 40
WINDOW = 16_000
OUTPUT = 1_000
KEY = "sk-quokka"


def tokens_of(request: ProviderRequest) -> int:
    """The tokens of a request, as a provider counts its messages and tools."""
    body, count = request.body, counter()
    return sum(count(json.dumps(one)) for one in (*body["messages"], *body["tools"]))


def reply(request: ProviderRequest) -> ProviderReply:
    """Look into a file at each question, then answer; refuse what the model cannot hold."""
    if tokens_of(request) > WINDOW - OUTPUT:
        fault = {
            "message": f"This model's maximum context length is {WINDOW} tokens.",
            "type": "invalid_request_error", "code": "context_length_exceeded",
        }  # fmt: skip
        return ProviderReply([json.dumps({"error": fault}).encode()], status=400)
    last = request.body["messages"][-1]
    if last["role"] == "user":
        number = last["content"].partition(":")[0].rpartition(" ")[2]
        function = {"name": "read_file", "arguments": json.dumps({"path": f"note-{number}.txt"})}
        call = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
        delta: dict[str, Any] = {"role": "assistant", "content": "I look.", "tool_calls": [call]}
    else:
        delta = {"role": "assistant", "content": "It is in the file. " + "Indeed it is. " * 20}
    usage = {"prompt_tokens": tokens_of(request), "completion_tokens": 90, "total_tokens": 0}
    return ProviderReply(chunks(delta, usage=usage), "text/event-stream")


def own_session(directory: Path) -> str:
    """The session as nanobot keeps it itself."""
    return next(directory.glob("**/sessions/**/*.jsonl")).read_text()


@pytest.mark.proves("G11", "G10")
async def test_forty_turns_on_a_small_model_keep_its_own_session_whole(
    system: RunningSystem, proxied: Start, tmp_path: Path, session_id: str
) -> None:
    """As docs/integrations/nanobot.md configures it."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    for number in range(TURNS):
        (workspace / f"note-{number}.txt").write_text(f"Note {number}: " + "blue heron " * 150)
    config: dict[str, Any] = {
        "agents": {"defaults": {
            "workspace": str(workspace), "provider": "custom", "model": "gpt-4.1",
            "maxTokens": OUTPUT, "contextWindowTokens": 100_000_000, "idleCompactAfterMinutes": 0,
        }},
        "providers": {"custom": {"apiKey": KEY, "extraHeaders": {"x-turnfold-budget": str(WINDOW - OUTPUT)}}},
    }  # fmt: skip
    async with proxied(reply) as (provider, url):
        config["providers"]["custom"]["apiBase"] = f"{url}/v1"
        (tmp_path / "config.json").write_text(json.dumps(config))
        bot = Nanobot.from_config(tmp_path / "config.json")
        answers = [
            (await bot.run(f"Question {number}: what is in the note?", session_key="cli:u")).content
            for number in range(TURNS)
        ]
        requests = provider.requests
    async with connect(system.nats_url, environ={}) as client:
        sessions = [one async for one in client.sessions("proxy", prefix="proxy-")]
    roles = [one.message["role"] for one in await system.stored("proxy", sessions[0])]
    own = own_session(tmp_path)

    assert [one[:17] for one in answers] == ["It is in the file"] * TURNS
    assert len(requests) == 2 * TURNS
    assert max(map(tokens_of, requests)) > WINDOW / 2
    assert len(sessions) == 1
    assert roles == ["user", "assistant", "tool", "assistant"] * TURNS
    assert all(f"Question {number}:" in own for number in range(TURNS))
    assert all(f"Note {number}:" in own for number in range(TURNS))
