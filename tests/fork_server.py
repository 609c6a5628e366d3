"""The server from which tests fork processes. It loads their modules, for five seconds, once for all testers of a run."""

import os
from multiprocessing import forkserver, get_context
from typing import Any

PROCESSES = get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.loaded_modules"])

_SERVER: Any = vars(forkserver)["_forkserver"]


def begin() -> tuple[str, bytes]:
    """Start it, and return what other processes need to use it until this one ends."""
    forkserver.ensure_running()
    return _SERVER._forkserver_address, getattr(_SERVER, "_forkserver_authkey", None) or b""


def use(begun: tuple[str, bytes]) -> None:
    """Use the one that another process has begun and keeps alive."""
    address, key = begun
    _SERVER._forkserver_address = address
    _SERVER._forkserver_authkey = key or None  # from Python 3.14 on
    _SERVER._forkserver_alive_fd = os.open(os.devnull, os.O_RDONLY)
    _SERVER.ensure_running = lambda: None
