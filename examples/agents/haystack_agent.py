"""An agent of Haystack whose conversation is compacted to windows of Turnfold.

Needs `pip install 'turnfold[haystack]'` and a running `turnfold up`. OPENAI_API_KEY is Haystack's;
`chat` takes any chat generator of Haystack in place of OpenAI's.
"""

from collections.abc import Iterable
from typing import Any

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.hooks.compaction import CompactionHook

from turnfold.integrations.haystack import TurnfoldCompactor


def chat(
    questions: Iterable[str],
    session_id: str = "user-42",
    generator: Any = None,
    context_window: int = 128_000,
) -> None:
    """Ask, and print the answers of one conversation."""
    compactor = TurnfoldCompactor("support", session_id)
    hook = CompactionHook(compactor=compactor, context_window=context_window)
    agent = Agent(
        chat_generator=generator or OpenAIChatGenerator(),
        system_prompt="Answer in one sentence.",
        hooks={"before_llm": [hook]},
    )
    messages: list[ChatMessage] = []
    for question in questions:
        result = agent.run(messages=[*messages, ChatMessage.from_user(question)])
        messages = [one for one in result["messages"] if not one.is_from("system")]
        print(result["last_message"].text)


if __name__ == "__main__":
    chat(["Where is order 7341?", "And when does it arrive?"])
