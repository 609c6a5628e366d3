"""The example and the page of Pydantic AI run as they stand."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.conftest import RunningSystem
from tests.hosts.pydantic_ai.models import Script, says, texts

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "integrations" / "pydantic-ai.md"


def test_the_example_asks_and_prints(
    system: RunningSystem,
    session_id: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TURNFOLD_NATS_URL", system.nats_url)
    path = ROOT / "examples" / "agents" / "pydantic_ai_agent.py"
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(path.read_text(), path.name, "exec"), names)
    script = Script([says("In Bonn."), says("Friday.")])

    names["chat"](["Where is order 7341?", "And when does it arrive?"], session_id, script.model)

    assert capsys.readouterr().out == "In Bonn.\nFriday.\n"
    assert texts(script.calls[-1]) == [
        "Where is order 7341?",
        "In Bonn.",
        "And when does it arrive?",
    ]


def test_the_code_of_the_page_runs(
    system: RunningSystem, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TURNFOLD_NATS_URL", system.nats_url)
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)

    exec(compile(code, PAGE.name, "exec"), {"__name__": "__main__"})

    assert "Where is order 7341?" in capsys.readouterr().out
