"""Processes for tests to race, to run and to kill, each forked from one that has loaded what they need and done nothing yet."""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from signal import SIGKILL
from types import SimpleNamespace
from typing import Any

import turnfold.cli
from turnfold.process import child_process
from turnfold.process.ready import ANNOUNCE

PATIENCE_SECONDS = 100.0
"""How long a process may take: on a busy machine one that starts a summariser waits a minute for it."""

_PROCESSES = get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.loaded_modules"])


def begun(work: Callable[..., None], *given: Any) -> BaseProcess:
    """A process that does this work."""
    process = _PROCESSES.Process(target=work, args=given)
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
    # mypy: a module is no namespace, but this one is used as one.
    child_process.subprocess = SimpleNamespace(**vars(subprocess) | {"Popen": _child_of_service})  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
    turnfold.cli.main([name])


def forked_role(pid: int) -> str | None:
    """The role of a child that a service forked, such as `lane`; None for any other process."""
    with contextlib.suppress(OSError):
        mark, _, role = Path(f"/proc/{pid}/comm").read_text().strip().partition(":")
        return role if mark == "forked" and role else None
    return None


class ForkedChild:
    """A receiver or a lane, forked from its service: to the service what `subprocess.Popen` is."""

    def __init__(self, role: str, stdin: int, bind: Callable[[], None]) -> None:
        self._status: int | None = None
        self._waiting = threading.Lock()
        self.pid = os.fork()
        if self.pid == 0:
            _be_child(role, stdin, bind)

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
        if self.poll() is None:
            os.kill(self.pid, SIGKILL)


def _child_of_service(
    command: Sequence[str], *, stdin: int, preexec_fn: Callable[[], None], **given: Any
) -> Any:
    """Fork what a service starts while it begins; what it starts later, beside threads, is executed."""
    role = command[-1]
    is_first = {thread.name for thread in threading.enumerate()} <= {"MainThread", "follow-parent"}
    if is_first and tuple(command) == tuple(child_process.command_of(role)):
        return ForkedChild(role, stdin, preexec_fn)
    return subprocess.Popen(command, stdin=stdin, preexec_fn=preexec_fn, **given)  # noqa: PLW1509 - as the service asks


def _be_child(role: str, stdin: int, bind: Callable[[], None]) -> None:
    """Be a child of a service with nothing of it but its environment and its standard error."""
    status: Any = 1
    try:
        bind()
        os.dup2(stdin, 0)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.environ.pop(ANNOUNCE, None)
        with contextlib.suppress(OSError):
            Path("/proc/self/comm").write_text(f"forked:{role}")
        turnfold.cli.main([role])
    except SystemExit as ended:
        status = ended.code or 0
    except BaseException:  # noqa: BLE001 - it is printed, and the process ends
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 1)


def _become(environ: Mapping[str, str], out: Path, err: Path, mode: str) -> None:
    os.environ.clear()
    os.environ.update(environ)
    for number, path in ((1, out), (2, err)):
        with path.open(mode) as file:
            os.dup2(file.fileno(), number)
