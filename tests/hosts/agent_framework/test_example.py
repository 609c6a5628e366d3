"""The example and the page of the framework run as they stand."""

from tests.hosts.agent_framework.models import ScriptedClient
from tests.hosts.conftest import Example, Page


async def test_the_example_goes_on_where_it_ended(example: Example, session_id: str) -> None:
    chat = example("agent_framework_agent.py")["chat"]
    client = ScriptedClient(["In Bonn."], ["On Friday."])

    for question in ("Where is order 7341?", "And when does it arrive?"):
        await chat([question], session_id, client)

    assert [one.text for one in client.calls[-1]] == [
        "Where is order 7341?",
        "In Bonn.",
        "And when does it arrive?",
    ]


def test_the_code_of_the_page_runs(page: Page) -> None:
    assert page("agent-framework.md") == []
