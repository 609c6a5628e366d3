"""Both kinds of session of the OpenAI Agents SDK, in a process whose Python has that framework.

Run as a program it prints one line of JSON: `python tests/benchmarks/agents_sessions.py URL FILE`.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any

SIZES = 1_000, 5_000
ROUNDS = 40
WARM_ROUNDS = 5
TAIL = 50
MAX_TOKENS = 8_000
LOADED_AT_ONCE = 500
PAUSE_SECONDS = 0.1
"""The time of a fast model between two reads."""

Item = dict[str, Any]
Times = dict[str, list[float]]


def turn(random: Random, number: int) -> list[Item]:
    """A request, a call, its result and an answer: four items of about 2,300 characters."""

    def text(characters: int) -> str:
        words = [f"{random.randrange(10**6):x}" for _ in range(characters // 6)]
        return " ".join(words)

    call_id = f"call_{number}"
    arguments = json.dumps({"q": text(40)})
    part = {"type": "output_text", "text": text(700), "annotations": []}
    return [
        {"role": "user", "content": text(300)},
        {"type": "function_call", "call_id": call_id, "name": "search", "arguments": arguments},
        {"type": "function_call_output", "call_id": call_id, "output": text(1_200)},
        {"type": "message", "role": "assistant", "status": "completed", "content": [part]},
    ]


async def main(url: str, path: str) -> None:
    """Measure sessions of each size."""
    # The framework is in another environment than the type checker.
    from agents import SQLiteSession  # type: ignore[import-not-found, unused-ignore]

    import turnfold
    from turnfold.integrations.openai_agents import TurnfoldSession

    found: dict[str, Times] = {}
    async with turnfold.connect(url) as client:
        for size in SIZES:
            name = f"{size}-items"
            sessions: dict[str, Any] = {
                "own": TurnfoldSession("bench", name, client=url, max_tokens=MAX_TOKENS),
                "loop": TurnfoldSession("loop", name, client=client, max_tokens=MAX_TOKENS),
                "floor": SQLiteSession(name, path),
            }
            random = Random(size)
            items = [item for number in range(size // 4) for item in turn(random, number)]
            for start in range(0, size, LOADED_AT_ONCE):
                for session in sessions.values():
                    await session.add_items(items[start : start + LOADED_AT_ONCE])
            for session in sessions.values():
                await session.get_items(limit=1)
            found[str(size)] = await _measured(sessions, random)
            sessions["floor"].close()
    print(json.dumps(found))


async def _measured(sessions: dict[str, Any], random: Random) -> Times:
    times: Times = {}

    async def timed(what: str, work: Callable[[], Awaitable[Any]]) -> None:
        began = time.perf_counter()
        await work()
        times.setdefault(what, []).append(time.perf_counter() - began)

    for number in range(WARM_ROUNDS + ROUNDS):
        if number == WARM_ROUNDS:
            times.clear()
        added = turn(random, 10**6 + number)[:1]
        for who, session in sessions.items():
            await asyncio.sleep(PAUSE_SECONDS)
            await timed(f"{who} window", session.get_items)
            await timed(f"{who} tail", partial(session.get_items, limit=TAIL))
            await timed(f"{who} add", partial(session.add_items, added))
    return times


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
