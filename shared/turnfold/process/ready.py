"""The duties of a child process: announce that it is ready, and end with its parent."""

import ctypes
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping

ANNOUNCE = "TURNFOLD_ANNOUNCE"
PR_SET_PDEATHSIG = 1


def announce(pids: Mapping[str, int]) -> None:
    """Announce to the supervisor that this process is ready, with the ids of its processes.

    Without a supervisor, nothing is written. Call it again when a process was replaced.
    """
    if os.environ.get(ANNOUNCE) == "1":
        sys.stdout.write(json.dumps({"ready": True, "pids": dict(pids)}) + "\n")
        sys.stdout.flush()


class ProcessAnnouncer:
    """The ids of a service's processes, announced to the supervisor from `begin` on."""

    def __init__(self, service: str) -> None:
        self._pids: dict[str, int] = {service: os.getpid()}
        self._has_begun = False

    def begin(self, pids: Mapping[str, int | None]) -> None:
        """Announce the service with the ids of its child processes; None stands for no process."""
        self._has_begun = True
        self._pids |= {name: pid for name, pid in pids.items() if pid is not None}
        announce(self._pids)

    def update(self, name: str, pid: int) -> None:
        """Announce the new process of this name."""
        self._pids[name] = pid
        if self._has_begun:
            announce(self._pids)


def follow_parent() -> None:
    """End this process with its supervisor, which holds the pipe on standard input open."""
    if os.environ.get(ANNOUNCE) == "1":
        threading.Thread(target=_end_with_input, name="follow-parent", daemon=True).start()


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """Return a `preexec_fn` by which Linux signals the child when its parent has exited.

    On other systems the function does nothing: the child watches its standard input.
    """
    if not sys.platform.startswith("linux"):
        return lambda: None
    # Loaded here, because `bind` runs between fork and exec, where other threads may hold locks.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def bind() -> None:
        prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        # The parent may have exited before the call above took effect.
        if os.getppid() != parent:
            os._exit(1)

    return bind


def _end_with_input() -> None:
    try:
        while os.read(0, 1024):
            pass
    except OSError:
        return
    # Not `sys.exit`, which would end only this thread.
    os._exit(1)
