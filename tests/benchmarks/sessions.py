"""Measure a session of the OpenAI Agents SDK that Turnfold keeps, beside the SDK's `SQLiteSession`.

Sessions of 1,000 and of 5,000 items take turns, 40 rounds: read what the model gets (a window of
8,000 tokens here, all items there), read the newest 50 items, add one. Between two rounds a model
works for 0.1 s. Turnfold's session takes a URL as its client, as most programs do, and once more
the client of the event loop. `BENCH_AGENTS_PYTHON` names a Python with the framework, by default that of
`scripts/hosts openai-agents`.
"""

import asyncio
import json
import os
import shutil
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path

from tests.benchmarks.figures import RATIO, Figure, middle
from tests.benchmarks.system import system
from tests.environment import clean_environ

ROOT = Path(__file__).parents[2]
PYTHON_VARIABLE = "BENCH_AGENTS_PYTHON"
PROGRAM = ROOT / "tests" / "benchmarks" / "agents_sessions.py"
TAIL_MS = 2.0
GOALS = {"window": 1.0, "tail": None, "add": 1.5}
CLIENTS = {"own": "", "loop": " with the loop's client"}


async def measure(directory: Path) -> AsyncIterator[Figure]:
    """Each read and write by both sessions, in turns."""
    python = os.environ.get(PYTHON_VARIABLE, str(ROOT / ".hosts" / "openai-agents/bin/python"))
    if shutil.which(python) is None:
        print(f"run `scripts/hosts openai-agents` once, or set {PYTHON_VARIABLE}")
        return
    async with system(directory) as one, one.running("worker"), one.running("query"):
        process = await asyncio.create_subprocess_exec(
            python, "-P", PROGRAM, one.url, directory / "floor.db", env=clean_environ(), stdout=PIPE
        )
        output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{PROGRAM.name} failed")
    for size, times in json.loads(output).items():
        of = f"{int(size):,} items"
        for what, goal in GOALS.items():
            floor = middle(times[f"floor {what}"]) * 1e3
            yield Figure(f"SQLiteSession's {what}, {of}", floor, "ms")
            bound = TAIL_MS if what == "tail" else None
            for who, client in CLIENTS.items():
                own = middle(times[f"{who} {what}"]) * 1e3
                yield Figure(
                    f"{what}{client} to SQLiteSession, {of}", own / floor, RATIO, at_most=goal
                )
                yield Figure(f"{what}{client}, {of}", own, "ms", at_most=bound)
