"""The data directory of `turnfold up`: a lock for one system, and its ready line for commands."""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from turnfold.errors import StartError
from turnfold.settings.reading import READY_FILE, read_ready

LOCK_FILE = "up.lock"
ORPHAN_SECONDS = 5.0
"""Time limit for the processes of a killed system to exit."""


class DataDirectory:
    """A data directory that this process holds exclusively until `close`.

    The lock belongs to an open file. A process that inherits `lock_fd` therefore also holds it.
    """

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self.lock_fd = lock_fd

    @classmethod
    def claim(cls, path: Path) -> "DataDirectory":
        """Create the directory if it does not exist, and lock it.

        Raises:
            StartError: another system uses it, or it is not writable.
        """
        path = path.expanduser().resolve()
        try:
            # If the path is a file, `open` below reports that it is not a directory.
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700, parents=True)
            lock_fd = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StartError(
                f"{path} cannot be used ({error.strerror}); choose another --data-dir"
            ) from error
        directory = cls(path, lock_fd)
        try:
            _lock(path, lock_fd)
            directory.sign({"up": os.getpid()})
        except BaseException:
            directory.close()
            raise
        return directory

    def sign(self, pids: Mapping[str, int]) -> None:
        """Record which processes hold the lock.

        Raises:
            StartError: the directory cannot be written.
        """
        text = json.dumps(dict(pids)).encode()
        with _writing(self.path):
            # In place: the lock belongs to this file, and a new one would have none.
            os.pwrite(self.lock_fd, text, 0)
            os.ftruncate(self.lock_fd, len(text))

    def write_ready(self, ready: Mapping[str, Any]) -> None:
        """Write the ready line for commands. Only its owner may read it.

        Raises:
            StartError: the directory cannot be written.
        """
        draft = self.path / f".{READY_FILE}.{os.getpid()}"
        with _writing(self.path):
            with contextlib.suppress(FileNotFoundError):
                draft.unlink()
            draft.touch(mode=0o600, exist_ok=False)
            draft.write_text(json.dumps(ready) + "\n", encoding="utf-8")
            # Replaced as a whole, because commands may read it at any time.
            draft.replace(self.path / READY_FILE)

    def forget_ready(self) -> None:
        """Delete the ready line, because no system runs here."""
        with contextlib.suppress(FileNotFoundError):
            (self.path / READY_FILE).unlink()

    def close(self) -> None:
        """Release the lock."""
        # Not unlocked: nats-server inherits the open file, and the lock lasts until it exits, too.
        os.close(self.lock_fd)


@contextlib.contextmanager
def _writing(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise StartError(
            f"{path} cannot be written ({error.strerror}); make room, or choose another --data-dir"
        ) from error


def running_system(path: Path) -> Mapping[str, Any] | None:
    """Return the ready line of the system in a data directory, or None if none runs there.

    The lock decides. The ready line of a killed system may still exist, and another system may
    listen on its ports.

    Raises:
        StartError: the system is not ready yet, or the directory cannot be read.
    """
    try:
        if not _is_locked(path / LOCK_FILE):
            return None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StartError(
            f"the data directory {path} cannot be read ({error.strerror}); "
            "run the command as the user of its system"
        ) from error
    ready = read_ready(path)
    if ready is None:
        raise StartError(
            f"the system on {path} is not ready; try again after `turnfold up` has printed its"
            " addresses"
        )
    return ready


def _is_locked(path: Path) -> bool:
    lock_fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Shared, so that two commands that look at once do not take each other for a system.
        fcntl.flock(lock_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock_fd)
    return False


def _lock(path: Path, lock_fd: int) -> None:
    deadline = time.monotonic() + ORPHAN_SECONDS
    while True:
        try:
            return fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holders = _holders(lock_fd)
            # A supervisor that lives keeps the lock. One that was killed leaves it to its
            # nats-server, which ends within seconds.
            if is_alive(holders.get("up", 0)):
                raise StartError(
                    f"a system already runs on {path} (process {holders['up']}); "
                    "stop it, or choose another --data-dir"
                ) from error
            if time.monotonic() > deadline:
                orphan = (
                    f"process {holders['nats']} (nats-server)" if "nats" in holders else "a process"
                )
                raise StartError(
                    f"{orphan} of an earlier start still holds {path}; end it, then start again"
                ) from error
        except OSError as error:
            raise StartError(
                f"{path} cannot be locked ({error.strerror}); choose a --data-dir on a local disk"
            ) from error
        time.sleep(0.05)


def _holders(lock_fd: int) -> dict[str, int]:
    try:
        holders = json.loads(os.pread(lock_fd, 4096, 0))
    except ValueError:
        # The process that has just locked the file has not written its id yet.
        return {}
    return (
        {name: pid for name, pid in holders.items() if isinstance(pid, int)}
        if isinstance(holders, dict)
        else {}
    )


def is_alive(pid: int) -> bool:
    """Return whether a process with this id runs."""
    if pid <= 0:
        return False
    try:
        # Forbidden, if it is a process of another user.
        with contextlib.suppress(PermissionError):
            os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
