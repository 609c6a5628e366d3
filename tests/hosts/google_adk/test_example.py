"""The example and the page of the ADK run as they stand."""

import pytest

from tests.hosts.conftest import Example, Page
from tests.hosts.google_adk.models import ScriptedModel, says


async def test_the_example_answers(example: Example, capsys: pytest.CaptureFixture[str]) -> None:
    model = ScriptedModel(script=[says("In Bonn."), says("On Friday.")])

    await example("google_adk.py")["chat"](
        ["Where is order 7341?", "And when does it arrive?"], model
    )

    assert capsys.readouterr().out.split("\n")[:2] == ["In Bonn.", "On Friday."]
    assert [content.parts[0].text for content in model.calls[-1]] == [
        "Where is order 7341?",
        "In Bonn.",
        "And when does it arrive?",
    ]


def test_the_code_of_the_page_runs(page: Page) -> None:
    assert page("google-adk.md") == []
