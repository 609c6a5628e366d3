"""A system of real processes, each restarted when it exits, into which faults are injected."""

import asyncio
import contextlib
import json
import os
import resource
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, pairwise
from pathlib import Path
from signal import SIGCONT, SIGINT, SIGKILL, SIGQUIT, SIGSTOP, SIGTERM
from typing import Any

import asyncpg

from tests import postgres
from tests.chaos.fault_plan import LEASE_SECONDS, Fault, Kind, Topology
from tests.environment import clean_environ
from tests.ports import free_port
from tests.process_table import arguments_of, children_of, parts_of, state_of
from tests.running_system import TURNFOLD, command, eventually, wait_until
from turnfold.process.nats_server import find_server, until_answering
from turnfold.process.ready import die_with_parent

WORKERS = 2
QUERIES = 2
NODES = 3
REVIVED_AFTER_SECONDS = 0.3
START_SECONDS = 90.0
STOP_SECONDS = 40.0
FULL_BYTES = 64 * 1024
"""With a full disk no file grows beyond this."""
BACKENDS = {"backend": b"postgres: turnfold", "checkpointer": b"postgres: checkpointer"}
"""How processes of PostgreSQL call themselves: one that serves a client of ours, and one that writes the data files."""
AWAY = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""What the driver of PostgreSQL says when its server ends."""
DATABASE = "chaos"
NODE = """
server_name: "n{number}"
listen: "127.0.0.1:{port}"
max_payload: 8MB
jetstream {{ store_dir: "{store}", sync_interval: always }}
{cluster}
"""
CLUSTER = 'cluster {{ name: "chaos", listen: "127.0.0.1:{port}", routes: [{routes}] }}'


class Part:
    """One process; who looks after it starts it again whenever it ends, in the next of its environments."""

    def __init__(
        self,
        role: str,
        arguments: Sequence[str],
        log: Path,
        *environs: Mapping[str, str],
        user: int | None = None,
    ) -> None:
        self.role = role
        self.statuses: list[int] = []
        self._arguments = arguments
        self._log = log
        self._environs = cycle(environs)
        self._user = user
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The process, while it runs."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def keep(self) -> None:
        """Start it, and again whenever it ended, until cancelled; then it is gone."""
        try:
            while True:
                with self._log.open("ab") as log:
                    self._process = await asyncio.create_subprocess_exec(
                        *self._arguments, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=next(self._environs), user=self._user,
                        cwd=self._log.parent, process_group=0, preexec_fn=die_with_parent(),
                    )  # fmt: skip
                self.statuses.append(await self._process.wait())
                await asyncio.sleep(REVIVED_AFTER_SECONDS)
        finally:
            await self._end()

    async def _end(self) -> None:
        """End it at once; a server of PostgreSQL is asked to, so that it takes its children along."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(SIGQUIT if self.role == "postgres" else SIGKILL)
            await self._process.wait()


@dataclass
class Installation:
    """The parts of one system in a directory, where to reach it, and what was done to it.

    With `yesterday`, what older code needs in its environment, versions take turns: each time a service is started it is of
    the other one. The first of a role begins with today's, the second with the older one.
    """

    directory: Path
    topology: Topology
    environ: Mapping[str, str] = field(default_factory=dict)
    yesterday: Mapping[str, str] | None = None
    parts: list[Part] = field(default_factory=list)
    nats_urls: list[str] = field(default_factory=list)
    database_url: str = ""
    done: Counter[tuple[Kind, str]] = field(default_factory=Counter)
    missed: Counter[tuple[Kind, str]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    _spared: set[int] = field(default_factory=set)

    @property
    def kills(self) -> int:
        """How many processes were killed."""
        return sum(times for (kind, _), times in self.done.items() if kind is Kind.KILL)

    @property
    def log(self) -> Path:
        """What all parts had to say."""
        return self.directory / "parts.log"

    def words(self) -> str:
        """The end of that."""
        return self.log.read_text(errors="replace")[-4_000:] if self.log.exists() else ""

    def ended_by_themselves(self) -> dict[str, int]:
        """How often a service ended though nobody had asked or killed it, by its name and status."""
        ended = Counter(
            f"{part.role} {status}"
            for part in self.parts
            for status in part.statuses
            if part.role in ("worker", "query", "up")
        )
        return {
            name: times
            for name, times in ended.items()
            if not name.endswith((" 0", f" {-SIGKILL}", f" {-SIGTERM}"))
        }

    def crashes(self) -> dict[str, int]:
        """What services logged as exceptions, or ended of, and how often."""
        told = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        ends = [
            line
            for before, line in pairwise(told)
            if (before.startswith("  ") and line[:1].isalpha()) or line.startswith("turnfold: ")
        ]
        logged = [one for line in told if "at" in (one := _said(line))]
        # With the innermost places, or an exception of the standard library names no cause.
        crashed = (f"{one['event']}: {one['error']} at {one['at'][-4:]}" for one in logged)
        return dict(Counter([*ends, *crashed]))

    # --- what there is

    def pids(self, role: str) -> list[int]:
        """The processes of a role that run just now."""
        if any(part.role == role for part in self.parts):
            return self._running(role)
        if role in BACKENDS:
            children = [pid for server in self._running("postgres") for pid in children_of(server)]
            return [
                pid for pid in children if b" ".join(arguments_of(pid)).startswith(BACKENDS[role])
            ]
        above = self._running("up") or self._running("worker")
        return [found[role] for pid in above if role in (found := parts_of(pid))]

    def _running(self, role: str) -> list[int]:
        return [part.pid for part in self.parts if part.role == role and part.pid]

    def make(self) -> None:
        """Decide what runs where; nothing runs yet."""
        if self.topology is Topology.SQLITE:
            ports = {"--nats-port": free_port(), "--http-port": free_port()}
            arguments = [*TURNFOLD, "up", "--json", "--data-dir", str(self.directory / "data")]
            self.nats_urls = [f"nats://127.0.0.1:{ports['--nats-port']}"]
            self.database_url = f"sqlite+aiosqlite:///{self.directory / 'data' / 'turnfold.db'}"
            self._add("up", [*arguments, *(str(word) for pair in ports.items() for word in pair)])
            return
        self._add_nodes(NODES if self.topology is Topology.CLUSTER else 1)
        # PostgreSQL runs as a user of its own where the driver is root.
        self.directory.chmod(0o755)
        home = self.directory / "postgres"
        home.mkdir()
        installed = postgres.install(home)
        self.database_url = postgres.url_of(installed.port, DATABASE)
        log = home / "postgres.log"
        # What is committed is on the disk, as where somebody relies on it.
        self.parts.append(
            Part(
                "postgres",
                installed.command({"fsync": "on"}),
                log,
                postgres.environment(),
                user=installed.user,
            )
        )
        for _ in range(WORKERS):
            self._add("worker", [*TURNFOLD, "worker"])
        for _ in range(QUERIES):
            self._add("query", [*TURNFOLD, "query"], TURNFOLD_HTTP_PORT=str(free_port()))

    def _add_nodes(self, nodes: int) -> None:
        ports, routes = [free_port() for _ in range(nodes)], [free_port() for _ in range(nodes)]
        listed = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
        for number, (port, route) in enumerate(zip(ports, routes, strict=True)):
            config = self.directory / f"n{number}.conf"
            cluster = CLUSTER.format(port=route, routes=listed) if nodes > 1 else ""
            config.write_text(
                NODE.format(
                    number=number, port=port, store=self.directory / f"n{number}", cluster=cluster
                )
            )
            self._add("nats", [str(find_server()), "-c", str(config)])
        self.nats_urls = [f"nats://127.0.0.1:{port}" for port in ports]

    def _add(self, role: str, arguments: Sequence[str], **more: str) -> None:
        versions: list[Mapping[str, str]] = [{}] if self.yesterday is None else [{}, self.yesterday]
        if sum(part.role == role for part in self.parts) % 2:
            versions.reverse()
        self.parts.append(
            Part(
                role,
                arguments,
                self.log,
                *(self.settings() | more | dict(version) for version in versions),
            )
        )

    def settings(self) -> dict[str, str]:
        """The environment of every process of ours."""
        return clean_environ() | {
            "TURNFOLD_NATS_URL": ",".join(self.nats_urls),
            "TURNFOLD_NATS_REPLICAS": str(len(self.nats_urls) or 1),
            "TURNFOLD_DATABASE_URL": self.database_url,
            "TURNFOLD_SUMMARY_LEASE_SECONDS": str(LEASE_SECONDS),
            "TURNFOLD_LOG_LEVEL": "warning",
            **self.environ,
        }  # fmt: skip

    async def migrate(self) -> None:
        """Make tables and streams, as soon as there is somebody to make them."""
        for url in self.nats_urls:
            await until_answering(int(url.rpartition(":")[2]))
        if self.topology is Topology.SQLITE:
            return

        async def is_made() -> bool:
            with contextlib.suppress(*AWAY):
                connection = await self._connected("postgres")
                try:
                    await connection.execute(f"CREATE DATABASE {DATABASE}")
                except asyncpg.DuplicateDatabaseError:
                    return True
                finally:
                    await connection.close()
                return True
            return False

        async def is_migrated() -> bool:
            return (await command("migrate", environ=self.settings())).status == 0

        await eventually(is_made, seconds=START_SECONDS, told=self.words)
        await eventually(is_migrated, seconds=START_SECONDS, told=self.words)

    # --- what is done to it

    async def strike(self, fault: Fault) -> None:
        """Do one thing, and count it if it really happened."""
        if fault.role == "database":
            has_happened = await self._hold(fault.seconds)
        else:
            pids = [
                pid
                for pid in self.pids(fault.role)
                if fault.kind is Kind.KILL or pid not in self._spared
            ]
            has_happened = bool(pids) and await self._do(fault, pids[int(fault.which * len(pids))])
        (self.done if has_happened else self.missed)[fault.kind, fault.role] += 1

    async def _do(self, fault: Fault, pid: int) -> bool:
        try:
            match fault.kind:
                case Kind.KILL:
                    os.kill(pid, SIGKILL)
                    await wait_until(lambda: not state_of(pid), every=0.005)
                    return True
                case Kind.STOP:
                    return await self._stop(fault.role, pid)
                case Kind.FREEZE:
                    return await self._freeze(pid, fault.seconds)
                case _:
                    return await self._fill(fault.role, pid, fault.seconds)
        except ProcessLookupError:
            return False

    async def _stop(self, role: str, pid: int) -> bool:
        """Ask it to end; one of ours that does not is a fault of its own. PostgreSQL may not, in the midst of a recovery."""
        os.kill(pid, _gentle(role))
        self._spared.add(pid)
        try:
            await wait_until(lambda: not state_of(pid), seconds=STOP_SECONDS)
        except AssertionError:
            if role != "postgres":
                self.faults.append(f"{role} did not stop within {STOP_SECONDS:g} s")
            os.kill(pid, SIGKILL)
        finally:
            self._spared.discard(pid)
        return True

    async def _freeze(self, pid: int, seconds: float) -> bool:
        """Stop it in its tracks for a while; False when it was gone before it stopped."""
        self._spared.add(pid)
        try:
            os.kill(pid, SIGSTOP)
            await wait_until(lambda: (state_of(pid) or "T")[0] == "T", every=0.005)
            has_stopped = bool(state_of(pid))
            await asyncio.sleep(seconds)
            os.kill(pid, SIGCONT)
        finally:
            self._spared.discard(pid)
        return has_stopped

    async def _fill(self, role: str, pid: int, seconds: float) -> bool:
        """Let no file grow for a while: what is written fails as on a full disk."""
        limit_files(pid, FULL_BYTES)
        await asyncio.sleep(seconds)
        if role == "nats":
            # A stream that could not be written takes nothing more until its server is started again.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, SIGTERM)
        if state_of(pid):
            limit_files(pid, resource.RLIM_INFINITY)
        return True

    async def _hold(self, seconds: float) -> bool:
        """Keep everybody from writing for a while, as a disk does that takes its time."""
        if self.topology is Topology.SQLITE:
            return await asyncio.to_thread(_held, self.directory / "data" / "turnfold.db", seconds)
        with contextlib.suppress(*AWAY, TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                connection = await self._connected(DATABASE)
                try:
                    async with connection.transaction():
                        await connection.execute("LOCK TABLE messages IN SHARE ROW EXCLUSIVE MODE")
                        await asyncio.sleep(seconds)
                    return True
                finally:
                    connection.terminate()
        return False

    async def _connected(self, database: str) -> asyncpg.Connection:
        return await asyncpg.connect(
            self.database_url.replace("+asyncpg", "").replace(f"/{DATABASE}", f"/{database}"),
            timeout=5,
        )


def _said(line: str) -> Mapping[str, Any]:
    """The fields of a line of a log; none where it is something else, or its writer was killed before its end."""
    with contextlib.suppress(ValueError):
        said = json.loads(line)
        return said if isinstance(said, dict) else {}
    return {}


def _gentle(role: str) -> int:
    """The signal that asks a part to end; PostgreSQL would wait for its clients after the usual one."""
    return SIGINT if role == "postgres" else SIGTERM


def limit_files(pid: int, most: int) -> None:
    """Bound the files that a running process may write. Only its own user may, and PostgreSQL has one of its own."""
    limits = (most, resource.RLIM_INFINITY)
    try:
        subprocess.run(
            ["true"],
            user=Path(f"/proc/{pid}").stat().st_uid,
            check=True,
            preexec_fn=partial(resource.prlimit, pid, resource.RLIMIT_FSIZE, limits),
        )
    except (FileNotFoundError, subprocess.SubprocessError) as error:
        raise ProcessLookupError(pid) from error


def _held(database: Path, seconds: float) -> bool:
    """Hold the one lock of those who write to SQLite."""
    with contextlib.closing(
        sqlite3.connect(database, isolation_level=None, timeout=5)
    ) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        time.sleep(seconds)
        connection.execute("ROLLBACK")
    return True


@asynccontextmanager
async def running(
    directory: Path,
    topology: Topology,
    environ: Mapping[str, str],
    yesterday: Mapping[str, str] | None = None,
) -> AsyncGenerator[Installation]:
    """A system with its tables and streams, whose services may still be starting; nothing of it outlives the block."""
    installation = Installation(directory, topology, environ, yesterday)
    await asyncio.to_thread(installation.make)
    keeping: list[asyncio.Task[None]] = []
    try:
        services = [part for part in installation.parts if part.role in ("worker", "query")]
        keeping += [
            asyncio.create_task(part.keep()) for part in installation.parts if part not in services
        ]
        await installation.migrate()
        keeping += [asyncio.create_task(part.keep()) for part in services]
        yield installation
    finally:
        for task in reversed(keeping):
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)
