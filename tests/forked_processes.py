"""Processes for tests to race, to run and to kill, each forked from one that has loaded what they need and done nothing yet."""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import turnfold.cli

PATIENCE_SECONDS = 100.0
"""How long a process may take: on a busy machine one that starts a summariser waits a minute for it."""

_PROCESSES = get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.loaded_modules"])


def begun(work: Callable[..., None], *given: Any) -> BaseProcess:
    """A process that does this work."""
    process = _PROCESSES.Process(target=work, args=given)
    process.start()
    return process


async def ended(process: BaseProcess, *, seconds: float = PATIENCE_SECONDS) -> int:
    """Its exit status, once it has one: 0 when it did its work, below 0 when a signal killed it."""
    await asyncio.to_thread(process.join, seconds)
    if process.exitcode is None:
        process.kill()
        raise TimeoutError(f"process {process.pid} did not end within {seconds:g} s")
    return process.exitcode


def command(arguments: Sequence[str], environ: Mapping[str, str], out: Path, err: Path) -> None:
    """Be `turnfold` with these arguments and this environment alone; its words go to files."""
    _become(environ, out, err, "wb")
    turnfold.cli.main(arguments)


def service(name: str, environ: Mapping[str, str], stdin: Connection, out: Path, err: Path) -> None:
    """Be a service in a process group of its own, until it is stopped or its input ends."""
    os.setpgid(0, 0)
    os.dup2(stdin.fileno(), 0)
    _become(environ, out, err, "ab")
    if "PYTHONPATH" in environ:
        # Another release than the one that is loaded here.
        os.execve(sys.executable, [sys.executable, "-P", "-m", "turnfold.cli", name], os.environ)
    turnfold.cli.main([name])


def _become(environ: Mapping[str, str], out: Path, err: Path, mode: str) -> None:
    os.environ.clear()
    os.environ.update(environ)
    for number, path in ((1, out), (2, err)):
        with path.open(mode) as file:
            os.dup2(file.fileno(), number)
