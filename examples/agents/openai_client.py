"""A loop with the plain client of OpenAI whose conversation Turnfold keeps.

Needs `pip install turnfold openai` and a running `turnfold up`. OPENAI_API_KEY is the provider's;
`chat` takes any `openai.AsyncOpenAI` in place of its own.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

import openai

import turnfold


async def chat(questions: Iterable[str], session_id: str = "user-42", client: Any = None) -> None:
    """Ask, and print the answers; Turnfold has all messages, the model is sent a window."""
    model = client or openai.AsyncOpenAI()
    system = {"role": "system", "content": "Answer in one sentence."}
    async with turnfold.connect() as connected:
        session = connected.session("support", session_id)
        for question in questions:
            await session.turn_completed([{"role": "user", "content": question}])
            window = await session.context(max_tokens=8_000, placement="user", wait_ms=5_000)
            messages = [system, *window.messages]
            response = await model.chat.completions.create(model="gpt-5-mini", messages=messages)
            answer = response.choices[0].message
            await session.turn_completed([answer.model_dump(exclude_none=True)])
            print(answer.content)


if __name__ == "__main__":
    asyncio.run(chat(["Where is order 7341?", "And when does it arrive?"]))
