"""An agent of Pydantic AI whose conversation Turnfold keeps.

Needs `pip install 'turnfold[pydantic-ai]' 'pydantic-ai-slim[openai]'` and a running `turnfold up`.
OPENAI_API_KEY is the provider's; `chat` takes any model of Pydantic AI in its place.
"""

from collections.abc import Iterable
from typing import Any

from pydantic_ai import Agent, ModelMessage

from turnfold.integrations.pydantic_ai import TurnfoldCapability


def chat(questions: Iterable[str], session_id: str = "user-42", model: Any = None) -> None:
    """Ask, and print the answers; the history has all messages, the model sees a window."""
    agent = Agent(
        model or "openai:gpt-5-mini",
        instructions="Answer in one sentence.",
        capabilities=[TurnfoldCapability("support", max_tokens=8_000)],
    )
    history: list[ModelMessage] = []
    for question in questions:
        result = agent.run_sync(question, message_history=history, conversation_id=session_id)
        history = result.all_messages()
        print(result.output)


if __name__ == "__main__":
    chat(["Where is order 7341?", "And when does it arrive?"])
