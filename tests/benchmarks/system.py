"""The system under measurement: a nats-server as it comes, and worker and query as processes of their own."""

import asyncio
import json
import os
import signal
import sqlite3
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

from tests.environment import clean_environ
from tests.nats_server import NatsServer, nats_server
from turnfold.process.ready import ANNOUNCE

PROGRAM = Path(sys.executable).parent / "turnfold"
READY_SECONDS = 60.0
STOP_SECONDS = 30.0
WAIT_SECONDS = 300.0
POLL_SECONDS = 0.003
STORED = "SELECT coalesce(sum(last_seq - first_seq + 1), 0) FROM ingested_ranges"
UNINDEXED = "SELECT count(*) FROM sessions WHERE unindexed_from IS NOT NULL"
PENDING = (
    "SELECT count(*) FROM compactions WHERE NOT is_covered AND status IN ('pending', 'running')"
)


class System:
    """A bus and a database that are ready for `worker` and `query`; each part that runs is one real process."""

    def __init__(self, directory: Path, server: NatsServer, settings: Mapping[str, str]) -> None:
        self.url = server.url
        self.server_pid = server.pid
        self.database = directory / "turnfold.db"
        self._log = directory / "turnfold.log"
        self._reader: sqlite3.Connection | None = None
        defaults = {
            "TURNFOLD_NATS_URL": server.url,
            "TURNFOLD_DATABASE_URL": f"sqlite+aiosqlite:///{self.database}",
            "TURNFOLD_HTTP_PORT": "0",
            "TURNFOLD_LOG_LEVEL": "warning",
        }
        self._environ = clean_environ({**defaults, **settings})

    async def migrate(self) -> None:
        """Make tables and streams."""
        process = await asyncio.create_subprocess_exec(PROGRAM, "migrate", env=self._environ)
        if await process.wait():
            raise RuntimeError("`turnfold migrate` failed")

    @asynccontextmanager
    async def running(self, part: str, *, is_awaited: bool = True) -> AsyncGenerator[Process]:
        """A service, from when it says that it is ready (or from its start on) until it has stopped."""
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                PROGRAM,
                part,
                env=self._environ | {ANNOUNCE: "1"},
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
            )
        try:
            if is_awaited:
                await ready_line(process, part)
            yield process
        finally:
            await stop(process)

    def ask(self, sql: str) -> tuple[Any, ...]:
        """The first row of a reading query; the system is not asked, so nothing is left behind in it."""
        found: tuple[Any, ...] = self._read(sql).fetchone()
        return found

    def all(self, sql: str) -> list[tuple[Any, ...]]:
        """The same for all rows."""
        return self._read(sql).fetchall()

    def _read(self, sql: str) -> sqlite3.Cursor:
        if self._reader is None:
            self._reader = sqlite3.connect(
                f"file:{self.database}?mode=ro", uri=True, timeout=10, isolation_level=None
            )
        return self._reader.execute(sql)

    @property
    def database_url(self) -> str:
        """The URL of its database."""
        return self._environ["TURNFOLD_DATABASE_URL"]

    def logged(self) -> int:
        """How many lines its services have logged."""
        return self._log.read_bytes().count(b"\n")

    def close(self) -> None:
        """Stop reading."""
        if self._reader is not None:
            self._reader.close()

    async def ingested(self, seq: int) -> None:
        """Wait until everything up to this sequence is stored."""
        await until(lambda: self.ask(STORED)[0] >= seq)

    async def summarized(self) -> None:
        """Wait until no summary is pending."""
        await until(lambda: not self.ask(PENDING)[0])

    async def settled(self) -> None:
        """Wait until no summary is pending, and nothing is to be indexed: up to a second."""
        await until(lambda: not self.ask(PENDING)[0] and not self.ask(UNINDEXED)[0])


@asynccontextmanager
async def system(directory: Path, **settings: str) -> AsyncGenerator[System]:
    """A system without services yet; the server syncs as it does by default."""
    directory.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - nothing else waits yet
    with nats_server(directory) as server:
        made = System(directory, server, settings)
        await made.migrate()
        with closing(made):
            yield made


async def ready_line(process: Process, what: str) -> dict[str, Any]:
    """The line with which a process says that it is ready."""
    assert process.stdout
    async with asyncio.timeout(READY_SECONDS):
        line = await process.stdout.readline()
    if not line:
        raise RuntimeError(f"{what} ended with status {await process.wait()} before it was ready")
    ready: dict[str, Any] = json.loads(line)
    return ready


async def stop(process: Process) -> None:
    """Tell a process to stop, and wait for it."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def until(holds: Callable[[], object]) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not so within {WAIT_SECONDS:g} s")
        await asyncio.sleep(POLL_SECONDS)


def cpu_seconds(pid: int) -> float:
    """The processor time that a process and those it started have used; steps of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK") + sum(
        map(cpu_seconds, children(pid))
    )


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def file_reads(pid: int) -> int:
    """How often a process has read from files: a count that does not depend on what else the machine does."""
    return int(Path(f"/proc/{pid}/io").read_text().partition("syscr: ")[2].split()[0])


def proportional_mb(pid: int) -> float:
    """The memory of a process in MB, of which it has a part of what several share (PSS)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def resident_mb(pid: int) -> float:
    """The memory a process holds (RSS), in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0
