"""The example and the page of LiteLLM run as they stand."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.chat import says
from tests.hosts.conftest import RunningSystem
from tests.hosts.litellm import test_proxy
from tests.hosts.litellm.provider import Provider

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "integrations" / "litellm.md"


async def test_the_example_asks_and_prints(
    system: RunningSystem,
    provider: Provider,
    session_id: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TURNFOLD_NATS_URL", system.nats_url)
    path = ROOT / "examples" / "agents" / "litellm_loop.py"
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(path.read_text(), path.name, "exec"), names)
    provider.script = [says("In Bonn."), says("Friday.")]

    await names["chat"](
        ["Where is order 7341?", "And when does it arrive?"],
        session_id,
        model="openai/scripted",
        api_base=provider.url,
        api_key="none",
    )

    assert capsys.readouterr().out == "In Bonn.\nFriday.\n"
    assert [message["content"] for message in provider.asked[-1]] == [
        "Answer in one sentence.",
        "Where is order 7341?",
        "In Bonn.",
        "And when does it arrive?",
    ]


def test_the_code_of_the_page_runs(
    system: RunningSystem, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TURNFOLD_NATS_URL", system.nats_url)
    code, callback = re.findall(r"```py(?:thon)?\n(.*?)```", PAGE.read_text(), re.DOTALL)

    exec(compile(code, PAGE.name, "exec"), {"__name__": "__main__"})

    assert "Where is order 7341?" in capsys.readouterr().out
    assert callback.split() == test_proxy.CALLBACK.replace(", patience_seconds=60", "").split()
