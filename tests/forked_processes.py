"""Processes for tests to race, to run and to kill, each forked from one that has loaded what they need and done nothing yet."""

import asyncio
import os
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import turnfold.cli

PATIENCE_SECONDS = 100.0
"""How long a process may take: on a busy machine one that starts a summariser waits a minute for it."""

_PROCESSES = get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    [
        *(
            f"turnfold.cli.{found.name}"
            for found in pkgutil.iter_modules(turnfold.cli.__path__)
            if not found.name.startswith("_")
        ),
        "alembic.command",
        "tests.chaos.crashing_worker",
        "turnfold_migrations",
    ]
)


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
    os.environ.clear()
    os.environ.update(environ)
    for number, path in ((1, out), (2, err)):
        with path.open("wb") as file:
            os.dup2(file.fileno(), number)
    turnfold.cli.main(arguments)
