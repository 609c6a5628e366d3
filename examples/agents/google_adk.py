"""An agent of Google's ADK whose model sees windows of Turnfold.

Needs `pip install 'turnfold[google-adk]'` and a running `turnfold up`. GOOGLE_API_KEY is the ADK's;
`chat` takes any model of the ADK in its place.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.runners import InMemoryRunner

from turnfold.integrations.google_adk import TurnfoldPlugin


async def chat(questions: Iterable[str], model: Any = "gemini-flash-latest") -> None:
    """Ask, and print the answers of one session."""
    agent = LlmAgent(name="support", model=model, instruction="Answer in one sentence.")
    plugin = TurnfoldPlugin("support", max_tokens=8_000)
    runner = InMemoryRunner(app=App(name="support", root_agent=agent, plugins=[plugin]))
    for question in questions:
        events = await runner.run_debug(question, user_id="user-42", session_id="s1", quiet=True)
        for event in events:
            if event.is_final_response() and event.content:
                print("".join(part.text or "" for part in event.content.parts or ()))


if __name__ == "__main__":
    asyncio.run(chat(["Where is order 7341?", "And when does it arrive?"]))
