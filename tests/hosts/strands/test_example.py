"""The example and the page of Strands run as they stand."""

from tests.hosts.conftest import Example, Page
from tests.hosts.strands.models import ScriptedModel, says


def test_the_example_goes_on_where_it_ended(example: Example, session_id: str) -> None:
    chat = example("strands_agent.py")["chat"]
    model = ScriptedModel(says("In Bonn."), says("On Friday."))

    for question in ("Where is order 7341?", "And when does it arrive?"):
        chat([question], session_id, model)

    assert [message["content"][0]["text"] for message in model.calls[-1]] == [
        "Where is order 7341?",
        "In Bonn.",
        "And when does it arrive?",
    ]


def test_the_code_of_the_page_runs(page: Page) -> None:
    assert page("strands.md") == []
