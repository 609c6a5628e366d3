"""Measure what recall adds to the time of a window, in sessions of 1,000 to 100,000 messages.

Each turn publishes a request, waits until it is stored, and asks for a window with recall or
without, in turns, so that each window is the first of its turn and nothing of it is cached. On
SQLite and on PostgreSQL (`BENCH_DATABASE` chooses one), with two vocabularies: one as unevenly
frequent as real text, and one so small that each of its words stands in one of eight messages.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import accumulate, product
from pathlib import Path
from random import Random
from typing import Any

import nats
from nats.aio.client import Client
from sqlalchemy import text

from tests.benchmarks.figures import Figure, Spread
from tests.benchmarks.system import (
    PENDING,
    POLL_SECONDS,
    STORED,
    UNINDEXED,
    WAIT_SECONDS,
    cpu_seconds,
    system,
)
from tests.benchmarks.texts import WORDS, publish, question
from tests.postgres import running_postgres
from turnfold.store.database.engine import Database

SIZES = (1_000, 10_000, 100_000)
GOALS_MS: dict[str, dict[int, float]] = {
    "sqlite": {1_000: 1.5, 10_000: 3.0, 100_000: 4.0},
    "postgresql": {1_000: 2.0, 10_000: 3.0, 100_000: 6.0},
}
DATABASES = os.environ.get("BENCH_DATABASE", ",".join(GOALS_MS)).split(",")
TURNS = 100
WARM_TURNS = 10
MAX_TOKENS = 4_000
MESSAGES_PER_EVENT = 800
SYLLABLES = "ba ce di fo gu ha je ki lo mu na pe ri so tu va we xi yo zu".split()


@dataclass
class AgedSession:
    """A session under measurement, with the seconds of its windows, with recall and without."""

    database: str
    messages: int
    vocabulary: str
    seconds: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    processor: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})

    @property
    def session_id(self) -> str:
        """Return its id."""
        return f"recall-{self.messages}-{self.vocabulary}"


class Talk:
    """Sentences of random words: 8,000 as unevenly frequent as those of a language, or few."""

    def __init__(self, seed: int, vocabulary: str = "real") -> None:
        self._random = Random(seed)
        if vocabulary == "few":
            self._words = WORDS
            self._weights: list[float] = list(range(1, len(WORDS) + 1))
            return
        self._words = [
            first + second + third
            for first in SYLLABLES
            for second in SYLLABLES
            for third in SYLLABLES
        ]
        Random(1).shuffle(self._words)
        # Without "the" and "of", which are not looked up.
        self._weights = list(accumulate(1 / (rank + 50) for rank in range(len(self._words))))

    def message(self, role: str, words: int) -> dict[str, Any]:
        """Return a message of so many words."""
        said = self._random.choices(self._words, cum_weights=self._weights, k=words)
        return {"role": role, "content": f"{' '.join(said).capitalize()}."}

    def rounds(self, number: int) -> list[dict[str, Any]]:
        """Return so many requests with their answers."""
        return [
            message
            for _ in range(number)
            for message in (self.message("user", 20), self.message("assistant", 40))
        ]


async def measure(directory: Path, sizes: Sequence[int] = SIZES) -> AsyncIterator[Figure]:
    """Load the sessions of each database, then ask in turns."""
    with ExitStack() as stack:
        for database in DATABASES:
            settings = {}
            if database == "postgresql":
                postgres = stack.enter_context(running_postgres())
                settings["TURNFOLD_DATABASE_URL"] = postgres.url(await postgres.create_database())
            async with (
                system(directory / database, **settings) as one,
                one.running("worker"),
                one.running("query") as query,
                await nats.connect(one.url) as client,
            ):
                stored = Database(one.database_url, writes=False)
                for size, vocabulary in product(sizes, ("real", "few")):
                    session, talk = AgedSession(database, size, vocabulary), Talk(size, vocabulary)
                    await load(stored, client, session, talk)
                    for number in range(WARM_TURNS + TURNS):
                        await ask(stored, client, query.pid, session, talk, number)
                    for figure in figures(session):
                        yield figure
                await stored.close()


async def settled(database: Database, seq: int) -> None:
    """Wait until everything up to a sequence is stored, and nothing is pending or to be indexed."""
    deadline = time.monotonic() + WAIT_SECONDS
    left = f"SELECT ({STORED}), ({UNINDEXED}) + ({PENDING})"
    while True:
        reached, waiting = await database.snapshot(
            lambda connection: connection.execute(text(left)).one()
        )
        if reached >= seq and not waiting:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"something is left after {WAIT_SECONDS:g} s")
        await asyncio.sleep(POLL_SECONDS)


async def load(database: Database, client: Client, session: AgedSession, talk: Talk) -> None:
    """Fill a session, and wait until its words are indexed."""
    stream, session_id, seq = client.jetstream(timeout=30), session.session_id, 0
    for start in range(0, session.messages, MESSAGES_PER_EVENT):
        number = min(MESSAGES_PER_EVENT, session.messages - start) // 2
        seq = await publish(stream, session_id, f"{session_id}-load-{start}", talk.rounds(number))
    await settled(database, seq)


async def ask(  # all that a turn touches
    database: Database,
    client: Client,
    query_pid: int,
    session: AgedSession,
    talk: Talk,
    number: int,
) -> None:
    """Publish the answer of the turn before and a request, and time a window for it."""
    messages = [talk.message("assistant", 40), talk.message("user", 12)]
    stream, session_id = client.jetstream(timeout=30), session.session_id
    seq = await publish(stream, session_id, f"{session_id}-turn-{number}", messages)
    await settled(database, seq)
    recall = number % 2 == 0
    body = json.dumps(
        {
            "max_tokens": MAX_TOKENS,
            "after": seq,
            "wait_ms": 5_000,
            "recall": {} if recall else False,
        }
    ).encode()
    used, asked = cpu_seconds(query_pid), time.perf_counter()
    reply = await client.request(question(session_id), body, timeout=10)
    seconds = time.perf_counter() - asked
    told = json.loads(reply.data)
    assert told["fresh"]
    assert recall == bool(told["account"]["recalled"]), told["account"]
    if number >= WARM_TURNS:
        session.seconds[recall].append(seconds)
        session.processor[recall] += cpu_seconds(query_pid) - used


def figures(session: AgedSession) -> list[Figure]:
    """Return the figures of a session."""
    of = f"{session.messages:,} messages, {session.vocabulary} words, {session.database}"
    spreads = {recall: Spread.of(session.seconds[recall]) for recall in (True, False)}
    added_ms = spreads[True].p50_ms - spreads[False].p50_ms
    goal_ms = GOALS_MS[session.database].get(session.messages)
    return [
        Figure(f"added, p50, {of}", added_ms, "ms", at_most=goal_ms),
        *(
            Figure(f"{what}, {of}", value, "ms")
            for recall, name in ((True, "with recall"), (False, "without"))
            for what, value in (
                (f"{name}, p50", spreads[recall].p50_ms),
                (f"{name}, p99", spreads[recall].p99_ms),
                (
                    f"{name}, processor",
                    1000 * session.processor[recall] / len(session.seconds[recall]),
                ),
            )
        ),
    ]
