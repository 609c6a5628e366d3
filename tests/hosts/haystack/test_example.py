"""The example and the page of Haystack run as they stand."""

from haystack.dataclasses import ChatMessage

from tests.hosts.conftest import Example, Page
from tests.hosts.haystack.test_compactor import ScriptedGenerator


def test_the_example_is_compacted_and_goes_on(example: Example, session_id: str) -> None:
    model = ScriptedGenerator(0)
    questions = [f"Note {day}: calm weather, and nothing else to tell." for day in range(60)]

    example("haystack_agent.py")["chat"](
        [*questions, "Where is order 7341?"], session_id, model, 1_000
    )

    last: list[ChatMessage] = model.calls[-1]
    assert last[-1].text == "Where is order 7341?"
    assert len(last) < 60
    assert max(len(call) for call in model.calls) < 100


def test_the_code_of_the_page_runs(page: Page) -> None:
    assert page("haystack.md") == []
