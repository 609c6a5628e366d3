"""The example and the page of Pydantic AI run as they stand."""

import pytest

from tests.hosts.conftest import Example, Page
from tests.hosts.pydantic_ai.models import Script, says, texts


def test_the_example_asks_and_prints(
    example: Example,
    session_id: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = Script([says("In Bonn."), says("Friday.")])

    example("pydantic_ai_agent.py")["chat"](
        ["Where is order 7341?", "And when does it arrive?"], session_id, script.model
    )

    assert capsys.readouterr().out == "In Bonn.\nFriday.\n"
    assert texts(script.calls[-1]) == [
        "Where is order 7341?",
        "In Bonn.",
        "And when does it arrive?",
    ]


def test_the_code_of_the_page_runs(page: Page) -> None:
    assert page("pydantic-ai.md") == []
