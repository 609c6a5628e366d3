"""The floors: what the bus and the database cost with nothing on top, on this machine at this time.

Run as a program it is the other end of the echo: `python -m tests.benchmarks.floors URL`.
"""

import asyncio
import json
import sqlite3
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

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
    return json.dumps({"event_id": f"e{number}", "agent_id": "a", "session_id": f"s{number % SESSIONS}", "messages": messages}).encode()


@dataclass(frozen=True, slots=True)
class Drained:
    """An emptied stream: the rate, and the processor time of the process that emptied it."""

    events_per_second: float
    cpu_us_per_event: float


class RawLoop:
    """The least that intake can be: fetch, parse, one insert of the rows in one durable transaction, acknowledge."""

    def __init__(self, url: str, directory: Path) -> None:
        self._url = url
        self._directory = directory
        self._runs = 0

    async def drain(self) -> Drained:
        """Drain a full stream once more; the stream and the file are new each time, and gone afterwards."""
        self._runs += 1
        name, path = f"FLOOR{self._runs}", self._directory / f"floor{self._runs}.db"
        async with await nats.connect(self._url) as client:
            stream = client.jetstream()
            await stream.add_stream(name=name, subjects=[f"{name}.*"])
            for start in range(0, EVENTS, FETCH):
                await asyncio.gather(*(stream.publish(f"{name}.s", event(number)) for number in range(start, start + FETCH)))
            drained = await self._drain(client, f"{name}.*", path)
            await stream.delete_stream(name)
        path.unlink()
        return drained

    async def _drain(self, client: Client, subjects: str, path: Path) -> Drained:
        pull = await client.jetstream().pull_subscribe(subjects, "drain")
        with closing(sqlite3.connect(path)) as database:
            database.executescript(
                "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
                "CREATE TABLE message (session TEXT, sequence INT, place INT, event TEXT, body TEXT)"
            )
            drained = 0
            used, began = time.process_time(), time.perf_counter()
            while drained < EVENTS:
                batch = await pull.fetch(FETCH, timeout=10)
                rows: list[tuple[str, int, int, str, str]] = []
                for message in batch:
                    told, sequence = json.loads(message.data), message.metadata.sequence.stream
                    for place, body in enumerate(told["messages"]):
                        rows.append((told["session_id"], sequence, place, told["event_id"], json.dumps(body)))
                with database:
                    database.executemany("INSERT INTO message VALUES (?, ?, ?, ?, ?)", rows)
                for message in batch:
                    await message.ack()
                drained += len(batch)
            await client.flush()
            used, seconds = time.process_time() - used, time.perf_counter() - began
        return Drained(EVENTS / seconds, used / EVENTS * 1e6)


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
    responder = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.benchmarks.floors", url, stdout=PIPE)
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
