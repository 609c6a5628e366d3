"""What a child of `turnfold up` owes its parent: word that it is ready, and not to outlive it."""

import ctypes
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping

ANNOUNCE = "TURNFOLD_ANNOUNCE"
PR_SET_PDEATHSIG = 1


def announce(pids: Mapping[str, int], *, environ: Mapping[str, str] = os.environ) -> None:
    """Tell the supervisor that this process is ready, and which processes belong to it; silent without a supervisor.

    May be called again, when one of the processes was replaced.
    """
    if environ.get(ANNOUNCE) == "1":
        sys.stdout.write(json.dumps({"ready": True, "pids": dict(pids)}) + "\n")
        sys.stdout.flush()


def follow_parent(*, environ: Mapping[str, str] = os.environ) -> None:
    """End this process when its supervisor is gone: standard input is a pipe that the supervisor holds open."""
    if environ.get(ANNOUNCE) == "1":
        threading.Thread(target=_end_with_input, name="follow-parent", daemon=True).start()


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """What a child runs between fork and exec, so that the kernel signals it when its parent is gone (Linux; else nothing)."""
    if not sys.platform.startswith("linux"):
        return _nothing
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def bind() -> None:
        prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return bind


def _nothing() -> None:
    """Elsewhere the pipe of `follow_parent` does it."""


def _end_with_input() -> None:
    try:
        while os.read(0, 1024):
            pass
    except OSError:
        return
    os._exit(1)
