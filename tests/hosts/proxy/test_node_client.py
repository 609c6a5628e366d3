"""The client of OpenAI for Node, unmodified, through the proxy."""

import asyncio
import json
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from tests.hosts.conftest import RunningSystem
from tests.hosts.proxy.conftest import Start
from tests.hosts.proxy.node_client import installed, node
from tests.hosts.proxy.test_clients import KEY, openai_reply, stored

SCRIPT = Path(__file__).with_name("agent.mjs")
SECONDS = 120


@pytest.mark.proves("G10")
@pytest.mark.skipif(node() is None, reason="Node or npm is not installed here")
async def test_the_client_for_node(system: RunningSystem, proxied: Start, session_id: str) -> None:
    program = node()
    assert program
    directory = await asyncio.to_thread(installed)
    async with proxied(openai_reply) as (provider, url):
        process = await asyncio.create_subprocess_exec(
            program, SCRIPT, directory, f"{url}/v1", session_id, stdout=PIPE
        )
        async with asyncio.timeout(SECONDS):
            output, _ = await process.communicate()
    # The proxy has recorded all calls before it ends.
    roles = await stored(system, session_id)

    assert process.returncode == 0
    said = json.loads(output)
    assert said == {
        "texts": ["In Ghent.", "asked again", "In Ghent.", "In Ghent.", "In Ghent."],
        "models": ["gpt-4.1"],
    }
    assert roles == ["user", "assistant", "tool", "assistant"] * 2
    assert {one.headers["authorization"] for one in provider.requests} == {f"Bearer {KEY}"}
