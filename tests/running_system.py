"""`turnfold up` for tests: a real system in a directory of the test, started, signalled and stopped by its own process ids."""

import asyncio
import contextlib
import json
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from typing import Any, TypeVar
from uuid import uuid4

import httpx
import nats
import nats.errors
from nats.aio.client import Client as NatsClient
from nats.aio.subscription import Subscription
from nats.js.api import DeliverPolicy
from sqlalchemy import NullPool
from sqlalchemy.ext.asyncio import create_async_engine

from tests import forked_processes as forked
from tests import invariants
from tests.environment import clean_environ
from tests.nats_server import NatsServer, nats_server
from tests.ports import free_port
from tests.postgres import Postgres
from tests.process_table import parts_of
from turnfold.client import Client, connect
from turnfold.contracts.subjects import EVENTS_STREAM
from turnfold.process.ready import ANNOUNCE
from turnfold.store.database.engine import Database

Json = dict[str, Any]
Seen = TypeVar("Seen")

START_SECONDS = 90.0
STOP_SECONDS = 40.0
FOLLOW_ATTEMPTS = 6
UNFORGOTTEN = "SELECT 1 FROM sessions WHERE agent_id = '' UNION ALL SELECT 1 FROM stream_purges"
"""What was erased and is still to be deleted, from the tables and from the stream."""
TURNFOLD = (sys.executable, "-P", "-m", "turnfold.cli")


class System:
    """One `turnfold up`; only processes that it started are ever signalled."""

    def __init__(
        self,
        data_dir: Path,
        *,
        environ: Mapping[str, str] | None = None,
        nats_port: int = 0,
        http_port: int = 0,
        is_forked: bool = True,
    ) -> None:
        self.data_dir = data_dir
        self._environ = clean_environ(environ)
        ports = ("--nats-port", str(nats_port), "--http-port", str(http_port))
        self._arguments = ("up", "--json", "--data-dir", str(data_dir), *ports)
        self._is_forked = is_forked
        self._out = data_dir.with_name(f"{data_dir.name}.out")
        self._log = data_dir.with_name(f"{data_dir.name}.log")
        self._process: BaseProcess | None = None

    async def start(self) -> Json:
        """Start it; its first ready line."""
        seen = len(self.lines)
        await self.launch()
        await wait_until(
            lambda: len(self.lines) > seen or self.process.exitcode is not None,
            seconds=START_SECONDS,
            told=self.words,
        )
        assert len(self.lines) > seen, (
            f"it ended with status {self.process.exitcode}: {self.words()}"
        )
        return self.ready

    async def launch(self) -> None:
        """Start it without waiting for anything."""
        begin = partial(forked.system, is_forked=self._is_forked)
        self._process = await asyncio.to_thread(
            forked.begun, begin, self._arguments, self._environ, self._out, self._log
        )

    @property
    def process(self) -> BaseProcess:
        """The supervisor."""
        assert self._process, "it was not started"
        return self._process

    @property
    def lines(self) -> list[Json]:
        """All ready lines."""
        with contextlib.suppress(OSError):
            *lines, _ = self._out.read_text().split("\n")
            return [said for line in lines if (said := json.loads(line)).get("ready") is True]
        return []

    @property
    def ready(self) -> Json:
        """The newest ready line."""
        return self.lines[-1]

    @property
    def nats_url(self) -> str:
        """Where clients connect; the same as long as the system runs."""
        return str(self.ready["nats_url"])

    @property
    def http_url(self) -> str:
        """Where HTTP is served."""
        return str(self.ready["http_url"])

    def http(self, path: str = "", **options: Any) -> httpx.AsyncClient:
        """A client of its query server, or of what is below a path of it."""
        return httpx.AsyncClient(base_url=self.http_url + path, trust_env=False, **options)

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return Path(str(self.ready["database_url"]).partition(":///")[2])

    def pid(self, name: str) -> int | None:
        """The process of this name, if it is a living descendant of the supervisor; found also before it said that it is ready."""
        if Path("/proc/self").exists():
            return parts_of(self.process.pid or 0).get(name)
        told = self.ready["pids"].get(name)
        return told if isinstance(told, int) else None

    def kill(self, name: str) -> bool:
        """Kill a part as the kernel would; False when it is not there to be killed just now."""
        return self.signal(name, SIGKILL)

    def signal(self, name: str, number: Signals) -> bool:
        """Signal a part; False when it is not there just now."""
        pid = self.pid(name)
        if pid is None:
            return False
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    async def command(self, *arguments: str, seconds: float = 60.0) -> "Command":
        """Run a command of `turnfold` on it."""
        named = {"TURNFOLD_DATA_DIR": str(self.data_dir)}
        return await command(*arguments, environ=named, seconds=seconds)

    async def stop(self, number: Signals = SIGTERM) -> int:
        """Its exit status after a stop signal."""
        if self.process.exitcode is None and self.process.pid:
            os.kill(self.process.pid, number)
        return await self.ended()

    async def ended(self) -> int:
        """Its exit status, once it ends by itself."""
        return await forked.ended(self.process, seconds=STOP_SECONDS)

    def words(self) -> str:
        """The end of what it and its parts wrote to standard error."""
        with contextlib.suppress(OSError):
            return self._log.read_text(errors="replace")[-4_000:]
        return ""


@asynccontextmanager
async def running_system(
    data_dir: Path,
    *,
    environ: Mapping[str, str] | None = None,
    nats_port: int = 0,
    http_port: int = 0,
    is_forked: bool = True,
) -> AsyncGenerator[System, None]:
    """A system that is ready, and does not outlive the test; a forked one loads no module again."""
    system = System(
        data_dir, environ=environ, nats_port=nats_port, http_port=http_port, is_forked=is_forked
    )
    try:
        await system.start()
        yield system
    finally:
        await end(system)


async def end(system: System) -> None:
    """Stop a system if it still runs, by force if need be."""
    try:
        await system.stop()
    except TimeoutError:
        system.process.kill()
        await system.ended()


@asynccontextmanager
async def client_of(
    system: System, *, timeout_seconds: float = 5.0, attempts: int = 60
) -> AsyncGenerator[Client, None]:
    """A client that outlasts restarts of the bus."""
    async with connect(
        system.nats_url, timeout_seconds=timeout_seconds, attempts=attempts, environ={}
    ) as client:
        yield client


async def wait_until(
    holds: Callable[[], object],
    *,
    seconds: float = 60.0,
    every: float = 0.05,
    told: Callable[[], object] | None = None,
) -> None:
    """Return when it holds; after `seconds` it fails with the last answer and what `told` says."""

    async def look() -> object:
        return holds()

    await eventually(look, seconds=seconds, every=every, told=told)


async def eventually(
    ask: Callable[[], Awaitable[Seen | None]],
    *,
    seconds: float = 60.0,
    every: float = 0.05,
    told: Callable[[], object] | None = None,
) -> Seen:
    """The first truthy answer; after `seconds` it fails with the last one and what `told` says."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        seen = await ask()
        if seen:
            return seen
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {seen!r} {told() if told else ''}")
        await asyncio.sleep(every)


class Parts:
    """A bus and a database, on which services run one by one as real processes."""

    def __init__(self, directory: Path, server: NatsServer, environ: Mapping[str, str]) -> None:
        self.server = server
        self.database = directory / "turnfold.db"
        self._log = directory / "parts.log"
        port = free_port()
        self.http_url = f"http://127.0.0.1:{port}"
        settings = {
            "TURNFOLD_NATS_URL": server.url,
            "TURNFOLD_DATABASE_URL": f"sqlite+aiosqlite:///{self.database}",
            "TURNFOLD_HTTP_PORT": str(port),
        }
        self.environ = clean_environ({**settings, **environ})

    def client(self, **options: Any) -> AbstractAsyncContextManager[Client]:
        """A client of an agent, without credentials."""
        return connect(self.server.url, environ={}, **options)

    def http(self, path: str = "", **options: Any) -> httpx.AsyncClient:
        """A client of the query server, or of what is below a path of it."""
        return httpx.AsyncClient(base_url=self.http_url + path, trust_env=False, **options)

    async def publish(self, subject: str, payload: bytes) -> int:
        """Publish an event as no client would, and return its sequence."""
        async with await nats.connect(self.server.url) as bus:
            return (await bus.jetstream().publish(subject, payload)).seq

    @property
    def database_url(self) -> str:
        """The database, as services are told of it."""
        return self.environ["TURNFOLD_DATABASE_URL"]

    async def rows(self, statement: str, *values: object) -> list[Mapping[str, Any]]:
        """Rows of the database, their columns by name."""
        engine = create_async_engine(self.database_url, poolclass=NullPool)
        async with engine.connect() as connection:
            found = await connection.exec_driver_sql(statement, values)
            return [dict(row) for row in found.mappings()]

    async def caught_up(self) -> invariants.StoreSnapshot:
        """Everything that the database holds once the whole stream is stored; it breaks no law."""
        bus = await nats.connect(self.server.url)
        last = (await bus.jetstream().stream_info(EVENTS_STREAM)).state.last_seq
        await bus.close()

        async def is_stored() -> bool:
            return await self.rows(
                "SELECT max(last_seq) AS last FROM ingested_ranges WHERE first_seq = 1"
            ) == [{"last": last}]

        await eventually(is_stored, seconds=60, told=self.words)
        seen = await self.seen()
        assert invariants.faults(seen) == []
        return seen

    async def settled(self) -> invariants.StoreSnapshot:
        """The same once everything is also summarised and told of."""
        open_rows = "SELECT 1 FROM compactions WHERE status IN ('pending', 'running') UNION ALL SELECT 1 FROM outbox"

        async def is_done() -> bool:
            return not await self.rows(open_rows)

        await self.caught_up()
        await eventually(is_done, seconds=60, told=self.words)
        return await self.caught_up()

    async def seen(self) -> invariants.StoreSnapshot:
        """Everything that the database holds."""
        database = Database(self.database_url, writes=False)
        try:
            return await invariants.seen_in_database(database)
        finally:
            await database.close()

    async def migrate(self) -> None:
        """Make tables and streams."""
        done = await command("migrate", environ=self.environ)
        assert done.status == 0, done.err

    @asynccontextmanager
    async def running(
        self, name: str, *, is_awaited: bool = True, environ: Mapping[str, str] | None = None
    ) -> AsyncGenerator["Service", None]:
        """A service, from when it is ready (or from its start on) until it has stopped."""
        service = await Service.begun(
            name, self.environ | {ANNOUNCE: "1"} | dict(environ or {}), self._log
        )
        try:
            if is_awaited:
                await wait_until(
                    lambda: service.is_ready or not service.is_alive,
                    seconds=START_SECONDS,
                    told=self.words,
                )
                assert service.is_ready, self.words()
            yield service
        finally:
            await service.stop()

    def words(self) -> str:
        """The end of what the services wrote to standard error."""
        with contextlib.suppress(OSError):
            return self._log.read_text(errors="replace")[-4_000:]
        return ""


class Service:
    """One running service, forked from a process that has loaded its modules: a start costs little."""

    def __init__(self, name: str, process: BaseProcess, stdin: Connection, out: Path) -> None:
        assert process.pid
        self.name = name
        self.pid = process.pid
        self._process = process
        self._stdin = stdin
        self._out = out

    @classmethod
    async def begun(cls, name: str, environ: Mapping[str, str], log: Path) -> "Service":
        """One with this environment alone, whose log is appended to a file."""
        out = log.with_name(f"{name}-{uuid4().hex}.out")
        stdin, ours = Pipe(duplex=False)
        with stdin:
            process = await asyncio.to_thread(
                forked.begun, forked.service, name, environ, stdin, out, log
            )
        return cls(name, process, ours, out)

    @property
    def is_ready(self) -> bool:
        """Whether it has announced that it is."""
        return self._out.exists() and '"ready": true' in self._out.read_text()

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.exitcode is None

    def signal(self, number: Signals) -> None:
        """Signal it."""
        if self.is_alive:
            os.kill(self.pid, number)

    async def ended(self, *, seconds: float = STOP_SECONDS) -> int:
        """Its exit status, once it ends."""
        return await forked.ended(self._process, seconds=seconds)

    async def stop(self) -> int:
        """Its exit status after a stop signal, by force if need be."""
        self.signal(SIGTERM)
        try:
            return await self.ended()
        except TimeoutError:
            return await self.ended()
        finally:
            self._stdin.close()


_migrated: list[tempfile.TemporaryDirectory[str]] = []
"""A bus and a database as `turnfold migrate` leaves them, made once for all tests of a run."""
_templates: dict[Postgres, str] = {}
"""And such a database on a server."""


@asynccontextmanager
async def running_parts(
    directory: Path, *, environ: Mapping[str, str] | None = None, postgres: Postgres | None = None
) -> AsyncGenerator[Parts, None]:
    """A bus with its streams and a database with its tables, a file or one of a server; no service yet."""
    if not _migrated:
        template = tempfile.TemporaryDirectory()
        with nats_server(Path(template.name)) as server:
            await Parts(Path(template.name), server, {}).migrate()
        _migrated.append(template)
    shutil.copytree(
        Path(_migrated[0].name),
        directory,
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("ports", "*.log"),
    )
    with nats_server(directory) as server:
        if postgres is None:
            yield Parts(directory, server, environ or {})
            return
        name = await postgres.create_database(like=await _migrated_on(postgres, directory, server))
        try:
            yield Parts(
                directory,
                server,
                {"TURNFOLD_DATABASE_URL": postgres.url(name)} | dict(environ or {}),
            )
        finally:
            await postgres.drop_database(name)


@asynccontextmanager
async def serving_parts(
    directory: Path, *, environ: Mapping[str, str] | None = None, postgres: Postgres | None = None
) -> AsyncGenerator[tuple[Parts, Client], None]:
    """The same with a worker and a query server, and a client of an agent."""
    async with (
        running_parts(directory, environ=environ, postgres=postgres) as parts,
        parts.running("worker"),
        parts.running("query"),
        parts.client() as client,
    ):
        yield parts, client


async def _migrated_on(postgres: Postgres, directory: Path, server: NatsServer) -> str:
    """The database of a server that others are made like; every bus is a copy of one, so it belongs to each."""
    if postgres not in _templates:
        name = await postgres.create_database()
        await Parts(directory, server, {"TURNFOLD_DATABASE_URL": postgres.url(name)}).migrate()
        _templates[postgres] = name
    return _templates[postgres]


@dataclass(frozen=True, slots=True)
class Command:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def rows(self) -> list[Any]:
        """The JSON lines it printed."""
        return [json.loads(line) for line in self.out.splitlines()]


async def command(
    *arguments: str, environ: Mapping[str, str] | None = None, seconds: float = 60.0
) -> Command:
    """Run `turnfold` with these arguments."""
    with tempfile.TemporaryDirectory() as made:
        out, err = Path(made) / "out", Path(made) / "err"
        process = await asyncio.to_thread(
            forked.begun, forked.command, arguments, clean_environ(environ), out, err
        )
        return Command(
            await forked.ended(process, seconds=seconds), out.read_text(), err.read_text()
        )


def rows(database: Path, statement: str, *values: object) -> list[sqlite3.Row]:
    """Rows of a SQLite database that another process writes, their columns by name."""
    with contextlib.closing(
        sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)
    ) as connection:
        connection.row_factory = sqlite3.Row
        return connection.execute(statement, values).fetchall()


@dataclass(frozen=True, slots=True)
class Streamed:
    """One entry of a stream."""

    seq: int
    subject: str
    payload: bytes


async def streamed(url: str, stream: str = EVENTS_STREAM) -> list[Streamed]:
    """Everything that a stream holds, in order."""
    bus = await nats.connect(url)
    try:
        jetstream = bus.jetstream(timeout=30)
        count = (await jetstream.stream_info(stream)).state.messages
        found: list[Streamed] = []
        if not count:
            return found
        subscription = await _following(bus, stream)
        while len(found) < count:
            message = await subscription.next_msg(timeout=30)
            found.append(Streamed(message.metadata.sequence.stream, message.subject, message.data))
        await subscription.unsubscribe()
        return found
    finally:
        await bus.close()


async def _following(bus: NatsClient, stream: str) -> Subscription:
    """Read a stream from its start. A cluster loses the request if it elects a leader meanwhile."""
    for _ in range(FOLLOW_ATTEMPTS):
        with contextlib.suppress(nats.errors.TimeoutError):
            return await bus.jetstream(timeout=5).subscribe(
                "", stream=stream, ordered_consumer=True, deliver_policy=DeliverPolicy.ALL
            )
    raise TimeoutError(f"no consumer of {stream} in {FOLLOW_ATTEMPTS} attempts")


async def readiness(port: int) -> tuple[int, dict[str, Any]]:
    """The answer of a worker about itself; status 0 while nobody answers."""
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=10
    ) as http:
        try:
            answer = await http.get("/readyz")
        except httpx.TransportError:
            return 0, {"missing": []}
        return answer.status_code, answer.json()
