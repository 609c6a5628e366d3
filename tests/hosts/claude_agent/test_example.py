"""The example and the page of the SDK run as they stand, with the SDK's own command line."""

from pathlib import Path

import pytest

from tests.hosts.claude_agent.scripted_api import ScriptedApi, scripted_api
from tests.hosts.conftest import Example, Page


def environ(api: ScriptedApi, home: Path) -> dict[str, str]:
    """Settings of the command line: this model alone, and no network beyond it."""
    return {
        "ANTHROPIC_BASE_URL": api.url,
        "ANTHROPIC_API_KEY": "unused",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",
        "HOME": str(home),
        "CLAUDE_CONFIG_DIR": str(home / "claude"),
    }


@pytest.mark.proves("G9")
@pytest.mark.timeout(300)
async def test_the_example_goes_on_where_it_ended_without_the_disk(
    example: Example,
    session_id: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Proves G9."""
    chat = example("claude_agent.py")["chat"]
    folder = tmp_path / session_id
    folder.mkdir()

    with scripted_api("In Bonn.", "On Friday.") as api:
        for number, question in enumerate(("Where is order 7341?", "And when does it arrive?")):
            # Another disk each time: the transcript comes from Turnfold.
            home = tmp_path / f"machine-{number}"
            home.mkdir()
            await chat([question], cwd=str(folder), env=environ(api, home))

    assert capfd.readouterr().out.split("\n")[:2] == ["In Bonn.", "On Friday."]
    told = str(api.asked[-1])
    assert "Where is order 7341?" in told
    assert "In Bonn." in told
    assert "And when does it arrive?" in told


def test_the_code_of_the_page_runs(page: Page) -> None:
    assert page("claude-agent.md") == []
