"""Measure the latency that the proxy adds to a model call, over a bare pass-through.

An agent sends the same call to both in turns, and each relays it to one provider, which answers
after `BENCH_PROXY_ANSWER_MS` (100). A turn is three calls: a request of the user, and the results
of two tools. In a short conversation everything fits. A long one has 1,200 messages and a budget of
8,000 tokens. What the proxy adds is the difference of the percentiles, of 300 calls each.
"""

import asyncio
import json
import os
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import httpx

from tests.benchmarks.figures import Figure, Spread
from tests.benchmarks.system import cpu_seconds, ready_line, stop, system
from tests.benchmarks.texts import prose, turn
from tests.ports import free_port
from tests.provider import Provider, ProviderReply, ProviderRequest, completion, running_provider

SHORT_TURNS = 10
"""Turns after which a short conversation begins anew."""
CONVERSATIONS = ("short", 0, 60), ("long", 240, 60), ("longest", 1_200, 10)
"""Their names, their messages at the beginning, and their turns."""
BUDGET = 8_000
STEPS = 2
ANSWER_SECONDS = float(os.environ.get("BENCH_PROXY_ANSWER_MS", "100")) / 1_000
PATH = "/v1/chat/completions"
BYPASSED = "x-turnfold-bypassed"
WAIT_SECONDS = "10"
GOALS_MS = 3.0, 15.0

Json = dict[str, Any]


@dataclass
class Measured:
    """The seconds of calls of one kind, without what the provider took."""

    kind: str
    proxied: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)

    def figures(self, *, has_goal: bool) -> Iterator[Figure]:
        """The difference, and both."""
        own, floor = Spread.of(self.proxied), Spread.of(self.bare)
        for name, ours, theirs, goal in zip(
            ("p50", "p99"), (own.p50_ms, own.p99_ms), (floor.p50_ms, floor.p99_ms), GOALS_MS,
            strict=True,
        ):  # fmt: skip
            bound = goal if has_goal else None
            yield Figure(f"{self.kind}: added, {name}", ours - theirs, "ms", at_most=bound)
            yield Figure(f"{self.kind}: through the proxy, {name}", ours, "ms")
            yield Figure(f"{self.kind}: bare, {name}", theirs, "ms")


async def measure(directory: Path) -> AsyncIterator[Figure]:
    """Short conversations, then a long one."""
    port, model = free_port(), Model()
    async with running_provider(model.reply) as provider:
        settings = {
            "TURNFOLD_PROXY_UPSTREAM": provider.url,
            "TURNFOLD_PROXY_PORT": str(port),
            "TURNFOLD_PROXY_WAIT_SECONDS": WAIT_SECONDS,
        }
        async with (
            system(directory, **settings) as one,
            one.running("worker"),
            one.running("query"),
            one.running("proxy") as process,
            bare(provider) as (floor, floor_pid),
            _client(f"http://127.0.0.1:{port}") as proxied,
            _client(floor) as passed,
        ):
            everything = Measured("all calls but the longest")
            for what, messages, turns in CONVERSATIONS:
                caller = Caller(proxied, passed, model, what, messages)
                requests = Measured(f"{what}, request of the user")
                steps = Measured(f"{what}, result of a tool")
                before = cpu_seconds(process.pid) - cpu_seconds(floor_pid)
                for number in range(turns):
                    await caller.turn(number, requests, steps)
                used = cpu_seconds(process.pid) - cpu_seconds(floor_pid) - before
                calls = turns * (STEPS + 1)
                yield Figure(f"{what}: processor time added per call", used / calls * 1e3, "ms")
                for measured in (requests, steps):
                    if what != CONVERSATIONS[-1][0]:
                        everything.proxied += measured.proxied
                        everything.bare += measured.bare
                    for figure in measured.figures(has_goal=False):
                        yield figure
            for figure in everything.figures(has_goal=True):
                yield figure


class Model:
    """Answers with `message`, after the time that a fast model takes."""

    message: Json

    def reply(self, request: ProviderRequest) -> ProviderReply:  # noqa: ARG002
        """White space at once, and the answer later."""
        gate = asyncio.Event()
        asyncio.get_running_loop().call_later(ANSWER_SECONDS, gate.set)
        message = self.message
        reply = completion(message["content"], calls=message.get("tool_calls", ()))
        return replace(reply, chunks=[b" ", *reply.chunks], gate=gate)


class Caller:
    """An agent whose every call goes both ways."""

    def __init__(
        self,
        proxied: httpx.AsyncClient,
        passed: httpx.AsyncClient,
        model: Model,
        name: str,
        messages: int,
    ) -> None:
        self._clients = proxied, passed
        self._model = model
        self._name = name
        self._random = Random(name)
        self._is_long = messages > 0
        self._messages: list[Json] = [
            message for number in range(messages // 4) for message in turn(self._random, number)
        ]
        self._part = 0

    async def turn(self, number: int, requests: Measured, steps: Measured) -> None:
        """A request and its steps; the first turn of a long conversation is not measured."""
        if not self._is_long and number % SHORT_TURNS == 0:
            self._messages, self._part = [], number
        is_measured = number > 0 or not self._is_long
        self._messages.append({"role": "user", "content": prose(self._random, 300)})
        for step in range(STEPS + 1):
            await self._ask(
                (requests if step == 0 else steps) if is_measured else None, number, step
            )

    async def _ask(self, measured: Measured | None, number: int, step: int) -> None:
        """Send the conversation both ways, and add the answer and the result of its call."""
        content = json.dumps({"model": "gpt-4.1", "messages": self._messages}).encode()
        headers = {"x-turnfold-session": f"{self._name}-{self._part}"}
        if self._is_long:
            headers["x-turnfold-budget"] = str(BUDGET)
        self._model.message = answer = self._answer(number, step)
        for place, client in enumerate(self._clients):
            began = time.perf_counter()
            reply = await client.post(PATH, content=content, headers=headers)
            seconds = time.perf_counter() - began - ANSWER_SECONDS
            if place == 0 and BYPASSED in reply.headers:
                raise RuntimeError(f"a call was bypassed: {reply.headers[BYPASSED]}")
            if measured is not None:
                (measured.bare if place else measured.proxied).append(seconds)
        self._messages.append(answer)
        for call in answer.get("tool_calls", ()):
            text = prose(self._random, 900)
            self._messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})

    def _answer(self, number: int, step: int) -> Json:
        if step == STEPS:
            return {"role": "assistant", "content": prose(self._random, 500)}
        function = {"name": "search_tickets", "arguments": json.dumps({"q": str(step)})}
        call = {"id": f"call_{number}_{step}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}


@asynccontextmanager
async def bare(provider: Provider) -> AsyncGenerator[tuple[str, int]]:
    """A pass-through in a process of its own; its address, and its process."""
    port = free_port()
    module = "tests.benchmarks.passthrough"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, provider.url, str(port), stdout=PIPE
    )
    try:
        await ready_line(process, "the pass-through")
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        await stop(process)


def _client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, trust_env=False, timeout=60)
