"""A child process of the supervisor: its output, its exit and its process group."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from turnfold.process.forked_process import ForkClient
from turnfold.process.ready import die_with_parent
from turnfold.process.tasks import at_most


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """How to run a process of the system.

    A process with `runs_once` exits when its work is done, and one with `announces` reports when
    it is ready. With `is_forked`, it is a copy of the supervisor that gets the last word of the
    command, where copies are possible. It inherits the file descriptors `inherits`. Its standard
    error goes to the file `errors`, or else to that of the supervisor. The kernel sends
    `orphaned_by` when the supervisor has exited.
    """

    name: str
    command: Sequence[str]
    announces: bool = True
    runs_once: bool = False
    is_forked: bool = False
    inherits: tuple[int, ...] = ()
    errors: Path | None = None
    orphaned_by: signal.Signals = signal.SIGKILL


class _ForkedService:
    """A copy of this process. It has the methods of `subprocess.Popen` that we use."""

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = stdin
        self.stdout: IO[bytes] | None = stdout
        self._status: int | None = None

    def poll(self) -> int | None:
        """Return the exit status once the process has exited, negative for a signal."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    def send_signal(self, sig: int, /) -> None:
        """Signal the process, if it runs."""
        # Until `poll` has reaped the process, no other one can have its id.
        if self.poll() is None:
            os.kill(self.pid, sig)


ChildHandle = subprocess.Popen[bytes] | _ForkedService


def execute(part: ProcessSpec, environ: Mapping[str, str]) -> ChildHandle:
    """Start a process by executing its command.

    Raises:
        OSError: it cannot be run.
    """
    with contextlib.ExitStack() as stack:
        errors = stack.enter_context(part.errors.open("ab")) if part.errors else None
        return subprocess.Popen(
            list(part.command),
            # The child exits at the end of its input, which ends with the supervisor.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=dict(environ),
            pass_fds=part.inherits,
            # In its own group: Ctrl-C reaches only the supervisor, which stops processes in order.
            process_group=0,
            preexec_fn=die_with_parent(part.orphaned_by),  # noqa: PLW1509 - a system call
        )


async def fork(part: ProcessSpec, environ: Mapping[str, str], client: ForkClient) -> ChildHandle:
    """Start a process as a copy of this one.

    Raises:
        OSError: copies are not possible.
    """
    child_input, our_input = os.pipe()
    our_output, child_output = os.pipe()
    stdin, stdout = os.fdopen(our_input, "wb", 0), os.fdopen(our_output, "rb", 0)
    try:
        try:
            pending = client.request(
                part.command[-1:], environ, stdin=child_input, stdout=child_output, is_service=True
            )
        finally:
            os.close(child_input)
            os.close(child_output)
        process = await pending.begin()
    except BaseException:
        stdin.close()
        stdout.close()
        raise
    return _ForkedService(process.pid, stdin, stdout)


def reap_others(children: Collection[int]) -> None:
    """Reap copies that services requested, when they have exited, but none of these children."""
    with contextlib.suppress(ChildProcessError):
        # WNOWAIT leaves the status to the handle, if the process is one of these children.
        while (
            exited := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        ) is not None and exited.si_pid not in children:
            os.waitpid(exited.si_pid, 0)


class SupervisedProcess:
    """A running process. `ended` is its exit status, negative for a signal.

    Its process group is killed when it exits.
    """

    def __init__(
        self,
        part: ProcessSpec,
        process: ChildHandle,
        on_ready: Callable[[Mapping[str, int]], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.part = part
        self.ended: asyncio.Future[int] = loop.create_future()
        self._on_ready = on_ready
        self._unread = b""
        self._process = process
        self.pid = process.pid
        assert process.stdout
        self._output = process.stdout.fileno()
        os.set_blocking(self._output, False)
        loop.add_reader(self._output, self._read)

    def look(self) -> None:
        """Check whether the process has exited. Call this after each SIGCHLD."""
        status = self._process.poll()
        if status is None or self.ended.done():
            return
        # Its last lines may still be in the pipe: SIGCHLD can come before they were read.
        self._read()
        self._close()
        # Its own children, such as a receiver, belong to its process group.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.ended.set_result(status)

    def signal(self, number: signal.Signals) -> None:
        """Signal the process, if it still runs."""
        if not self.ended.done():
            self._process.send_signal(number)

    async def stop(self, *, seconds: float) -> None:
        """Send SIGTERM, and SIGKILL if the process still runs after `seconds`."""
        self.signal(signal.SIGTERM)
        # Shielded: at its end, the time limit would cancel the future, for which others wait, too.
        await at_most(seconds, asyncio.shield(self.ended))
        self.signal(signal.SIGKILL)
        await asyncio.shield(self.ended)

    def _read(self) -> None:
        try:
            data = os.read(self._output, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._output)
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._handle_line(line)

    def _handle_line(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if isinstance(message, dict) and message.get("ready") is True:
            pids = message.get("pids") or {}
            self._on_ready({str(name): pid for name, pid in pids.items() if isinstance(pid, int)})
        elif line.strip():
            # Not to standard output, where programs read the ready line. Lost if nobody reads it.
            with contextlib.suppress(OSError):
                sys.stderr.write(line.decode(errors="replace") + "\n")
                sys.stderr.flush()

    def _close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._output)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()
