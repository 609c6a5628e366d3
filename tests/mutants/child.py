"""A process that runs pytest in a copy of the checkout, forked from one that has the libraries of others in memory already."""

import os
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

LIBRARIES = (
    "aiosqlite", "alembic.command", "libcst.metadata", "mutmut.mutation.file_mutation", "aiohttp", "asyncpg", "fastapi", "hypothesis", "nats", "pydantic", "pytest",
    "rich.console", "sqlalchemy.dialects.postgresql", "sqlalchemy.dialects.sqlite", "sqlalchemy.ext.asyncio", "structlog", "toktok",
)  # fmt: skip
"""What tests import besides our own code; to import it takes two seconds, and no mutant changes it."""
CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(list(LIBRARIES))


def start(
    tree: Path,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    shelves: Sequence[str],
    log: Path,
) -> Any:
    """Start the process; it leads a session of its own, so that whatever its tests start can be ended with it."""
    process = CONTEXT.Process(
        target=_run, args=(tree, list(arguments), dict(variables), tuple(shelves), log)
    )
    process.start()
    return process


def _run(
    tree: Path, arguments: list[str], variables: dict[str, str], shelves: tuple[str, ...], log: Path
) -> None:
    os.setsid()
    with log.open("wb") as output, Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.chdir(tree)
    places = [str(tree), *(str(tree / shelf) for shelf in shelves)]
    os.environ |= variables | {"PYTHONPATH": os.pathsep.join(places[1:])}
    sys.path[:] = [*places, *(place for place in sys.path if place)]
    # Modules of the checkout are imported anew, from the copy.
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    # Otherwise pytest compiles every test file anew in every run, which takes longer than its tests.
    sys.dont_write_bytecode = False
    import pytest

    status = pytest.main(arguments)
    sys.stdout.flush()
    os._exit(int(status))
