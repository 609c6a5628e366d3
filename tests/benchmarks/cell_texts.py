"""The settings of the cell, and what its agents say: texts as long as those of recorded agents with tools."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp, log
from random import Random
from typing import Any, Final

from tests.benchmarks.recall import SYLLABLES
from turnfold.client import session_key
from turnfold.messages import SessionKey

SHARES: Final = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 0.99, 0.999, 1.0)
LENGTHS: Final[Mapping[str, Sequence[int]]] = {
    "request": (2, 18, 29, 55, 89, 135, 317, 1_454, 14_518, 51_219),
    "call": (2, 28, 66, 116, 197, 743, 3_681, 6_972, 14_467, 55_801),
    "result": (1, 6, 43, 138, 629, 1_476, 4_762, 10_039, 49_929, 250_000),
    "answer": (1, 21, 35, 90, 210, 444, 759, 1_544, 4_899, 16_007),
}
"""Characters of each part of a turn at these shares.

They are those of 2,687 requests, 5,415 calls, 5,559 results and 2,337 answers: all English recorded
conversations with tool calls but the malformed ones. Between the shares, lengths are interpolated
by their logarithms. The means of the recordings are 134, 459, 994 and 192 characters, those of what
is drawn 156, 484, 950 and 201. The largest recorded result has 942,040 characters; with 250,000,
the mean is near that of the recordings.
"""
PROGRAMS: Final = (
    "support-airline",
    "intercode-bash_multi_turn_fs_3",
    "sgd",
    "claude-code",
    "swe-agent",
)
POOL_CHARACTERS = 1_000_000
VALUE_EVERY = 12
"""One of so many words is an exact value: a path, an id or a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSettings:
    """The simulated load.

    Of all agents, as many are at work as take so many turns a second with these pauses between
    their turns; each takes so many turns on average, and then another begins. So sessions are as
    active as those of agents that somebody works with, and evict every few minutes, while the rest
    of the database is cold. With turns spread over all agents, no session would evict in half an
    hour, and with turns by Zipf's law, the first would take several a second.
    """

    agents: int = 40_000
    services: int = 2
    turns_a_second: float = 116.0
    minutes: float = 30.0
    pause_seconds: float = 30.0
    turns_a_visit: int = 20
    step_seconds: float = 3.0
    past_turns: tuple[int, int] = (6, 12)
    """The least and most turns with which a session begins: from what an eviction leaves to what sets one off."""
    max_tokens: int = 32_000
    model_seconds: float = 10.0
    concurrency: int = 100
    sample_seconds: float = 10.0
    is_durable: bool = True
    seed: int = 1

    @property
    def at_work(self) -> int:
        """The number of agents at work at a time."""
        return max(1, min(self.agents, round(self.turns_a_second * self.pause_seconds)))

    @classmethod
    def of_environment(cls) -> "CellSettings":
        """The cell of docs/scale.md, but for what `CELL_AGENTS`, `CELL_RATE` and others say."""
        environ, usual = os.environ, cls()
        return cls(
            agents=int(environ.get("CELL_AGENTS", usual.agents)),
            turns_a_second=float(environ.get("CELL_RATE", usual.turns_a_second)),
            minutes=float(environ.get("CELL_MINUTES", usual.minutes)),
            max_tokens=int(environ.get("CELL_MAX_TOKENS", usual.max_tokens)),
        )


class CellTexts:
    """Texts of random words, as unevenly frequent as those of a language, and of exact values."""

    def __init__(self, random: Random) -> None:
        self._random = random
        words = [
            f"{first}{second}{third}"
            for first in SYLLABLES
            for second in SYLLABLES
            for third in SYLLABLES
        ]
        Random("words").shuffle(words)
        weights = list(accumulate(1 / (rank + 50) for rank in range(len(words))))
        number = POOL_CHARACTERS // 7
        said = random.choices(words, cum_weights=weights, k=number)
        for at in range(0, number, VALUE_EVERY):
            said[at] = self._value(said[at])
        for at in range(0, number, 14):
            said[at] = f"{said[at].capitalize()}."
        self._pool = " ".join(said)

    def text_of(self, characters: int) -> str:
        """A text of so many characters."""
        start = self._random.randrange(len(self._pool) - characters)
        return self._pool[start : start + characters].strip() or "-"

    def text(self, kind: str) -> str:
        """A text as long as one of this kind."""
        return self.text_of(length(LENGTHS[kind], self._random.random()))

    def turn(self, number: int) -> list[dict[str, Any]]:
        """A request, a call, its result and an answer."""
        call = {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": "search", "arguments": json.dumps({"q": self.text("call")})},
        }
        return [
            {"role": "user", "content": self.text("request")},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": self.text("result")},
            {"role": "assistant", "content": self.text("answer")},
        ]

    def _value(self, word: str) -> str:
        kind, number = self._random.randrange(4), self._random.randrange(10_000)
        return (f"src/{word}/{number}.py", f"{word}-{number}", f"{number}", f"#{number}")[kind]


def length(lengths: Sequence[int], share: float) -> int:
    """The length at a share of a distribution, between those that are given by their logarithms."""
    for below, above, short, long in zip(SHARES, SHARES[1:], lengths, lengths[1:], strict=False):
        if share <= above:
            part = (share - below) / (above - below)
            return round(exp(log(short) + part * (log(long) - log(short))))
    return lengths[-1]


def key_of(agent: int) -> SessionKey:
    """The session of an agent; ids are named as recorded ones are: after a program, with a number."""
    program = PROGRAMS[agent % len(PROGRAMS)]
    return session_key(f"{program}-{agent:05}", f"{program}-task-{agent * 7919 % 1_000_003}")
