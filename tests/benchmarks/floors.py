"""The floors: what the bus and the database cost with nothing on top, on this machine at this time.

Run as a program it is the other end of the echo: `python -m tests.benchmarks.floors URL`.
"""

import asyncio
import json
import sqlite3
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import asyncpg
import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.benchmarks.system import stop

EVENTS = 20_000
SESSIONS = 200
FETCH = 200
LARGEST_REPLY = b"x" * 2_000_000


def event(number: int) -> bytes:
    """A question and an answer of one letter, about 500 bytes in all."""
    said = "x" * 175
    messages = [{"role": "user", "content": said}, {"role": "assistant", "content": said}]
    return json.dumps(
        {
            "event_id": f"e{number}",
            "agent_id": "a",
            "session_id": f"s{number % SESSIONS}",
            "messages": messages,
        }
    ).encode()


@dataclass(frozen=True, slots=True)
class Passed:
    """Events that went by: the rate, and the processor time of the process that emptied or filled the stream."""

    events_per_second: float
    cpu_us_per_event: float


Rows = list[tuple[str, int, int, str, str]]
Insert = Callable[[Rows], Awaitable[None]]
"""One insert of rows, in one durable transaction."""
Table = Callable[[], AbstractAsyncContextManager[Insert]]


class RawLoop:
    """The least that intake can be: fetch, parse, one insert of the rows in one durable transaction, acknowledge."""

    def __init__(self, url: str, table: Table) -> None:
        self._url = url
        self._table = table
        self._runs = 0

    async def drain(self) -> Passed:
        """Drain a full stream once more; the stream and the table are new each time, and gone afterwards."""
        self._runs += 1
        name = f"FLOOR{self._runs}"
        async with await nats.connect(self._url) as client:
            stream = client.jetstream()
            await stream.add_stream(name=name, subjects=[f"{name}.*"])
            for start in range(0, EVENTS, FETCH):
                await asyncio.gather(
                    *(
                        stream.publish(f"{name}.s", event(number))
                        for number in range(start, start + FETCH)
                    )
                )
            async with self._table() as insert:
                drained = await self._drain(client, f"{name}.*", insert)
            await stream.delete_stream(name)
        return drained

    async def _drain(self, client: Client, subjects: str, insert: Insert) -> Passed:
        pull = await client.jetstream().pull_subscribe(subjects, "drain")
        drained = 0
        used, began = time.process_time(), time.perf_counter()
        while drained < EVENTS:
            batch = await pull.fetch(FETCH, timeout=10)
            rows: Rows = []
            for message in batch:
                told, sequence = json.loads(message.data), message.metadata.sequence.stream
                for place, body in enumerate(told["messages"]):
                    rows.append(
                        (told["session_id"], sequence, place, told["event_id"], json.dumps(body))
                    )
            await insert(rows)
            for message in batch:
                await message.ack()
            drained += len(batch)
        await client.flush()
        used, seconds = time.process_time() - used, time.perf_counter() - began
        return Passed(EVENTS / seconds, used / EVENTS * 1e6)


@asynccontextmanager
async def sqlite_table(directory: Path) -> AsyncGenerator[Insert]:
    """A table in a file of its own."""
    with (
        TemporaryDirectory(dir=directory) as place,
        closing(sqlite3.connect(Path(place) / "floor.db")) as database,
    ):
        database.executescript(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
            "CREATE TABLE message (session TEXT, sequence INT, place INT, event TEXT, body TEXT)"
        )

        async def insert(rows: Rows) -> None:
            with database:
                database.executemany("INSERT INTO message VALUES (?, ?, ?, ?, ?)", rows)

        yield insert


@asynccontextmanager
async def postgres_table(url: str) -> AsyncGenerator[Insert]:
    """A table in a database of a server."""
    connection = await asyncpg.connect(url)
    await connection.execute(
        "CREATE TABLE message (session text, sequence bigint, place int, event text, body text)"
    )

    async def insert(rows: Rows) -> None:
        columns = [list(column) for column in zip(*rows, strict=True)]
        await connection.execute(
            "INSERT INTO message SELECT * FROM unnest($1::text[], $2::bigint[], $3::int[], $4::text[], $5::text[])",
            *columns,
        )

    try:
        yield insert
    finally:
        await connection.execute("DROP TABLE message")
        await connection.close()


class Echo:
    """A request that another process answers with so many bytes, nothing behind it."""

    def __init__(self, client: Client, pid: int) -> None:
        self._client = client
        self.pid = pid

    async def seconds(self, size: int) -> float:
        """How long one request takes whose reply has `size` bytes."""
        asked = time.perf_counter()
        await self._client.request("echo", b"%d" % size, timeout=10)
        return time.perf_counter() - asked


@asynccontextmanager
async def echo(url: str, client: Client) -> AsyncGenerator[Echo]:
    """An echo with its responder in a process of its own."""
    responder = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.benchmarks.floors", url, stdout=PIPE
    )
    try:
        assert responder.stdout
        await responder.stdout.readline()
        yield Echo(client, responder.pid)
    finally:
        await stop(responder)


async def _respond(url: str) -> None:
    async def answer(message: Msg) -> None:
        await message.respond(LARGEST_REPLY[: int(message.data)])

    client = await nats.connect(url)
    await client.subscribe("echo", cb=answer)
    await client.flush()
    await client.flush()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_respond(sys.argv[1]))
