"""The example and the page of the SDK run as they stand."""

from agents.testing import ScriptedModel, assistant_message

from tests.hosts.conftest import Example, Page


async def test_the_example_goes_on_where_it_ended(example: Example, session_id: str) -> None:
    chat = example("openai_agents.py")["chat"]
    model = ScriptedModel([[assistant_message("In Bonn.")], [assistant_message("Friday.")]])

    for question in ("Where is order 7341?", "And when does it arrive?"):
        await chat([question], session_id, model)

    assert model.calls[-1].input[0] == {"role": "user", "content": "Where is order 7341?"}
    assert len(model.calls[-1].input) == 3


def test_the_code_of_the_page_runs(page: Page) -> None:
    assert page("openai-agents.md") == []
