"""The example and the page of the framework run as they stand."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.agent_framework.models import ScriptedClient
from tests.hosts.conftest import RunningSystem

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "integrations" / "agent-framework.md"


async def test_the_example_goes_on_where_it_ended(
    system: RunningSystem, session_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNFOLD_NATS_URL", system.nats_url)
    code = (ROOT / "examples" / "agents" / "agent_framework_agent.py").read_text()
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, "agent_framework_agent.py", "exec"), names)
    client = ScriptedClient(["In Bonn."], ["On Friday."])

    for question in ("Where is order 7341?", "And when does it arrive?"):
        await names["chat"]([question], session_id, client)

    assert [one.text for one in client.calls[-1]] == [
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
