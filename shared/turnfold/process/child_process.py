"""A process beside a service, which starts it by itself: one program started twice by the same user, so words travel pickled."""

import asyncio
import contextlib
import os
import pickle
import socket
import stat
import subprocess
import sys
from typing import Any, Final

from turnfold.errors import StartError
from turnfold.process.ready import ANNOUNCE, die_with_parent

READ_BYTES: Final = 4 * 1024 * 1024
_LENGTH_BYTES: Final = 4


class Beside:
    """Such a process while it lives, as its service sees it."""

    def __init__(self, role: str) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "turnfold.cli", role],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={name: value for name, value in os.environ.items() if name != ANNOUNCE},
                preexec_fn=die_with_parent(),  # noqa: PLW1509 - it only asks the kernel for a signal
            )
        self.pid = self._process.pid
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> asyncio.StreamReader:
        """Begin to listen to it."""
        reader, self._writer = await asyncio.open_connection(sock=self._socket, limit=READ_BYTES)
        return reader

    def say(self, word: Any) -> None:
        """Tell it, if it is still there."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(framed(word))

    def kill(self) -> None:
        """End it now."""
        self._process.kill()

    async def close(self, *, seconds: float) -> None:
        """Tell it that this is all, and end it when it has not ended by itself after so long."""
        if self._writer is None:
            self._socket.close()
        elif not self._writer.is_closing():
            with contextlib.suppress(OSError, RuntimeError):
                self._writer.write_eof()
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, seconds)
        self._process.kill()
        await asyncio.to_thread(self._process.wait)
        if self._writer is not None:
            self._writer.close()


async def service_of(role: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The service that started this process, at the other end of standard input.

    Raises:
        StartError: no service did.
    """
    check_started(role)
    return await asyncio.open_connection(sock=socket.socket(fileno=os.dup(0)), limit=READ_BYTES)


def check_started(role: str) -> None:
    """See that a service started this.

    Raises:
        StartError: no service did.
    """
    if not stat.S_ISSOCK(os.fstat(0).st_mode):
        service = {"receiver": "worker", "lane": "query"}[role]
        raise StartError(f"a {role} is started by its {service}; run `turnfold {service}`")


def framed(word: Any) -> bytes:
    """A word as it travels: its length, and the word."""
    pickled = pickle.dumps(word, pickle.HIGHEST_PROTOCOL)
    return len(pickled).to_bytes(_LENGTH_BYTES) + pickled


async def read_word(reader: asyncio.StreamReader) -> Any | None:
    """The next word; None when the other one is gone."""
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES))
        return pickle.loads(await reader.readexactly(length))  # noqa: S301 - from our own process
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
