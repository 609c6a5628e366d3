"""An agent of LangChain whose conversation Turnfold keeps.

Needs `pip install 'turnfold[langchain]' langchain-openai` and a running `turnfold up`.
OPENAI_API_KEY is the provider's; `chat` takes any chat model of LangChain in its place.
"""

from collections.abc import Iterable
from typing import Any

from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver

from turnfold.integrations.langchain import TurnfoldMiddleware


def chat(questions: Iterable[str], thread_id: str = "user-42", model: Any = None) -> None:
    """Ask, and print the answers; the state has all messages, the model sees a window."""
    agent = create_agent(
        model or "openai:gpt-5-mini",
        system_prompt="Answer in one sentence.",
        middleware=[TurnfoldMiddleware("support", max_tokens=8_000)],
        checkpointer=InMemorySaver(),
    )
    for question in questions:
        asked = {"messages": [{"role": "user", "content": question}]}
        state = agent.invoke(asked, {"configurable": {"thread_id": thread_id}})
        print(state["messages"][-1].content)


if __name__ == "__main__":
    chat(["Where is order 7341?", "And when does it arrive?"])
