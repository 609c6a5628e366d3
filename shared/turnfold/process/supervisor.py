"""`turnfold up`: run nats-server and the services as child processes until a signal."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from turnfold.errors import StartError
from turnfold.process.child_process import TURNFOLD
from turnfold.process.directory import DataDirectory
from turnfold.process.forked_process import ForkClient, can_fork
from turnfold.process.forking import Copies, ForkServer, until_signal
from turnfold.process.nats_server import (
    HOST,
    find_server,
    log_file,
    log_tail,
    until_answering,
    write_config,
)
from turnfold.process.ready import ANNOUNCE
from turnfold.process.supervised_process import (
    ChildHandle,
    ProcessSpec,
    SupervisedProcess,
    execute,
    fork,
    reap_others,
)
from turnfold.process.tasks import at_most, cancel_and_wait, stop_signals, unless
from turnfold.process.tcp_ports import reserved_port
from turnfold.settings import http_url
from turnfold.settings.urls import absolute_database_url, escaped_path

READY_SECONDS = 120.0
SERVICE_STOP_SECONDS = 10.0
NATS_STOP_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
STEADY_SECONDS = 30.0
"""A child that ran for so long is restarted without a longer delay."""

COMMANDS: Mapping[str, Sequence[str]] = {
    name: (*TURNFOLD, name) for name in ("migrate", "worker", "query")
}
"""The command lines of the services; `migrate` runs once."""
PROXY: Sequence[str] = (*TURNFOLD, "proxy")


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemConfig:
    """The services to run, their addresses and their data. Port 0 stands for any free port.

    Without `database_url`, the database is a SQLite file in the data directory. A proxy runs only
    with a `proxy_upstream`. With `copies`, our services are copies of this process.
    """

    data_dir: Path
    nats_port: int = 4222
    http_host: str = "127.0.0.1"
    http_port: int = 8080
    worker_http_port: int = 0
    is_http_encrypted: bool = False
    proxy_upstream: str | None = None
    proxy_host: str = HOST
    proxy_port: int = 8090
    database_url: str | None = None
    nats_server: Path | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, Sequence[str]] = field(default_factory=lambda: COMMANDS)
    copies: Copies | None = None


async def run(
    plan: SystemConfig,
    *,
    on_start: Callable[[], None],
    on_ready: Callable[[Mapping[str, Any]], None],
    log: Callable[..., None],
) -> None:
    """Run the whole system until SIGTERM, SIGINT or, unless `nohup` ignores it, SIGHUP.

    `on_start` is called once, when the directory and the ports are free. `on_ready` receives each
    new ready line, and `log` the name and the fields of an event.

    Raises:
        StartError: the directory or a port is in use, or a process cannot start.
    """
    directory = DataDirectory.claim(plan.data_dir)
    with contextlib.ExitStack() as stack:
        # The lock is released last: the ready line of a later system must not be deleted.
        stack.callback(directory.close)
        directory.forget_ready()
        stack.callback(directory.forget_ready)
        nats_port = stack.enter_context(reserved_port(HOST, plan.nats_port, option="--nats-port"))
        http_port = stack.enter_context(
            reserved_port(plan.http_host, plan.http_port, option="--http-port")
        )
        worker_port = stack.enter_context(
            reserved_port(HOST, plan.worker_http_port, option="TURNFOLD_WORKER_HTTP_PORT")
        )
        proxy_port = None
        if plan.proxy_upstream is not None:
            proxy_port = stack.enter_context(
                reserved_port(plan.proxy_host, plan.proxy_port, option="TURNFOLD_PROXY_PORT")
            )
        ports = _Ports(nats_port, http_port, worker_port, proxy_port)
        system = _System(plan, directory, ports, on_ready=on_ready, log=log)
        await system.run(on_start)


class _Ports(NamedTuple):
    """The ports of the processes."""

    nats: int
    http: int
    worker: int
    proxy: int | None


class _System:
    """The child processes, which of them are ready, and the last ready line."""

    def __init__(
        self,
        plan: SystemConfig,
        directory: DataDirectory,
        ports: _Ports,
        *,
        on_ready: Callable[[Mapping[str, Any]], None],
        log: Callable[..., None],
    ) -> None:
        self._directory = directory
        self._log = log
        self._nats_directory = directory.path / "nats"
        self._nats_port = ports.nats
        self._on_ready = on_ready
        self._children: dict[str, SupervisedProcess] = {}
        self._ready: dict[str, Mapping[str, int]] = {}
        self._last_pids: Mapping[str, int] = {}
        self._failure: Exception | None = None
        self._stop = asyncio.Event()
        self._stop_signals = stop_signals()
        self._is_ready = asyncio.Event()
        self._copies = plan.copies if can_fork() else None
        self._fork_client: ForkClient | None = None
        self._has_forked = asyncio.Event()
        self._http_host = plan.http_host
        self._urls = {
            "nats_url": f"nats://{HOST}:{ports.nats}",
            "http_url": http_url(plan.http_host, ports.http, is_encrypted=plan.is_http_encrypted),
            "worker_url": http_url(HOST, ports.worker),
            "database_url": absolute_database_url(
                plan.database_url
                or f"sqlite+aiosqlite:///{escaped_path(directory.path)}/turnfold.db"
            ),
        }
        self._environ = dict(plan.environ) | {
            "TURNFOLD_NATS_URL": self._urls["nats_url"],
            # Credentials, also those of a file, are for other servers.
            "TURNFOLD_NATS_ANONYMOUS": "1",
            "TURNFOLD_DATABASE_URL": self._urls["database_url"],
            "TURNFOLD_DATA_DIR": str(directory.path),
            "TURNFOLD_HTTP_HOST": plan.http_host,
            "TURNFOLD_HTTP_PORT": str(ports.http),
            "TURNFOLD_WORKER_HTTP_HOST": HOST,
            "TURNFOLD_WORKER_HTTP_PORT": str(ports.worker),
            ANNOUNCE: "1",
        }
        commands = dict(plan.commands)
        if plan.proxy_upstream is not None and ports.proxy is not None:
            self._urls["proxy_url"] = http_url(plan.proxy_host, ports.proxy)
            self._environ["TURNFOLD_PROXY_UPSTREAM"] = plan.proxy_upstream
            self._environ["TURNFOLD_PROXY_HOST"] = plan.proxy_host
            self._environ["TURNFOLD_PROXY_PORT"] = str(ports.proxy)
            commands.setdefault("proxy", PROXY)
        services = [self._service(name, command) for name, command in commands.items()]
        self._parts = (self._nats_process(plan.nats_server, directory.lock_fd), *services)

    def _service(self, name: str, command: Sequence[str]) -> ProcessSpec:
        is_forked = self._copies is not None and tuple(command[:-1]) == TURNFOLD
        return ProcessSpec(name, command, runs_once=name == "migrate", is_forked=is_forked)

    def _nats_process(self, nats_server: Path | None, lock_fd: int) -> ProcessSpec:
        config = write_config(self._nats_directory, port=self._nats_port)
        return ProcessSpec(
            "nats",
            (str(find_server(nats_server)), "-c", str(config)),
            announces=False,
            # The server holds the lock as well, so that no second one opens the same streams.
            inherits=(lock_fd,),
            errors=log_file(self._nats_directory),
            orphaned_by=signal.SIGTERM,
        )

    async def run(self, on_start: Callable[[], None]) -> None:
        """Start all processes, and restart them until a stop signal."""
        loop = asyncio.get_running_loop()
        # asyncio would start a thread per child to wait for it (before Python 3.12).
        loop.add_signal_handler(signal.SIGCHLD, self._look)
        for number in self._stop_signals:
            loop.add_signal_handler(number, self._on_stop_signal)
        on_start()
        keepers = [self._guarded(part) for part in self._parts if not part.is_forked]
        loading = asyncio.create_task(self._fork_services(keepers), name="copies")
        try:
            await self._until_stopped()
        finally:
            self._stop.set()
            await self._end()
            await cancel_and_wait(loading)
            await asyncio.gather(*keepers)
        if self._failure:
            raise self._failure

    def _guarded(self, part: ProcessSpec) -> asyncio.Task[None]:
        return asyncio.create_task(self._guard(part), name=part.name)

    async def _fork_services(self, keepers: list[asyncio.Task[None]]) -> None:
        """Load the services, and start each one as soon as it is loaded; fork until cancelled."""
        if self._copies is None:
            return
        parts = {part.name: part for part in self._parts if part.is_forked}
        server = ForkServer(self._copies.main)
        with contextlib.closing(server):
            server.start()
            self._fork_client = ForkClient(server.requester)
            try:
                for name in until_signal(self._copies.load(), self._stop_signals):
                    if (part := parts.pop(name, None)) is not None:
                        self._has_forked.clear()
                        keepers.append(self._guarded(part))
                        # Loading holds up the event loop, and the fork with it.
                        await self._has_forked.wait()
                    if self._stop.is_set():
                        break
            except Exception:  # noqa: BLE001 - the services fail as well, and say why
                self._fork_client = None
            keepers += map(self._guarded, parts.values())
            # Services may request children until they have stopped.
            await asyncio.get_running_loop().create_future()

    async def _until_stopped(self) -> None:
        try:
            async with asyncio.timeout(READY_SECONDS):
                await unless(self._stop, self._is_ready.wait())
        except TimeoutError as error:
            missing = sorted({part.name for part in self._parts} - set(self._ready))
            raise StartError(
                f"{', '.join(missing)} not ready after {READY_SECONDS:g} s; see the log above"
            ) from error
        await self._stop.wait()

    async def _guard(self, part: ProcessSpec) -> None:
        """Keep a process running, and stop the system if it cannot start."""
        try:
            await self._keep(part)
        except Exception as error:  # noqa: BLE001 - it is raised when all children have ended
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._stop.set()

    async def _keep(self, part: ProcessSpec) -> None:
        """Restart a process with growing pauses until the system stops."""
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE_SECONDS
        while not self._stop.is_set():
            began = loop.time()
            try:
                child = await self._start(part)
            except StartError as error:
                # Once it was ready, the machine lacks something for now, such as memory.
                if not self._is_ready.is_set():
                    raise
                self._log("child.not_started", name=part.name, error=str(error))
            else:
                status = await self._until_ended(part, child)
                if self._stop.is_set() or (part.runs_once and status == 0):
                    return
                # It ran for long enough: it does not crash in a loop.
                if loop.time() - began > STEADY_SECONDS:
                    pause = FIRST_PAUSE_SECONDS
                self._log(
                    "child.ended", name=part.name, pid=child.pid, status=status, pause_seconds=pause
                )
            await at_most(pause, self._stop.wait())
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _until_ended(self, part: ProcessSpec, child: SupervisedProcess) -> int:
        """Return the exit status of a process; raise `StartError` if it cannot start."""
        greeting = None if part.announces else asyncio.create_task(self._greet(part, child))
        status = await child.ended
        if greeting:
            greeting.cancel()
        self._ready.pop(part.name, None)
        if part.runs_once and status == 0:
            self._record_ready(part, {})
        is_starting = part.runs_once or not self._is_ready.is_set()
        # A positive status before the system was ready is a wrong setting: a restart would not
        # help. A signal has a negative one.
        if status > 0 and is_starting and not self._stop.is_set():
            raise StartError(self._cannot_start(part, status))
        return status

    async def _start(self, part: ProcessSpec) -> SupervisedProcess:
        def on_ready(pids: Mapping[str, int]) -> None:
            self._record_ready(part, {part.name: child.pid, **pids})

        try:
            child = SupervisedProcess(part, await self._process(part), on_ready)
        except OSError as error:
            raise StartError(f"{part.command[0]} cannot be run ({error.strerror})") from error
        # Before the event loop runs again: `reap_others` could reap an unregistered copy.
        self._children[part.name] = child
        if part.inherits:
            # On a full disk, only the message of a second start lacks the new id.
            with contextlib.suppress(StartError):
                self._directory.sign({"up": os.getpid(), part.name: child.pid})
        if part.is_forked:
            self._has_forked.set()
        if self._stop.is_set():
            # The stop signal came during the fork, after the other processes had been told.
            child.signal(signal.SIGKILL)
        return child

    async def _process(self, part: ProcessSpec) -> ChildHandle:
        """Copy this process, or execute the command where that is not possible."""
        if part.is_forked and self._fork_client is not None:
            try:
                return await fork(part, self._environ, self._fork_client)
            except OSError as error:
                self._log("child.not_forked", name=part.name, error=str(error))
        return execute(part, self._environ)

    async def _greet(self, part: ProcessSpec, child: SupervisedProcess) -> None:
        await until_answering(self._nats_port)
        if not child.ended.done():
            self._record_ready(part, {part.name: child.pid})

    def _record_ready(self, part: ProcessSpec, pids: Mapping[str, int]) -> None:
        """Record that a process is ready."""
        self._ready[part.name] = pids
        self._report()

    def _report(self) -> None:
        """Report a new ready line once all processes are ready."""
        if self._stop.is_set() or len(self._ready) < len(self._parts):
            return
        merged = {name: pid for spec in self._parts for name, pid in self._ready[spec.name].items()}
        # A process that announces itself again has not changed anything for commands.
        if merged == self._last_pids:
            return
        line = {"ready": True, **self._urls, "http_host": self._http_host, "pids": merged}
        # First: a reader of the ready line may run a command at once, which reads this file.
        try:
            self._directory.write_ready(line)
        except StartError as error:
            if not self._is_ready.is_set():
                self._fail(error)
            else:
                self._log("ready_line.not_written", error=str(error))
                asyncio.get_running_loop().call_later(LONGEST_PAUSE_SECONDS, self._report)
            return
        self._last_pids = merged
        self._is_ready.set()
        self._on_ready(line)

    def _cannot_start(self, part: ProcessSpec, status: int) -> str:
        if part.announces:
            return f"{part.name} could not start (exit status {status}); see its message above"
        return (
            f"nats-server could not start (exit status {status}): {log_tail(self._nats_directory)}"
        )

    def _look(self) -> None:
        for child in list(self._children.values()):
            child.look()
        reap_others({child.pid for child in self._children.values() if not child.ended.done()})

    def _on_stop_signal(self) -> None:
        """Stop in order on the first signal, and kill all processes on the second."""
        if self._stop.is_set():
            for child in self._children.values():
                child.signal(signal.SIGKILL)
        self._stop.set()

    async def _end(self) -> None:
        """Stop the services while nats-server runs, then nats-server."""
        services = [child for child in self._children.values() if child.part.announces]
        await asyncio.gather(*(child.stop(seconds=SERVICE_STOP_SECONDS) for child in services))
        # Last, because services acknowledge their last batches and close their connections.
        rest = [child for child in self._children.values() if not child.part.announces]
        await asyncio.gather(*(child.stop(seconds=NATS_STOP_SECONDS) for child in rest))
