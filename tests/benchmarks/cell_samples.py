"""Samples of the running cell: what its processes use, and what waits in its database."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import asyncpg
from nats.js import JetStreamContext

from tests.benchmarks.system import children, proportional_mb, resident_mb
from turnfold.contracts.subjects import EVENTS_STREAM

LAG_SECONDS = 1.0
POLL_SECONDS = 0.2
TICKS = os.sysconf("SC_CLK_TCK")
STORED = "SELECT coalesce(sum(last_seq - first_seq + 1), 0)::bigint FROM ingested_ranges"
STATE = """
    SELECT (SELECT count(*) FROM compactions WHERE evicted_at_ms IS NOT NULL) AS evictions,
           (SELECT count(*) FROM summaries) AS summaries,
           count(*) FILTER (WHERE status = 'pending') AS pending,
           count(*) FILTER (WHERE status = 'running') AS running,
           coalesce(extract(epoch FROM now()) * 1000 - min(requested_at_ms), 0)::bigint / 1000.0 AS oldest_seconds,
           (SELECT count(*) FROM sessions WHERE unindexed_from IS NOT NULL) AS unindexed_sessions,
           (SELECT count(*) FROM outbox) AS notices,
           (SELECT count(*) FROM dead_letters) AS dead_letters,
           pg_database_size(current_database()) AS database_bytes
      FROM compactions WHERE status IN ('pending', 'running')"""
CHILDREN = {"receiver": "receiver", "turnfold.models": "summarizer", "lane": "lane"}
"""The roles of a service's children, by a word of their commands."""

Sample = dict[str, Any]


class CellProcesses:
    """The processes of a cell by their parts, with what they have used."""

    def __init__(
        self, parts: Mapping[str, Sequence[int]], postgres: Callable[[], Sequence[int]]
    ) -> None:
        self._parts = {part: list(pids) for part, pids in parts.items()}
        self._postgres = postgres

    def add(self, part: str, pid: int) -> None:
        """Count another process."""
        self._parts.setdefault(part, []).append(pid)

    @staticmethod
    def machine_seconds() -> float:
        """Seconds of processor time that the machine has spent on anything."""
        user, nice, kernel = map(int, Path("/proc/stat").read_text().split()[1:4])
        return (user + nice + kernel) / TICKS

    def used(self) -> dict[str, float]:
        """Seconds of processor time of each part until now."""
        used = {part: sum(map(_seconds, pids)) for part, pids in self._by_part().items()}
        main, *others = self._postgres()
        # Processes of PostgreSQL that have ended, such as those of its vacuum, count for the first.
        used["postgres"] = _seconds(main, with_ended=True) + sum(map(_seconds, others))
        return used

    def held(self) -> dict[str, float]:
        """MB of each part: RSS of ours, and a share of what they have in common of PostgreSQL's."""
        held = {part: sum(map(resident_mb, pids)) for part, pids in self._by_part().items()}
        held["postgres"] = sum(map(_proportional_mb, self._postgres()))
        return held

    def count(self) -> dict[str, int]:
        """The number of processes of each part."""
        found = {part: len(pids) for part, pids in self._by_part().items()}
        return found | {"postgres": len(self._postgres())}

    def _by_part(self) -> dict[str, list[int]]:
        found = {part: [*pids] for part, pids in self._parts.items()}
        for part in ("worker", "query"):
            for pid in self._parts.get(part, ()):
                for child in children(pid):
                    found.setdefault(_kind_of(child), []).append(child)
        return found


class CellSampler:
    """Reads of the database and the stream beside a run."""

    def __init__(self, connection: asyncpg.Connection, stream: JetStreamContext) -> None:
        self._connection = connection
        self._stream = stream
        self._turn = asyncio.Lock()
        self.lags: list[int] = []

    async def watch_lag(self) -> None:
        """Note once a second how many published events are not stored, until cancelled."""
        while True:
            await asyncio.sleep(LAG_SECONDS)
            self.lags.append(await self.lag())

    async def lag(self) -> int:
        """The number of published events that are not stored."""
        newest = int((await self._stream.stream_info(EVENTS_STREAM)).state.last_seq or 0)
        return max(0, newest - await self.count(STORED))

    async def state(self) -> Sample:
        """The contents of the database, and the work that waits in it."""
        async with self._turn:
            (row,) = await self._connection.fetch(STATE)
        return {name: float(value) for name, value in row.items()}

    async def count(self, sql: str) -> int:
        """The number that a query returns."""
        async with self._turn:
            ((found,),) = await self._connection.fetch(sql)
        return int(found)


async def until_zero(count: Callable[[], Awaitable[int]], *, seconds: float) -> int:
    """Wait until a count is zero, but not for longer than this; what it is then."""
    deadline = time.monotonic() + seconds
    while True:
        left = await count()
        if not left or time.monotonic() > deadline:
            return left
        await asyncio.sleep(POLL_SECONDS)


def _seconds(pid: int, *, with_ended: bool = False) -> float:
    """The processor time of a process, and of those that it has started and that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11 : 15 if with_ended else 13])) / TICKS


def _proportional_mb(pid: int) -> float:
    try:
        return proportional_mb(pid)
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


def _kind_of(pid: int) -> str:
    command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return next((kind for word, kind in CHILDREN.items() if word in command), "other children")
