"""Measure the bytes of a message: published, in the stream, and in either database.

100 sessions of 50 turns, until nothing is pending or to be indexed (140 evictions per 1,000
turns; `BENCH_STORED_TURNS` changes the turns). The bytes include summaries, audit and search index, and the write-ahead log of SQLite, which
the worker truncates when nothing was written for a second.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import nats
from sqlalchemy import text

from tests.benchmarks.figures import Figure
from tests.benchmarks.system import WAIT_SECONDS, system
from tests.benchmarks.texts import event, headers, subject, turn
from tests.postgres import running_postgres
from turnfold.contracts.subjects import EVENTS_STREAM
from turnfold.store.database.engine import Database

SESSIONS = 100
TURNS = int(os.environ.get("BENCH_STORED_TURNS", "50"))
MESSAGES_A_TURN = 4
TRUNCATED_SECONDS = 4.0
"""Longer than the worker takes to truncate the log of SQLite."""
LEFT = """SELECT (SELECT count(*) FROM sessions WHERE unindexed_from IS NOT NULL) + (SELECT count(*) FROM outbox)
    + (SELECT count(*) FROM compactions WHERE NOT is_covered AND status IN ('pending', 'running'))
    + (SELECT abs(:published - count(*)) FROM events)"""
EVICTED = "SELECT count(*), sum(messages_evicted) FROM compactions_view"
SIZE = "SELECT pg_database_size(current_database())"
WORDS = "SELECT pg_total_relation_size('word_index_segments')"


async def measure(directory: Path) -> AsyncIterator[Figure]:
    """Replay the same turns into SQLite and into PostgreSQL, until nothing is pending or to be indexed."""
    messages = SESSIONS * TURNS * MESSAGES_A_TURN

    def a_message(what: str, value: float) -> Figure:
        return Figure(f"bytes a message, {what}", value / messages, "B")

    with ExitStack() as stack:
        postgres = stack.enter_context(running_postgres())
        urls = {
            "SQLite": f"sqlite+aiosqlite:///{directory / 'stored.db'}",
            "PostgreSQL": postgres.url(await postgres.create_database()),
        }
        for name, url in urls.items():
            async with system(directory / name, TURNFOLD_DATABASE_URL=url) as bus:
                database = Database(url, writes=False)
                empty = 0 if name == "SQLite" else (await ask(database, SIZE))[0]
                async with bus.running("worker"):
                    published, streamed = await publish(bus.url)
                    await nothing_left(database)
                    await asyncio.sleep(TRUNCATED_SECONDS)
                    size = size_of(directory)
                evictions, evicted = await ask(database, EVICTED)
                if name == "SQLite":
                    yield a_message("published", published)
                    yield a_message("in the stream", streamed)
                    yield Figure(
                        "evictions of 1,000 turns", 1000 * evictions / SESSIONS / TURNS, ""
                    )
                    yield Figure("messages evicted of 1,000", 1000 * evicted / messages, "")
                    yield a_message(name, size)
                else:
                    (size,) = await ask(database, SIZE)
                    (words,) = await ask(database, WORDS)
                    yield a_message(name, size)
                    yield a_message(f"{name}, without those of an empty one", size - empty)
                    yield a_message(f"{name}, of it the index of words", words)
                await database.close()


def size_of(directory: Path) -> int:
    """The bytes of the SQLite file and of the log beside it."""
    return sum(file.stat().st_size for file in directory.glob("stored.db*"))


async def publish(url: str) -> tuple[int, int]:
    """Publish all turns; the bytes of the events, and those of the stream."""
    random = Random("stored")
    async with await nats.connect(url) as client:
        stream = client.jetstream()
        published = 0
        for number in range(TURNS):
            bodies = [
                (f"s{session}", f"e{session}-{number}", turn(random, number))
                for session in range(SESSIONS)
            ]
            sent = [(session, id, event(id, session, messages)) for session, id, messages in bodies]
            await asyncio.gather(
                *(
                    stream.publish(subject(session), body, headers=headers(id), timeout=30)
                    for session, id, body in sent
                )
            )
            published += sum(len(body) for _, _, body in sent)
        return published, (await stream.stream_info(EVENTS_STREAM)).state.bytes


async def nothing_left(database: Database) -> None:
    """Wait until all is stored, summarised, told and indexed."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (await ask(database, LEFT, published=SESSIONS * TURNS))[0]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"something is left after {WAIT_SECONDS:g} s")
        await asyncio.sleep(0.1)


async def ask(database: Database, sql: str, **values: int) -> tuple[int, ...]:
    """The first row."""
    return await database.snapshot(
        lambda connection: tuple(connection.execute(text(sql), values).one())
    )
