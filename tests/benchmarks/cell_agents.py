"""The agents of the cell, in a process of their own: `python -m tests.benchmarks.cell_agents URL SETTINGS`.

Turns begin as a Poisson process, whatever the system answers. A turn publishes its request, some
seconds later its call with the result, and again later its answer; as soon as the stream has one of the first
two, the agent requests a window with its sequence. Each sample is a line of JSON on standard output.
"""

import asyncio
import heapq
import json
import sys
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, cycle
from random import Random
from typing import Any, NamedTuple

import nats
import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.benchmarks.cell_texts import CellSettings, CellTexts, key_of
from turnfold.client import turn_event
from turnfold.contracts.subjects import event_headers, session_subject
from turnfold.messages import SessionKey
from turnfold.process.tasks import cancel_and_wait

STEPS = ((0, 1), (1, 3), (3, 4))
"""The messages that each step of a turn publishes: the request; a call and its result; the answer."""
WINDOWS = 2
"""The steps after which the agent asks for a window."""
SILENT_SECONDS = 15.0
"""Requests without a reply by then count as unanswered."""
TRIES = 10


@dataclass(slots=True)
class CellTurn:
    """A turn that has begun."""

    agent: int
    key: SessionKey
    messages: list[dict[str, Any]]
    step: int = 0


class Sent(NamedTuple):
    """A request or publish that waits for a reply: a window if `turn` is None, else an event of this turn."""

    at: float
    key: SessionKey
    asks_window: bool
    is_window: bool


class CellAgents:
    """All agents of a cell, of which some are at work at a time."""

    def __init__(self, bus: Client, settings: CellSettings) -> None:
        self._bus = bus
        self._settings = settings
        self._random = Random(settings.seed)
        self._texts = CellTexts(self._random)
        self._next_agent = cycle(self._random.sample(range(settings.agents), settings.agents))
        self._at_work = [next(self._next_agent) for _ in range(settings.at_work)]
        self._in_turn: set[int] = set()
        self._sent: dict[str, Sent] = {}
        self._names = count()
        self._inbox = bus.new_inbox()
        self._counts: Counter[str] = Counter()
        self._delays = {name: array("d") for name in ("late", "ack", "window", "refusal")}
        self._newest_seq = 0
        self._is_over = False
        self._is_answered = asyncio.Event()

    async def run(self) -> None:
        """Work for the time that the settings say; a last line follows when all was answered."""
        await self._bus.subscribe(f"{self._inbox}.*", cb=self._on_reply)
        sampling = asyncio.create_task(self._sample())
        await self._take_turns()
        self._is_over = True
        self._note_answered()
        with suppress(TimeoutError):
            async with asyncio.timeout(SILENT_SECONDS):
                await self._is_answered.wait()
        await cancel_and_wait(sampling)
        self._give_up(after_seconds=0.0)
        self._tell(dict.fromkeys(self._delays, 0), is_last=True)

    async def _take_turns(self) -> None:
        """Publish each step when it is due, and never wait for an answer."""
        settings, random = self._settings, self._random
        arrivals = self._arrivals()
        order = count()
        due: list[tuple[float, int, CellTurn | None]] = [(next(arrivals), next(order), None)]
        began = time.monotonic()
        while due:
            now = time.monotonic() - began
            if due[0][0] > now:
                await asyncio.sleep(due[0][0] - now)
                continue
            at, _, turn = heapq.heappop(due)
            self._delays["late"].append(now - at)
            if turn is None:
                following = next(arrivals)
                if following < settings.minutes * 60:
                    heapq.heappush(due, (following, next(order), None))
                turn = self._begin()
            await self._take_step(turn)
            if turn.step < len(STEPS):
                pause = random.uniform(0.5, 1.5) * settings.step_seconds
                heapq.heappush(due, (at + pause, next(order), turn))
            else:
                self._end(turn)
            # Replies are read in between, also where this is late.
            await asyncio.sleep(0)

    def _arrivals(self) -> Iterator[float]:
        at = 0.0
        while True:
            at += self._random.expovariate(self._settings.turns_a_second)
            yield at

    def _begin(self) -> CellTurn:
        chosen = (self._random.choice(self._at_work) for _ in range(TRIES))
        agent = next((one for one in chosen if one not in self._in_turn), self._at_work[0])
        self._in_turn.add(agent)
        self._counts["turns"] += 1
        return CellTurn(agent, key_of(agent), self._texts.turn(self._counts["turns"]))

    def _end(self, turn: CellTurn) -> None:
        """Let another agent begin in the place of one that has taken its turns."""
        self._in_turn.discard(turn.agent)
        if self._random.random() < 1 / self._settings.turns_a_visit and turn.agent in self._at_work:
            self._at_work[self._at_work.index(turn.agent)] = next(self._next_agent)

    async def _take_step(self, turn: CellTurn) -> None:
        start, end = STEPS[turn.step]
        event = turn_event(turn.key, turn.messages[start:end])
        headers = event_headers(turn.key.agent_id, event.event_id, b"cell")
        reply = self._await_reply(turn.key, asks_window=turn.step < WINDOWS, is_window=False)
        await self._bus.publish(event.subject, event.payload, reply=reply, headers=headers)
        self._counts["events"] += 1
        self._counts["messages"] += end - start
        turn.step += 1

    async def _ask(self, key: SessionKey, seq: int) -> None:
        body = b'{"max_tokens": %d, "after": %d}' % (self._settings.max_tokens, seq)
        reply = self._await_reply(key, asks_window=False, is_window=True)
        self._counts["windows"] += 1
        await self._bus.publish(session_subject("context.get", key), body, reply=reply)

    def _await_reply(self, key: SessionKey, *, asks_window: bool, is_window: bool) -> str:
        name = str(next(self._names))
        self._sent[name] = Sent(time.monotonic(), key, asks_window, is_window)
        return f"{self._inbox}.{name}"

    async def _on_reply(self, message: Msg) -> None:
        sent = self._sent.pop(message.subject.rpartition(".")[2], None)
        if sent is None:
            return
        seconds = time.monotonic() - sent.at
        if sent.is_window:
            self._note_window(message.data, seconds)
        elif (seq := json.loads(message.data or b"{}").get("seq")) is None:
            self._failed("publish", message.data)
        else:
            self._delays["ack"].append(seconds)
            self._newest_seq = max(self._newest_seq, seq)
            if sent.asks_window:
                await self._ask(sent.key, seq)
        self._note_answered()

    def _note_window(self, data: bytes, seconds: float) -> None:
        if not data or data.startswith(b'{"error"'):
            self._delays["refusal"].append(seconds)
            self._failed("window", data)
            return
        self._delays["window"].append(seconds)
        self._counts["answered"] += 1
        self._counts["reply_bytes"] += len(data)
        if b'"fresh": false' in data:
            self._counts["stale"] += 1

    def _note_answered(self) -> None:
        if self._is_over and not self._sent:
            self._is_answered.set()

    def _failed(self, what: str, data: bytes) -> None:
        error = json.loads(data or b"{}").get("error", {})
        code = error.get("code", "nobody answers")
        self._counts[f"{what} failed: {code}"] += 1
        if error.get("retry_after_ms"):
            self._counts["shed"] += 1

    async def _sample(self) -> None:
        told = dict.fromkeys(self._delays, 0)
        began = time.monotonic()
        for number in count(1):
            await asyncio.sleep(
                max(0.0, began + number * self._settings.sample_seconds - time.monotonic())
            )
            self._give_up()
            self._tell(told)
            told = {name: len(seconds) for name, seconds in self._delays.items()}

    def _give_up(self, after_seconds: float = SILENT_SECONDS) -> None:
        """Count what was not answered for so long."""
        before = time.monotonic() - after_seconds
        for name in [name for name, sent in self._sent.items() if sent.at < before]:
            what = "window" if self._sent.pop(name).is_window else "publish"
            self._counts[f"{what} failed: unanswered"] += 1

    def _tell(self, already: Mapping[str, int], *, is_last: bool = False) -> None:
        """Print the totals, and the delays since the last sample."""
        told: dict[str, Any] = {
            **self._counts,
            "newest_seq": self._newest_seq,
            "awaited": len(self._sent),
        }
        for name, seconds in self._delays.items():
            told |= _spread(name, seconds[already[name] :])
        if is_last:
            told["agents"] = self._at_work[:1_000]
        print(json.dumps(told), flush=True)


def _spread(name: str, seconds: "array[float]") -> dict[str, float]:
    """The middle, the slow end and the slowest in milliseconds; nothing of none."""
    ordered = sorted(seconds)
    if not ordered:
        return {}
    return {
        f"{name}_p50_ms": 1000 * ordered[len(ordered) // 2],
        f"{name}_p99_ms": 1000 * ordered[int(len(ordered) * 0.99)],
        f"{name}_max_ms": 1000 * ordered[-1],
    }


async def _work(url: str, settings: CellSettings) -> None:
    async with await nats.connect(url, pending_size=32 * 1024 * 1024) as bus:
        await CellAgents(bus, settings).run()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_work(sys.argv[1], CellSettings(**json.loads(sys.argv[2]))))
