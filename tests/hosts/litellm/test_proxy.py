"""The proxy of LiteLLM with the callback: what it sends on is a window of the caller's session."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import turnfold
from tests.hosts.chat import calls, faults, says, size
from tests.hosts.conftest import RunningSystem
from tests.hosts.litellm.provider import Provider, running_provider
from tests.ports import free_port

START_SECONDS = 180
CONFIG = """
model_list:
  - model_name: scripted
    litellm_params: {{model: openai/scripted, api_base: "{url}", api_key: none}}
litellm_settings:
  callbacks: turnfold_callback.callback
general_settings:
  master_key: sk-test
"""
CALLBACK = """
from turnfold.integrations.litellm import TurnfoldCallback

callback = TurnfoldCallback("proxy", max_tokens=4_000, patience_seconds=60)
"""


@pytest.fixture(scope="module")
def upstream() -> Iterator[Provider]:
    """The provider behind the proxy."""
    with running_provider() as running:
        yield running


@pytest.fixture(scope="module")
def proxy(
    system: RunningSystem, upstream: Provider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A running proxy, as the page configures it."""
    directory = tmp_path_factory.mktemp("proxy")
    (directory / "config.yaml").write_text(CONFIG.format(url=upstream.url))
    (directory / "turnfold_callback.py").write_text(CALLBACK)
    port = free_port()
    command = [str(Path(sys.executable).with_name("litellm")), "--config", "config.yaml"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    environ = os.environ | {"TURNFOLD_NATS_URL": system.nats_url}
    log = directory / "proxy.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, cwd=directory, env=environ, stdout=output, stderr=output
        ) as process,
    ):
        try:
            _wait_until_ready(f"http://127.0.0.1:{port}", process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(40)


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text(errors="replace")[-4_000:]
        try:
            if httpx.get(f"{url}/health/liveliness", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.5)
    raise TimeoutError(log.read_text(errors="replace")[-4_000:])


def ask(proxy: str, messages: list[Any], session_id: str, *, stream: bool = False) -> Any:
    body = {"model": "scripted", "messages": messages, "stream": stream}
    headers = {"authorization": "Bearer sk-test", "x-litellm-session-id": session_id}
    response = httpx.post(f"{proxy}/v1/chat/completions", json=body, headers=headers, timeout=60)
    assert response.status_code == 200, response.text
    return response.text if stream else response.json()["choices"][0]["message"]


@pytest.mark.proves("G6")
@pytest.mark.timeout(300)
async def test_the_proxy_sends_windows_of_a_session_of_the_key(
    system: RunningSystem, upstream: Provider, proxy: str, session_id: str
) -> None:
    messages: list[Any] = [{"role": "system", "content": "Be brief."}]
    for number in range(20):
        upstream.script = [calls(f"t{number}", "hall", "yard"), says(f"Done with {number}.")]
        messages.append({"role": "user", "content": f"Look again, {number}."})
        messages.append(ask(proxy, messages, session_id))
        for place in ("hall", "yard"):
            result = f"{place} holds " + "a crate, " * 200
            messages.append(
                {"role": "tool", "tool_call_id": f"t{number}-{place}", "content": result}
            )
        messages.append(ask(proxy, messages, session_id))
    assert "data: [DONE]" in ask(proxy, messages, session_id, stream=True)

    assert [fault for sent in upstream.asked for fault in faults(sent)] == []
    assert max(map(size, upstream.asked)) <= 4_400 < size(messages)
    assert upstream.asked[0] == messages[:2]
    async with turnfold.connect(system.nats_url) as client:
        sessions = [one async for one in client.sessions("proxy")]
    [name] = [one for one in sessions if one.endswith(f"/{session_id}")]
    stored = await system.stored("proxy", name, include_retracted=True)
    assert len(stored) == len(messages) - 1
    assert "retracted" not in {one.state for one in stored}
