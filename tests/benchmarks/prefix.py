"""Measure how much of a window stands as in the window before, and what a prompt cache then saves.

An agent takes 200 turns with two model calls each: for its request, and after a tool result. Each
call is for a window that is asked before, ready to send: the summary stands in it. A provider that
caches prefixes bills a tenth for what begins as the call before, so a run costs its uncached and a
tenth of its cached tokens. Beside it stands the cost of the newest messages that fit, as
`trim_messages` of LangChain keeps them.
"""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from random import Random
from statistics import mean, median
from typing import Any

import nats
from nats.aio.client import Client

from tests.benchmarks.figures import RATIO, Figure
from tests.benchmarks.system import System, system
from tests.benchmarks.texts import publish, question, turn

TURNS = 200
BUDGETS_IN_TURNS = {"five turns": 5, "ten turns": 10, "twenty turns": 20}
GOALS = {"five turns": 0.75, "ten turns": 0.85, "twenty turns": None}
ROOMY_TOKENS = 1_000_000
CACHED_SHARE = 0.1
CHARACTERS_PER_TOKEN = 4
RECALL_TAG = "<turnfold-recall>"


@dataclass
class Run:
    """The model calls of one way to choose their messages, each message as its JSON text."""

    shares: list[float] = field(default_factory=list)
    cost: float = 0.0
    uncached_cost: float = 0.0
    _before: Sequence[str] = ()
    _stable_size: int = 0

    def call(self, messages: Sequence[str], stable: int | None = None) -> None:
        """Add a call; `stable` is the number of messages before a recall block."""
        same = sum(
            len(one)
            for one, _ in takewhile(
                lambda two: two[0] == two[1], zip(messages, self._before, strict=False)
            )
        )
        size = sum(map(len, messages))
        self.uncached_cost += size / CHARACTERS_PER_TOKEN
        self.cost += (size - (1 - CACHED_SHARE) * same) / CHARACTERS_PER_TOKEN
        if self._before:
            self.shares.append(min(1.0, same / max(self._stable_size, 1)))
        self._before = messages
        self._stable_size = sum(map(len, messages[:stable]))


async def measure(directory: Path) -> AsyncIterator[Figure]:
    """Run the agent at each budget."""
    random = Random("prefix")
    turns = [turn(random, number) for number in range(TURNS)]
    tokens = median(sum(map(_size, one)) / CHARACTERS_PER_TOKEN for one in turns)
    async with (
        system(directory) as one,
        one.running("worker"),
        one.running("query"),
        await nats.connect(one.url) as client,
    ):
        for name, number in BUDGETS_IN_TURNS.items():
            budget = int(number * tokens)
            run = await run_agent(one, client, turns, name, budget)
            trimmed = trimmed_run(turns, budget)
            yield Figure(
                f"prefix that stands, mean, {name}", mean(run.shares), RATIO, at_least=GOALS[name]
            )
            yield Figure(
                f"cost, to the newest that fit, {name}", run.cost / trimmed.cost, RATIO, at_most=0.5
            )
            yield Figure(
                f"cost, to the same windows uncached, {name}", run.cost / run.uncached_cost, RATIO
            )
        run = await run_agent(one, client, turns[: TURNS // 10], "roomy", ROOMY_TOKENS)
        yield Figure("prefix that stands, least, roomy", min(run.shares), RATIO, at_least=1.0)


async def run_agent(
    one: System, client: Client, turns: Sequence[list[dict[str, Any]]], name: str, budget: int
) -> Run:
    """Publish the turns as an agent would, and ask for a window before each model call."""
    run, session_id = Run(), name.replace(" ", "-")
    stream = client.jetstream(timeout=30)

    async def stored(part: str, messages: Sequence[dict[str, Any]]) -> int:
        seq = await publish(stream, session_id, f"{session_id}-{part}", messages)
        await one.ingested(seq)
        return seq

    for number, (request, called, result, answer) in enumerate(turns):
        for part, messages in (("request", [request]), ("result", [called, result])):
            seq = await stored(f"{number}-{part}", messages)
            # A model call takes longer than a compaction. What is not indexed is searched, too.
            await one.summarized()
            fields = {"placement": "user", "max_tokens": budget, "after": seq, "wait_ms": 5_000}
            reply = await client.request(
                question(session_id), json.dumps(fields).encode(), timeout=10
            )
            shown = [json.dumps(message) for message in json.loads(reply.data)["messages"]]
            block = next((at for at, text in enumerate(shown) if RECALL_TAG in text), None)
            run.call(shown, block)
        await stored(f"{number}-answer", [answer])
    return run


def trimmed_run(turns: Sequence[list[dict[str, Any]]], budget: int) -> Run:
    """Return the run of an agent that sends the newest messages that fit."""
    run, said = Run(), []
    for request, called, result, answer in turns:
        for messages in ([request], [called, result]):
            said += messages
            kept: list[str] = []
            left = budget * CHARACTERS_PER_TOKEN
            for message in reversed(said):
                left -= _size(message)
                if left < 0:
                    break
                kept.append(json.dumps(message))
            while kept and '"role": "user"' not in kept[-1]:
                kept.pop()
            run.call(kept[::-1])
        said.append(answer)
    return run


def _size(message: dict[str, Any]) -> int:
    return len(json.dumps(message))
