"""Measure the longest time that intake is held up while an agent with many messages is erased.

An agent has `BENCH_ERASING_MESSAGES` (100,000), four in each event, in ten sessions. While it is
erased, and until its rows, its events in the stream and its words in the index are gone, another
agent publishes an event every 20 ms; the delay of each is the time from its publish until it is
stored. The floor: the same agent before.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random

from sqlalchemy import text

import turnfold
from tests.benchmarks.figures import Figure, Spread
from tests.benchmarks.system import WAIT_SECONDS, system
from tests.benchmarks.texts import prose
from tests.postgres import running_postgres
from turnfold.client import Client, OutgoingEvent, session_key, turn_event
from turnfold.process.tasks import cancel_and_wait
from turnfold.store.database.engine import Database

MESSAGES = int(os.environ.get("BENCH_ERASING_MESSAGES", "100000"))
SESSIONS = 10
A_TURN = 4
TEXTS = 1_000
AT_ONCE = 500
PAUSE_SECONDS = 0.02
FLOOR_SECONDS = 5.0
GOAL_MS = 100.0
ERASED, OTHER = "erased", "other"
WHOLE_TO = "SELECT coalesce(max(last_seq), 0) FROM ingested_ranges WHERE first_seq = 1"
UNINDEXED = "SELECT count(*) FROM sessions WHERE unindexed_from IS NOT NULL"
LEFT = """SELECT (SELECT count(*) FROM sessions WHERE agent_id IN ('', 'erased'))
    + (SELECT count(*) FROM (SELECT 1 FROM stream_purges LIMIT 1) AS queued)
    + (SELECT count(*) FROM (SELECT 1 FROM index_removals LIMIT 1) AS waiting)"""
OPEN = "SELECT count(*) FROM compactions WHERE status IN ('pending', 'running')"


async def measure(directory: Path) -> AsyncIterator[Figure]:
    """Fill, publish beside nothing, and publish beside an erasure, on each database."""
    with ExitStack() as stack:
        postgres = stack.enter_context(running_postgres(is_durable=True))
        urls = {
            "SQLite": f"sqlite+aiosqlite:///{directory / 'erasing.db'}",
            "PostgreSQL": postgres.url(await postgres.create_database()),
        }
        for name, url in urls.items():
            async for figure in _measured(directory / name, name, url):
                yield figure


async def _measured(directory: Path, name: str, url: str) -> AsyncIterator[Figure]:
    async with (
        system(directory, TURNFOLD_DATABASE_URL=url) as one,
        one.running("worker"),
        turnfold.connect(one.url, environ={}, timeout_seconds=WAIT_SECONDS) as client,
    ):
        database = Database(url, writes=False)
        await fill(client, database)
        alone = await delays(client, database, asyncio.sleep(FLOOR_SECONDS))
        erasure = Erasure(client, database)
        beside = await delays(client, database, erasure.run())
        await database.close()
    of = f"{MESSAGES:,} messages, {name}"
    for what, spread, longest in (
        ("before", Spread.of(alone), max(alone)),
        ("beside an erasure", Spread.of(beside), max(beside)),
    ):
        goal = None if what == "before" else GOAL_MS
        yield Figure(f"event to stored, {what}, p50, {of}", spread.p50_ms, "ms")
        yield Figure(f"event to stored, {what}, longest, {of}", 1000 * longest, "ms", at_most=goal)
    for what, seconds in erasure.seconds.items():
        yield Figure(f"erasure until {what}, {of}", seconds, "s")


class Erasure:
    """An erasure of the agent, and how long it took."""

    def __init__(self, client: Client, database: Database) -> None:
        self._client = client
        self._database = database
        self.seconds: dict[str, float] = {}

    async def run(self) -> None:
        """Erase, and wait until nothing is left."""
        began = time.monotonic()
        await self._client.erase_agent(ERASED)
        self.seconds["answered"] = time.monotonic() - began
        await _until(self._database, f"SELECT -({LEFT})", 0)
        self.seconds["all is gone"] = time.monotonic() - began


async def fill(client: Client, database: Database) -> None:
    """Publish the messages of the agent, and wait until nothing is left to do."""
    random = Random("erasing")
    texts = [prose(random, 400) for _ in range(TEXTS)]

    def session(number: int) -> Iterator[OutgoingEvent]:
        key = session_key(ERASED, f"session-{number}")
        for _ in range(MESSAGES // SESSIONS // A_TURN):
            said = random.choices(texts, k=A_TURN)
            yield turn_event(
                key,
                [
                    {"role": ("user", "assistant")[at % 2], "content": one}
                    for at, one in enumerate(said)
                ],
            )

    await client.publish_sessions(map(session, range(SESSIONS)), at_once=AT_ONCE)
    receipt = await client.publish(_event(0))
    await _until(database, WHOLE_TO, receipt.seq)
    for waiting in (UNINDEXED, OPEN):
        await _until(database, f"SELECT -({waiting})", 0)


async def delays(client: Client, database: Database, work: Awaitable[object]) -> Sequence[float]:
    """The seconds from publish to storage of another agent's events while something runs."""
    published: list[tuple[int, float]] = []
    found: list[float] = []

    async def publish() -> None:
        number = 1
        while True:
            began = time.monotonic()
            receipt = await client.publish(_event(number))
            published.append((receipt.seq, began))
            number += 1
            await asyncio.sleep(max(0.0, began + PAUSE_SECONDS - time.monotonic()))

    async def look() -> None:
        while True:
            stored = await _ask(database, WHOLE_TO)
            now = time.monotonic()
            while published and published[0][0] <= stored:
                found.append(now - published.pop(0)[1])
            await asyncio.sleep(0.003)

    tasks = [asyncio.create_task(publish()), asyncio.create_task(look())]
    await work
    await asyncio.sleep(1.0)
    await cancel_and_wait(*tasks)
    return found


def _event(number: int) -> OutgoingEvent:
    return turn_event(
        session_key(OTHER, f"session-{number % SESSIONS}"),
        [{"role": "user", "content": f"Is {number} there?"}],
    )


async def _ask(database: Database, sql: str) -> int:
    return int(
        await database.snapshot(lambda connection: connection.execute(text(sql)).scalar_one())
    )


async def _until(database: Database, sql: str, least: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        if await _ask(database, sql) >= least:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{sql} is below {least} after {WAIT_SECONDS:g} s")
        await asyncio.sleep(0.1)
