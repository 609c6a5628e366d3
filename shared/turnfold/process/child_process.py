"""A child process that exchanges frames with its parent over a socket.

The receiver, the lane and the summarizer are such children. A frame is a body of bytes behind its
length; each pair of processes encodes its messages as bodies. When the parent exits, the child
reads the end of the stream, and on Linux the kernel kills it.
"""

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from turnfold.errors import StartError
from turnfold.process.forked_process import (
    ForkClient,
    ForkedProcess,
    PendingFork,
    fork_client,
)
from turnfold.process.ready import ANNOUNCE, die_with_parent

HEARTBEAT_SECONDS: Final = 0.5
MAX_MISSED_HEARTBEATS: Final = 10
"""A process gives up the other one after so many heartbeats of its own without a frame from it.

Heartbeats are counted and no clock is read, so that a machine may sleep between two of them.
"""
MAX_BODY_BYTES: Final = 1 << 30
_LENGTH_BYTES: Final = 4
_READ_BYTES: Final = 4 * 1024 * 1024
# With -P, modules in the working directory do not replace those of Python and Turnfold.
PYTHON: Final = (sys.executable, "-P", "-m")
TURNFOLD: Final = (*PYTHON, "turnfold.cli")
_PARENTS: Final = {"receiver": "worker", "lane": "query"}


def encode_frame(body: bytes) -> bytes:
    """Return the body with its length in front."""
    return len(body).to_bytes(_LENGTH_BYTES) + body


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """Return the body of the next frame, or None if the other process has gone.

    Raises:
        ValueError: the frame is too long.
    """
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES))
        # Frames come from our own processes: a longer one means that both count bytes differently.
        if length > MAX_BODY_BYTES:
            raise ValueError(f"frame of {length} bytes is too long (limit {MAX_BODY_BYTES})")
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


async def open_stream(
    connection: socket.socket,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connected socket for frames, which may be large. The writer owns the socket."""
    return await asyncio.open_connection(sock=connection, limit=_READ_BYTES)


def encode_message(message: Any) -> bytes:
    """Return a message pickled: its reader runs this program as well, and trusts this process."""
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def decode_message(body: bytes) -> Any:
    """Return the message that `encode_message` encoded."""
    return pickle.loads(body)  # noqa: S301 - from our own process


def command_of(role: str) -> Sequence[str]:
    """Return the command of a child of a service: `receiver` or `lane`."""
    return (*TURNFOLD, role)


def serve_parent(role: str, serve: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run a child of a service until its parent has gone, and return the exit status.

    Raises:
        StartError: no service started this process: standard input is not a socket.
    """
    import uvloop  # noqa: PLC0415  # a parent has loaded it, or needs none

    if not stat.S_ISSOCK(os.fstat(0).st_mode):
        parent = _PARENTS[role]
        raise StartError(f"a {role} is started by its {parent}; run `turnfold {parent}`")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # The parent handles these signals, and lets its child finish.
        signal.signal(number, signal.SIG_IGN)
    uvloop.run(serve())
    return 0


def parent_socket() -> socket.socket:
    """Return the socket to the parent, which is standard input; the caller owns the copy."""
    return socket.socket(fileno=os.dup(0))


class ChildProcess:
    """A running child process. Its standard input is a socket to this process.

    The constructor starts the process and may be called before an event loop runs; `open`
    connects the streams. Its standard output is discarded. If the supervisor forked this process,
    it forks the child, too, which then begins with `open`.

    Construct and open it in a thread that lives as long as the process, such as the main thread:
    Linux kills the process when that thread ends.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        stderr: int | None = None,
    ) -> None:
        names = os.environ if environment is None else environment
        self._command = list(command)
        # With ANNOUNCE, the child would read its standard input to notice the supervisor's end.
        # Here that is the socket of the frames.
        self._environ = {name: value for name, value in names.items() if name != ANNOUNCE}
        self._stderr = stderr
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._fork: PendingFork | None = None
        self._is_closing = False
        self._start(fork_client())

    @property
    def pid(self) -> int | None:
        """The id of the process. None if it was requested and has not begun."""
        return self._process.pid if self._process is not None else None

    @property
    def is_running(self) -> bool:
        """Whether the process has not exited yet."""
        return self._process is None or self._process.poll() is None

    @property
    def can_send(self) -> bool:
        """Whether the stream to the process is open, and stays open."""
        writer = self._writer
        return writer is not None and not writer.is_closing() and not self._is_closing

    async def open(self) -> None:
        """Connect the streams. A forked process begins; if there is none, the command is executed.

        Raises:
            OSError: the process cannot be started.
        """
        if self._fork is not None:
            fork, self._fork = self._fork, None
            try:
                self._process = await fork.begin()
            except OSError:
                self._socket.close()
                self._start(None)
        self._reader, self._writer = await open_stream(self._socket)

    async def receive(self) -> bytes | None:
        """Return the body of the next frame, or None if the process has gone."""
        assert self._reader is not None
        return await read_frame(self._reader)

    def send(self, body: bytes) -> None:
        """Send a frame, or drop it if the stream is closed or closing."""
        if self._writer is not None and self.can_send:
            self._writer.write(encode_frame(body))

    async def drain(self) -> None:
        """Wait until the process has read most of what was sent, or has gone."""
        if self._writer is not None:
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()

    def kill(self) -> None:
        """Kill the process, if it runs."""
        if self._process is not None:
            self._process.kill()

    async def close(self, *, seconds: float) -> None:
        """Close the stream, and kill the process if it still runs after `seconds`."""
        # Work of others may end meanwhile, and want to send its result.
        self._is_closing = True
        # Never opened: there is no stream that could end, and the socket ends the child.
        if self._writer is None:
            self._socket.close()
        elif not self._writer.is_closing():
            with contextlib.suppress(OSError, RuntimeError):
                self._writer.write_eof()
        if self._fork is not None:
            self._fork.close()
        if (process := self._process) is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(process.wait, seconds)
            process.kill()
            await asyncio.to_thread(process.wait)
        if self._writer is not None:
            self._writer.close()

    def _start(self, client: ForkClient | None) -> None:
        self._socket, child_socket = socket.socketpair()
        with contextlib.ExitStack() as on_error, child_socket:
            on_error.callback(self._socket.close)
            # The summarizer is executed in any case: a copy would hold credentials in its memory.
            if client is not None and tuple(self._command[:-1]) == TURNFOLD:
                with contextlib.suppress(OSError):
                    self._fork = self._request(client, child_socket.fileno())
            if self._fork is None:
                self._process = self._execute(child_socket.fileno())
            on_error.pop_all()

    def _request(self, client: ForkClient, stdin: int) -> PendingFork:
        with Path(os.devnull).open("wb") as null:
            return client.request(
                self._command[-1:], self._environ, stdin=stdin, stdout=null.fileno()
            )

    def _execute(self, stdin: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            env=self._environ,
            preexec_fn=die_with_parent(),  # noqa: PLW1509 - only a system call
        )


class HeartbeatMonitor:
    """Send heartbeats to another process, and detect that it no longer sends anything.

    `start_limit` replaces `MAX_MISSED_HEARTBEATS` until the first frame, as a process may start
    slowly.
    """

    def __init__(
        self,
        send: Callable[[], object],
        *,
        start_limit: int = MAX_MISSED_HEARTBEATS,
    ) -> None:
        self._send = send
        self._limit = start_limit
        self._is_heard = False

    def heard(self) -> None:
        """Record a frame from the other process."""
        self._is_heard = True

    async def run(self) -> float:
        """Send heartbeats until too many have been missed; return the seconds of silence."""
        missed = 0
        while missed < self._limit:
            self._send()
            await asyncio.sleep(HEARTBEAT_SECONDS)
            if self._is_heard:
                self._limit = MAX_MISSED_HEARTBEATS
            missed = 0 if self._is_heard else missed + 1
            self._is_heard = False
        return missed * HEARTBEAT_SECONDS
