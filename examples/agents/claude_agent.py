"""An agent of the Claude Agent SDK whose transcripts Turnfold keeps.

Needs `pip install 'turnfold[claude-agent]'` and a running `turnfold up`. ANTHROPIC_API_KEY is the
SDK's; `options` takes any other of its settings.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query

from turnfold.integrations.claude_agent import TurnfoldSessionStore


async def chat(questions: Iterable[str], **options: Any) -> None:
    """Ask, and print the answers; a later program of this directory goes on from here."""
    store = TurnfoldSessionStore("support")
    for question in questions:
        goes_on = ClaudeAgentOptions(session_store=store, continue_conversation=True, **options)
        async for message in query(prompt=question, options=goes_on):
            if isinstance(message, ResultMessage):
                print(message.result)


if __name__ == "__main__":
    asyncio.run(chat(["Where is order 7341?", "And when does it arrive?"]))
