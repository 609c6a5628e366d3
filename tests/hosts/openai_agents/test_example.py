"""The example and the page of the SDK run as they stand."""

import re
from pathlib import Path
from typing import Any

import pytest
from agents.testing import ScriptedModel, assistant_message

from tests.hosts.conftest import RunningSystem

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "integrations" / "openai-agents.md"


async def test_the_example_goes_on_where_it_ended(
    system: RunningSystem, session_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNFOLD_NATS_URL", system.nats_url)
    code = (ROOT / "examples" / "agents" / "openai_agents.py").read_text()
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, "openai_agents.py", "exec"), names)
    model = ScriptedModel([[assistant_message("In Bonn.")], [assistant_message("Friday.")]])

    for question in ("Where is order 7341?", "And when does it arrive?"):
        await names["chat"]([question], session_id, model)

    assert model.calls[-1].input[0] == {"role": "user", "content": "Where is order 7341?"}
    assert len(model.calls[-1].input) == 3


def test_the_code_of_the_page_runs(
    system: RunningSystem, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TURNFOLD_NATS_URL", system.nats_url)
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)

    exec(compile(code, PAGE.name, "exec"), {"__name__": "__main__"})

    assert "Where is order 7341?" in capsys.readouterr().out
