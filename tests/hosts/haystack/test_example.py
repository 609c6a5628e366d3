"""The example and the page of Haystack run as they stand."""

import re
from pathlib import Path
from typing import Any

import pytest
from haystack.dataclasses import ChatMessage

from tests.hosts.conftest import RunningSystem
from tests.hosts.haystack.test_compactor import ScriptedGenerator

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "integrations" / "haystack.md"


def test_the_example_is_compacted_and_goes_on(
    system: RunningSystem, session_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNFOLD_NATS_URL", system.nats_url)
    code = (ROOT / "examples" / "agents" / "haystack_agent.py").read_text()
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, "haystack_agent.py", "exec"), names)
    model = ScriptedGenerator(0)
    questions = [f"Note {day}: calm weather, and nothing else to tell." for day in range(60)]

    names["chat"]([*questions, "Where is order 7341?"], session_id, model, 1_000)

    last: list[ChatMessage] = model.calls[-1]
    assert last[-1].text == "Where is order 7341?"
    assert len(last) < 60
    assert max(len(call) for call in model.calls) < 100


def test_the_code_of_the_page_runs(
    system: RunningSystem, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TURNFOLD_NATS_URL", system.nats_url)
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)

    exec(compile(code, PAGE.name, "exec"), {"__name__": "__main__"})

    assert "Where is order 7341?" in capsys.readouterr().out
