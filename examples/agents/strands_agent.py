"""An agent of Strands whose conversation Turnfold keeps.

Needs `pip install 'turnfold[strands]'` and a running `turnfold up`. The credentials of AWS are
those of Strands; `chat` takes any model of Strands in place of Bedrock's.
"""

from collections.abc import Iterable
from typing import Any

from strands import Agent

from turnfold.integrations.strands import TurnfoldConversationManager


def chat(questions: Iterable[str], session_id: str = "user-42", model: Any = None) -> None:
    """Ask, and print the answers; a later program with the same session id goes on from here."""
    manager = TurnfoldConversationManager("support", session_id, max_tokens=8_000)
    agent = Agent(
        model=model,
        system_prompt="Answer in one sentence.",
        conversation_manager=manager,
        callback_handler=None,
    )
    for question in questions:
        print(agent(question))


if __name__ == "__main__":
    chat(["Where is order 7341?", "And when does it arrive?"])
