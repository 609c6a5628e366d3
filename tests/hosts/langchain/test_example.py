"""The example and the page of LangChain run as they stand."""

import pytest
from langchain_core.messages import AIMessage

from tests.hosts.conftest import Example, Page
from tests.hosts.langchain.models import ScriptedModel


def test_the_example_asks_and_prints(
    example: Example,
    session_id: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = ScriptedModel(script=[AIMessage("In Bonn."), AIMessage("Friday.")])

    example("langchain_agent.py")["chat"](
        ["Where is order 7341?", "And when does it arrive?"], session_id, model
    )

    assert capsys.readouterr().out == "In Bonn.\nFriday.\n"
    assert [one.content for one in model.calls[-1]] == [
        "Answer in one sentence.",
        "Where is order 7341?",
        "In Bonn.",
        "And when does it arrive?",
    ]


def test_the_code_of_the_page_runs(page: Page) -> None:
    assert page("langchain.md") == []
