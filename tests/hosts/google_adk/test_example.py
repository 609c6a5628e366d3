"""The example and the page of the ADK run as they stand."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.conftest import RunningSystem
from tests.hosts.google_adk.models import ScriptedModel, says

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "integrations" / "google-adk.md"


async def test_the_example_answers(
    system: RunningSystem, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TURNFOLD_NATS_URL", system.nats_url)
    code = (ROOT / "examples" / "agents" / "google_adk.py").read_text()
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, "google_adk.py", "exec"), names)
    model = ScriptedModel(script=[says("In Bonn."), says("On Friday.")])

    await names["chat"](["Where is order 7341?", "And when does it arrive?"], model)

    assert capsys.readouterr().out.split("\n")[:2] == ["In Bonn.", "On Friday."]
    assert [content.parts[0].text for content in model.calls[-1]] == [
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
