"""Copies of `turnfold up`, which loads the services so that all of them share one copy of the code.

A request names a command and brings its standard streams. It may come from the supervisor itself,
or from a service that it forked; `forked_process` is their side. A copy keeps nothing of the
supervisor but its loaded modules: no event loop, signal handler, socket, lock file or thread.
"""

import asyncio
import atexit
import contextlib
import ctypes
import fcntl
import gc
import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from turnfold.process.forked_process import GO, ForkRequest, use_requests
from turnfold.process.ready import die_with_parent

_REQUEST_BYTES: Final = 1 << 20
_STREAMS: Final = 3
_FILES: Final = _STREAMS + 2
_HANDLED: Final = (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_THREADS: Final = Path("/proc/self/task")
_OPEN_FILES: Final = Path("/proc/self/fd")
_STAT: Final = Path("/proc/self/stat")
_ARGUMENTS: Final = slice(45, 47)
"""The fields of /proc/self/stat behind the name that tell where the command line is."""

Main = Callable[[Sequence[str]], object]


class Copies(NamedTuple):
    """How to run a service in a copy of this process.

    `load` imports the services, and yields the name of each one that may be copied. `main` runs
    the command with these arguments.
    """

    load: Callable[[], Iterable[str]]
    main: Main


class _StopSignal(BaseException):
    """A stop signal arrived outside of the event loop."""


def until_signal(names: Iterable[str], signals: Sequence[signal.Signals]) -> Iterator[str]:
    """Yield the names, and end when one of these signals interrupts the loading before a name.

    Loading keeps the event loop waiting, on a busy machine for ten seconds. The loop handles the
    signal when it runs again.
    """

    def interrupt(_number: int, _frame: object) -> None:
        raise _StopSignal

    remaining = iter(names)
    while True:
        handlers = {number: signal.signal(number, interrupt) for number in signals}
        try:
            name = next(remaining, None)
        except _StopSignal:
            return
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        if name is None:
            return
        yield name


class ForkServer:
    """Fork this process for each request, from `start` until `close`.

    A copy calls `main` with the arguments of the request. It is a child of this process, whichever
    process requested it, and is killed when this process ends.
    """

    def __init__(self, main: Main) -> None:
        self._main = main
        # Packets: several processes send requests here, and each arrives whole, with its files.
        self._requests, self.requester = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        """`requester` is the other end, on which requests are sent."""

    def start(self) -> None:
        """Fork on requests from now on."""
        asyncio.get_running_loop().add_reader(self._requests.fileno(), self._answer)

    def close(self) -> None:
        """Answer no more requests."""
        asyncio.get_running_loop().remove_reader(self._requests.fileno())
        self._requests.close()
        self.requester.close()

    def _answer(self) -> None:
        """Fork for a request. If that fails, its socket closes, and the requester executes it."""
        with contextlib.suppress(OSError):
            message, files, _, _ = socket.recv_fds(
                self._requests, _REQUEST_BYTES, _FILES, socket.MSG_DONTWAIT
            )
            try:
                # A lock that another thread holds would stay locked in the copy.
                if len(list(_THREADS.iterdir())) == 1:
                    self._fork(ForkRequest(*json.loads(message)), files)
            finally:
                for file in files:
                    os.close(file)

    def _fork(self, request: ForkRequest, files: Sequence[int]) -> None:
        # Before the fork, because it reads the id of this process, which the copy compares.
        bind = die_with_parent()
        # Collections in the copy leave alone what is frozen, and so the pages that both share.
        gc.collect()
        gc.freeze()
        # Otherwise a signal to the copy could reach the event loop of this process.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            if os.fork() == 0:
                _run_copy(self._main, request, files, bind, mask)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _run_copy(
    main: Main,
    request: ForkRequest,
    files: Sequence[int],
    bind: Callable[[], None],
    mask: Iterable[int],
) -> NoReturn:
    """Run the command, and exit with its status."""
    status: object = 1
    try:
        bind()
        _leave_loop()
        # Only now that no handler of the parent is left.
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _take_over(request, files)
        main(request.arguments)
        status = 0
    except SystemExit as exit_:
        status = exit_.code or 0
    except BaseException:  # noqa: BLE001 - it is printed, and the process ends
        traceback.print_exc()
    _exit(status if isinstance(status, int) else 1)


def _leave_loop() -> None:
    """Forget the event loop and the signal handlers of the parent, and touch neither."""
    signal.set_wakeup_fd(-1)
    for number in _HANDLED:
        signal.signal(number, signal.SIG_DFL)
    # As Python sets it at its start: SIGINT raises KeyboardInterrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asyncio._set_running_loop(None)  # noqa: SLF001


def _take_over(request: ForkRequest, files: Sequence[int]) -> None:
    """Have the streams, the environment, the group and the command line of the request."""
    # First above the numbers that they get, so that none replaces another.
    copies = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _FILES) for file in files]
    for number, file in enumerate(copies):
        os.dup2(file, number, inheritable=number < _STREAMS)
    # Not inherited: the lock of the directory, sockets, and the other end of the reply.
    os.closerange(len(copies), 1 + max(int(file.name) for file in _OPEN_FILES.iterdir()))
    with socket.socket(fileno=_STREAMS) as reply:
        if not _may_begin(reply, request.group):
            os._exit(0)
    if len(copies) == _FILES:
        use_requests(socket.socket(fileno=_FILES - 1))
    # The supervisor may have replaced it.
    sys.stdout = os.fdopen(1, "w", closefd=False)
    os.environ.clear()
    os.environ.update(request.environ)
    _rename(["turnfold", *request.arguments])


def _may_begin(reply: socket.socket, group: int) -> bool:
    """Join the process group, report the id, and return whether the requester still wants it."""
    try:
        os.setpgid(0, group)
        pidfd = os.pidfd_open(os.getpid())
        socket.send_fds(reply, [b"%d" % os.getpid()], [pidfd])
        os.close(pidfd)
        return reply.recv(1) == GO
    # It has exited, or did not wait for so long.
    except OSError:
        return False


def _rename(words: Sequence[str]) -> None:
    """Show this command line to `ps`, unless it is longer than that of the supervisor."""
    with contextlib.suppress(OSError, ValueError):
        fields = _STAT.read_text(encoding="ascii").rpartition(")")[2].split()
        start, end = map(int, fields[_ARGUMENTS])
        shown = b"".join(os.fsencode(word) + b"\0" for word in words)
        if len(shown) <= end - start:
            # Python has its own copy of the arguments; nothing else reads this memory.
            ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def _exit(status: int) -> NoReturn:
    """Exit as an interpreter does, but leave alone what the supervisor has left on the stack."""
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
    atexit._run_exitfuncs()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
