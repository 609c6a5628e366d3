"""A loop with LiteLLM whose conversation Turnfold keeps.

Needs `pip install 'turnfold[litellm]'` and a running `turnfold up`. OPENAI_API_KEY is the
provider's; `chat` takes further arguments of `litellm.acompletion`, such as another model.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

import litellm

from turnfold.integrations.litellm import TurnfoldCallback


async def chat(questions: Iterable[str], session_id: str = "user-42", **options: Any) -> None:
    """Ask, and print the answers; the list has all messages, the provider is sent a window."""
    litellm.callbacks = [TurnfoldCallback("support", max_tokens=8_000)]
    messages: list[Any] = [{"role": "system", "content": "Answer in one sentence."}]
    call = {"model": "gpt-5-mini", "litellm_session_id": session_id, **options}
    for question in questions:
        messages.append({"role": "user", "content": question})
        response: Any = await litellm.acompletion(messages=messages, **call)
        messages.append(response.choices[0].message)
        print(messages[-1].content)


if __name__ == "__main__":
    asyncio.run(chat(["Where is order 7341?", "And when does it arrive?"]))
