"""One child process of the supervisor: its words, its end, and what it leaves behind."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from turnfold.process.ready import die_with_parent


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process of the system.

    `runs_once` ends when its work is done; `announces` says itself when it is ready; it `inherits` open files; what it
    writes to standard error goes into the file `errors`, else to ours; `orphaned_by` ends it when we are gone.
    """

    name: str
    command: Sequence[str]
    announces: bool = True
    runs_once: bool = False
    inherits: tuple[int, ...] = ()
    errors: Path | None = None
    orphaned_by: signal.Signals = signal.SIGKILL


class SupervisedProcess:
    """A running part. `ended` is its exit status, negative for a signal; its whole process group ends with it."""

    def __init__(
        self,
        part: ProcessSpec,
        environ: Mapping[str, str],
        on_ready: Callable[[Mapping[str, int]], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.part = part
        self.ended: asyncio.Future[int] = loop.create_future()
        self._on_ready = on_ready
        self._unread = b""
        with contextlib.ExitStack() as stack:
            errors = stack.enter_context(part.errors.open("ab")) if part.errors else None
            self._process = subprocess.Popen(
                list(part.command),
                # The child watches its input: when the supervisor is gone, so is the pipe.
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=dict(environ),
                pass_fds=part.inherits,
                process_group=0,
                preexec_fn=die_with_parent(part.orphaned_by),  # noqa: PLW1509 - it only asks the kernel for a signal
            )
        self.pid = self._process.pid
        assert self._process.stdout
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)
        loop.add_reader(self._output, self._read)

    def look(self) -> None:
        """See whether the process has ended; call it after each SIGCHLD."""
        status = self._process.poll()
        if status is None or self.ended.done():
            return
        self._read()
        self._close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.ended.set_result(status)

    def signal(self, number: signal.Signals) -> None:
        """Signal the process, if it still runs."""
        if not self.ended.done():
            self._process.send_signal(number)

    async def stop(self, *, seconds: float) -> None:
        """Ask it to end, and end it when it has not after `seconds`."""
        self.signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.shield(self.ended)
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
            self._heard(line)

    def _heard(self, line: bytes) -> None:
        try:
            said = json.loads(line)
        except ValueError:
            said = None
        if isinstance(said, dict) and said.get("ready") is True:
            pids = said.get("pids") or {}
            self._on_ready({str(name): pid for name, pid in pids.items() if isinstance(pid, int)})
        elif line.strip():
            sys.stderr.write(line.decode(errors="replace") + "\n")
            sys.stderr.flush()

    def _close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._output)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()
