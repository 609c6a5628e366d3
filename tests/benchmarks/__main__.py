"""Run the benchmarks: `python -m tests.benchmarks [name...] [--json]`."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from tests.benchmarks import (
    attacks,
    cell,
    context,
    counting,
    erasing,
    faults,
    hanging,
    http,
    intake,
    load,
    many,
    memory,
    million,
    own_write,
    prefix,
    proxy,
    publishing,
    recall,
    sessions,
    start,
    stored,
    survival,
    window,
)
from tests.benchmarks.figures import Figure, as_json, show

BENCHMARKS: Mapping[str, Callable[[Path], AsyncIterator[Figure]]] = {
    "intake": intake.measure,
    "context": context.measure,
    "load": load.measure,
    "hanging": hanging.measure,
    "erasing": erasing.measure,
    "faults": faults.measure,
    "http": http.measure,
    "many": many.measure,
    "million": million.measure,
    "memory": memory.measure,
    "own_write": own_write.measure,
    "prefix": prefix.measure,
    "publishing": publishing.measure,
    "proxy": proxy.measure,
    "recall": recall.measure,
    "sessions": sessions.measure,
    "start": start.measure,
    "counting": counting.measure,
    "window": window.measure,
    "stored": stored.measure,
    "survival": survival.measure,
    "attacks": attacks.measure,
    "cell": cell.measure,
}
LONG = {"cell"}
"""Left out unless they are named."""


def main() -> None:
    """Run those that were named, or all that are not long, one after the other."""
    parser = argparse.ArgumentParser(
        prog="tests.benchmarks", description="What things cost, as multiples of bare floors."
    )
    parser.add_argument(
        "name",
        nargs="*",
        help=f"which of {', '.join(BENCHMARKS)} (default: all but {', '.join(LONG)})",
    )
    parser.add_argument("--json", action="store_true", help="one figure a line")
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.name if name not in BENCHMARKS]:
        parser.error(f"there is no benchmark {unknown[0]}; there are {', '.join(BENCHMARKS)}")
    console = Console() if sys.stdout.isatty() else Console(width=110)
    for name in chosen.name or [name for name in BENCHMARKS if name not in LONG]:
        with nullcontext() if chosen.json else console.status(f"{name} is being measured"):
            figures = asyncio.run(_measured(name, is_json=chosen.json))
        if not chosen.json:
            show(figures, console)


async def _measured(name: str, *, is_json: bool) -> list[Figure]:
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="turnfold-bench-") as directory:
        async for figure in BENCHMARKS[name](Path(directory)):
            figures.append(replace(figure, benchmark=figure.benchmark or name))
            if is_json:
                print(as_json(figures[-1]), flush=True)
    return figures


if __name__ == "__main__":
    main()
