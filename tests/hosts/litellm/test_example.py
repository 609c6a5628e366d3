"""The example and the page of LiteLLM run as they stand."""

import pytest

from tests.hosts.chat import says
from tests.hosts.conftest import Example, Page
from tests.hosts.litellm import test_proxy
from tests.hosts.litellm.provider import Provider


async def test_the_example_asks_and_prints(
    example: Example,
    provider: Provider,
    session_id: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    provider.script = [says("In Bonn."), says("Friday.")]

    await example("litellm_loop.py")["chat"](
        ["Where is order 7341?", "And when does it arrive?"],
        session_id,
        model="openai/scripted",
        api_base=provider.url,
        api_key="none",
    )

    assert capsys.readouterr().out == "In Bonn.\nFriday.\n"
    assert [message["content"] for message in provider.asked[-1]] == [
        "Answer in one sentence.",
        "Where is order 7341?",
        "In Bonn.",
        "And when does it arrive?",
    ]


def test_the_code_of_the_page_runs(page: Page) -> None:
    [callback] = page("litellm.md")

    assert callback.split() == test_proxy.CALLBACK.replace(", patience_seconds=60", "").split()
