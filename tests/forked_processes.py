"""Processes for tests to race, to run and to kill, each forked from one that has loaded what they need and done nothing yet."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import TextIOWrapper
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from signal import SIG_DFL, SIGHUP, SIGKILL, signal
from types import ModuleType, SimpleNamespace
from typing import Any, Self, cast

import turnfold.cli
from tests.fork_server import PROCESSES
from turnfold.models.child import run as run_summarizer
from turnfold.process import child_process
from turnfold.process.ready import ANNOUNCE, die_with_parent

PATIENCE_SECONDS = 100.0
"""How long a process may take: on a busy machine one that starts a summariser waits a minute for it."""


def begun(work: Callable[..., None], *given: Any) -> BaseProcess:
    """A process that does this work."""
    process = PROCESSES.Process(target=work, args=given)
    process.start()
    return process


async def ended(process: BaseProcess, *, seconds: float = PATIENCE_SECONDS) -> int:
    """Its exit status, once it has one: 0 when it did its work, below 0 when a signal killed it."""
    await asyncio.to_thread(process.join, seconds)
    if process.exitcode is None:
        process.kill()
        raise TimeoutError(f"process {process.pid} did not end within {seconds:g} s")
    return process.exitcode


def command(arguments: Sequence[str], environ: Mapping[str, str], out: Path, err: Path) -> None:
    """Be `turnfold` with these arguments and this environment alone; its words go to files."""
    _become(environ, out, err, "wb")
    turnfold.cli.main(arguments)


def service(name: str, environ: Mapping[str, str], stdin: Connection, out: Path, err: Path) -> None:
    """Be a service in a process group of its own, until it is stopped or its input ends."""
    os.setpgid(0, 0)
    os.dup2(stdin.fileno(), 0)
    _become(environ, out, err, "ab")
    if "PYTHONPATH" in environ:
        # Another release than the one that is loaded here.
        os.execve(sys.executable, [sys.executable, "-P", "-m", "turnfold.cli", name], os.environ)
    _serve(turnfold.cli.main, [name])


def service_on_terminal(
    arguments: Sequence[str], environ: Mapping[str, str], stdin: Connection, terminal: Connection
) -> None:
    """Be a service with these arguments, whose words go to a terminal, until it is stopped."""
    os.dup2(stdin.fileno(), 0)
    screen = Path(f"/dev/fd/{terminal.fileno()}")
    _become(environ, screen, screen, "ab")
    for stream in (sys.stdout, sys.stderr):
        cast("TextIOWrapper", stream).reconfigure(line_buffering=True)
    _serve(turnfold.cli.main, arguments)


def system(
    arguments: Sequence[str], environ: Mapping[str, str], out: Path, err: Path, *, is_forked: bool
) -> None:
    """Be `turnfold up` in a process group of its own; `is_forked`: its services are forked from it."""
    os.setpgid(0, 0)
    _become(environ, out, err, "ab")
    if not is_forked or "PYTHONPATH" in environ:
        os.execve(sys.executable, [*child_process.TURNFOLD, *arguments], os.environ)
    main = turnfold.cli.main
    # The services of the system are copies of it, and begin with this.
    setattr(turnfold.cli, "main", lambda words: _serve(main, words))  # noqa: B010 - the types say it is constant
    main(arguments)


def _serve(main: Callable[[Sequence[str]], None], arguments: Sequence[str]) -> None:
    spare = Spare() if arguments[0] == "worker" else None
    _start_with(child_process, partial(_child_of_service, spare))
    main(arguments)


def _start_with(module: ModuleType, popen: Callable[..., Any]) -> None:
    """Have a module of ours start its children so, and no other."""
    vars(module)["subprocess"] = with_popen(popen)


def with_popen(popen: Callable[..., Any]) -> SimpleNamespace:
    """The module `subprocess` as one of ours is given it, to start its children so."""
    return SimpleNamespace(**vars(subprocess) | {"Popen": popen})


def forked_role(pid: int) -> str | None:
    """The role of a child that a service forked, such as `lane`; None for any other process."""
    with contextlib.suppress(OSError):
        mark, _, role = Path(f"/proc/{pid}/comm").read_text().strip().partition(":")
        return role if mark == "forked" and role else None
    return None


class ForkedChild:
    """A child forked from its service: to the service what `subprocess.Popen` is."""

    def __init__(self, role: str, work: Callable[[], None], bind: Callable[[], None]) -> None:
        self._status: int | None = None
        self._waiting = threading.Lock()
        self.pid = os.fork()
        if self.pid == 0:
            _be_child(role, bind, work)

    def poll(self) -> int | None:
        """The exit status, once there is one."""
        with self._waiting:
            if self._status is None:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
                self._status = os.waitstatus_to_exitcode(status) if ended else None
            return self._status

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, within a time."""
        end = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("forked", timeout or 0)
            time.sleep(0.005)
        return status

    def kill(self) -> None:
        """Kill it, if it runs."""
        self.send_signal(SIGKILL)

    def send_signal(self, number: int) -> None:
        """Signal it, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)


class Spare(ForkedChild):
    """The summarizer of a worker, forked before the worker has threads; it waits until it is wanted."""

    def __init__(self) -> None:
        self._orders, orders = socket.socketpair()
        self.is_free = True

        def wait_and_work() -> None:
            self._orders.close()
            words, found, _, _ = socket.recv_fds(orders, 1 << 20, 1)
            if not words:
                return
            os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, os.getppid()))
            asked = json.loads(words)
            os.environ.clear()
            os.environ.update(asked["environ"])
            _take_streams(found[0], os.open(os.devnull, os.O_WRONLY))
            _name_itself("model")
            run_summarizer(preload=asked["preload"])

        super().__init__("spare", wait_and_work, die_with_parent())
        orders.close()

    def begin(self, arguments: Sequence[str], stdin: int, environ: Mapping[str, str]) -> Self:
        """Be the summarizer from now on."""
        words = {"preload": "--preload" in arguments, "environ": dict(environ)}
        socket.send_fds(self._orders, [json.dumps(words).encode()], [stdin])
        self.is_free = False
        return self


class ForkedSummarizer:
    """The summarizer of a test, forked like a service: to the test what `subprocess.Popen` is."""

    def __init__(
        self, command: Sequence[str], *, stdin: int, env: Mapping[str, str], **_: Any
    ) -> None:
        with Connection(os.dup(stdin)) as connection:
            self._process = begun(_summarize, "--preload" in command, dict(env), connection)
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """The exit status, once there is one."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, within a time."""
        self._process.join(timeout)
        if (status := self.poll()) is None:
            raise subprocess.TimeoutExpired("forked", timeout or 0)
        return status

    def kill(self) -> None:
        """Kill it, if it runs."""
        self._process.kill()


def _summarize(preload: bool, environ: Mapping[str, str], stdin: Connection) -> None:
    os.environ.clear()
    os.environ.update(environ)
    os.dup2(stdin.fileno(), 0)
    stdin.close()
    run_summarizer(preload=preload)


def _child_of_service(
    spare: Spare | None,
    command: Sequence[str],
    *,
    stdin: int,
    env: Mapping[str, str],
    preexec_fn: Callable[[], None],
    **given: Any,
) -> Any:
    """Fork what a service starts first of each kind; others, beside threads, are executed."""

    def work() -> None:
        _take_streams(stdin, os.open(os.devnull, os.O_WRONLY))
        os.environ.pop(ANNOUNCE, None)
        turnfold.cli.main([command[-1]])

    if spare and spare.is_free and "turnfold.models" in command:
        return spare.begin(command, stdin, env)
    is_first = {thread.name for thread in threading.enumerate()} <= {"MainThread", "follow-parent"}
    if is_first and tuple(command) == tuple(child_process.command_of(command[-1])):
        return ForkedChild(command[-1], work, preexec_fn)
    return subprocess.Popen(command, stdin=stdin, env=env, preexec_fn=preexec_fn, **given)  # noqa: PLW1509 - as the service asks


def _be_child(role: str, bind: Callable[[], None], work: Callable[[], None]) -> None:
    """Be a child of a service, with nothing of it but its environment and its standard error."""
    status: Any = 1
    try:
        bind()
        _name_itself(role)
        work()
        status = 0
    except SystemExit as ended:
        status = ended.code or 0
    except BaseException:  # noqa: BLE001 - it is printed, and the process ends
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 1)


def _take_streams(stdin: int, stdout: int) -> None:
    """Keep two files as standard input and output, and the standard error."""
    os.dup2(stdin, 0)
    os.dup2(stdout, 1)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def _name_itself(role: str) -> None:
    """Have Linux tell what this process is, as it cannot change its command line."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(f"forked:{role}")


def _become(environ: Mapping[str, str], out: Path, err: Path, mode: str) -> None:
    # `nohup make test` ignores it, and so would this process.
    signal(SIGHUP, SIG_DFL)
    os.environ.clear()
    os.environ.update(environ)
    for number, path in ((1, out), (2, err)):
        with path.open(mode) as file:
            os.dup2(file.fileno(), number)
