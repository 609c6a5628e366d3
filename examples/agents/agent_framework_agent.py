"""An agent of the Microsoft Agent Framework whose history Turnfold keeps.

Needs `pip install 'turnfold[agent-framework]' agent-framework-openai` and a running `turnfold up`.
OPENAI_API_KEY and OPENAI_MODEL are the framework's; `chat` takes any chat client in their place.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from agent_framework import Agent

from turnfold.integrations.agent_framework import TurnfoldHistoryProvider


async def chat(questions: Iterable[str], session_id: str = "user-42", client: Any = None) -> None:
    """Ask, and print the answers; a later program with the same session id goes on from here."""
    if client is None:
        from agent_framework.openai import OpenAIChatClient  # noqa: PLC0415  # another package

        client = OpenAIChatClient()
    history = TurnfoldHistoryProvider("support", max_tokens=8_000)
    agent = Agent(
        client=client, instructions="Answer in one sentence.", context_providers=[history]
    )
    session = agent.create_session(session_id=session_id)
    for question in questions:
        print((await agent.run(question, session=session)).text)


if __name__ == "__main__":
    asyncio.run(chat(["Where is order 7341?", "And when does it arrive?"]))
