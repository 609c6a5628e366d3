"""An agent of the OpenAI Agents SDK whose conversation Turnfold keeps.

Needs `pip install 'turnfold[openai-agents]'` and a running `turnfold up`. OPENAI_API_KEY is the
SDK's; `chat` takes any model of the SDK in its place.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from agents import Agent, Runner

from turnfold.integrations.openai_agents import TurnfoldSession


async def chat(questions: Iterable[str], session_id: str = "user-42", model: Any = None) -> None:
    """Ask, and print the answers; a later program with the same session id goes on from here."""
    agent = Agent(name="support", instructions="Answer in one sentence.", model=model)
    session = TurnfoldSession("support", session_id, max_tokens=8_000)
    for question in questions:
        result = await Runner.run(agent, question, session=session)
        print(result.final_output)


if __name__ == "__main__":
    asyncio.run(chat(["Where is order 7341?", "And when does it arrive?"]))
