"""Request copies of `turnfold up`, and control them although it is their parent; see `forking`."""

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

FORK_SECONDS: Final = 5.0
"""Time limit for a fork, which takes some milliseconds. After it, the command is executed."""
GO: Final = b"\1"
"""The reply to a copy that has reported its id: begin. Without it, the copy exits."""


class ForkRequest(NamedTuple):
    """The arguments of `turnfold`, the environment, and the process group (0 for a new one).

    Four or five file descriptors come with it: the standard streams, a socket for the reply, and
    for a service the socket on which it requests its own children.
    """

    arguments: Sequence[str]
    environ: Mapping[str, str]
    group: int


def can_fork() -> bool:
    """Return whether this system has what copies need; Python may not be copied on macOS."""
    return sys.platform == "linux" and hasattr(os, "pidfd_open")


class ForkedProcess:
    """A process that another one forked. It has the methods of `subprocess.Popen` that we use."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd

    def poll(self) -> int | None:
        """Return None while the process runs, else 0: only its parent learns the exit status."""
        return 0 if self._has_exited(0.0) else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has exited.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        if not self._has_exited(timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return 0

    def kill(self) -> None:
        """Kill the process, if it runs."""
        # By its pidfd: the supervisor reaps the process, and then another one may get its id.
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def __del__(self) -> None:
        os.close(self._pidfd)

    def _has_exited(self, seconds: float | None) -> bool:
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(None if seconds is None else seconds * 1_000))


class PendingFork:
    """A requested process. It begins only with `begin`, and never does after `close`."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection

    async def begin(self) -> ForkedProcess:
        """Wait for the process and let it begin.

        Raises:
            OSError: there is no process in time.
        """
        with self._connection:
            try:
                async with asyncio.timeout(FORK_SECONDS):
                    await _readable(self._connection)
            except TimeoutError as error:
                raise OSError("the supervisor did not fork in time") from error
            message, files, _, _ = socket.recv_fds(self._connection, 64, 1)
            # The other end is closed: the supervisor did not fork, or the copy has exited.
            if not files:
                raise OSError("the fork failed")
            process = ForkedProcess(int(message), files[0])
            self._connection.send(GO)
        return process

    def close(self) -> None:
        """Withdraw the request, if it has not begun."""
        self._connection.close()


class ForkClient:
    """Where this process requests copies: its end of the socket of a fork server."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests

    def request(
        self,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        *,
        stdin: int,
        stdout: int,
        is_service: bool = False,
    ) -> PendingFork:
        """Request a process that is `turnfold` with these arguments.

        Its standard error is that of this process. A service has a process group of its own and may
        request processes, too. Others belong to the group of this process.

        Raises:
            OSError: the request cannot be sent.
        """
        request = ForkRequest(arguments, environ, 0 if is_service else os.getpgrp())
        ours, theirs = socket.socketpair()
        files = [stdin, stdout, 2, theirs.fileno()]
        if is_service:
            files.append(self._requests.fileno())
        with theirs, contextlib.ExitStack() as on_error:
            on_error.callback(ours.close)
            # Without waiting: the supervisor may be stopped, and its queue full.
            socket.send_fds(
                self._requests, [json.dumps(request).encode()], files, socket.MSG_DONTWAIT
            )
            on_error.pop_all()
        return PendingFork(ours)


_requests: list[ForkClient] = []
"""The client of this process, if it is a service that the fork server forked."""


def fork_client() -> ForkClient | None:
    """Return the client of this process, if it was forked as a service."""
    return _requests[0] if _requests else None


def use_requests(requests: socket.socket) -> None:
    """Request the children of this process on this socket from now on."""
    _requests[:] = [ForkClient(requests)]


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def on_readable() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(connection.fileno(), on_readable)
    try:
        await ready
    finally:
        loop.remove_reader(connection.fileno())
