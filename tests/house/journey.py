"""Follow one event from publish to window, and count what it passes.

`python -m tests.house.journey` prints the figures, with `--functions` the functions as well. It
ends with 1 if the functions that CONTRIBUTING.md tells to read did not run in that order.

A real system runs, with every call of a function of the project recorded in each of its processes.
Counted are the functions that run between the publication of a turn and the window that shows it,
in a client, the receiver, the worker and the query server, and not in a time without events.
"""

import asyncio
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.house.tracing.sitecustomize import record
from tests.running_system import System, running_system
from turnfold.client import connect

ROOT = Path(__file__).parents[2]
QUIET_SECONDS = 5.0
"""How long nothing is published. Loops and heartbeats run in that time, and count as no part."""

TURN: list[dict[str, Any]] = [
    {"role": "user", "content": "Where is order 7341?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "find_order", "arguments": '{"order": 7341}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "order 7341: on its way"},
    {"role": "assistant", "content": "Order 7341 is on its way."},
]


class Call(NamedTuple):
    """A function that was called: when, in which process, and where it is written."""

    at_ns: int
    process: str
    path: str
    name: str

    @property
    def function(self) -> tuple[str, str]:
        """Its file and name; what is written within a function belongs to that."""
        return self.path, self.name.partition(".<locals>")[0]


class Stage(NamedTuple):
    """A function that a newcomer reads to follow an event: its process, file and name."""

    process: str
    path: str
    name: str


def stages() -> list[Stage]:
    """Return what "Follow one event" of CONTRIBUTING.md names, in its order."""
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(
        r"^\| (client|receiver|worker|query) \| `(\S+)` \| (.+) \|$", guide, re.MULTILINE
    )
    return [
        Stage(process, _place(path), name)
        for process, path, names in rows
        for name in re.findall(r"`(\S+)`", names)
    ]


def _place(path: str) -> str:
    """Return a path of the guide as a path in the repository."""
    root = "services" if path.startswith("turnfold_") else "shared/turnfold"
    return f"{root}/{path}"


def not_in_order(calls: list[Call]) -> list[Stage]:
    """Return the stages that did not run, or not after the one before them in their process."""
    first: dict[Stage, int] = {}
    for call in calls:
        stage = Stage(call.process, *call.function)
        first[stage] = min(call.at_ns, first.get(stage, call.at_ns))
    wrong: list[Stage] = []
    newest: dict[str, int] = {}
    for stage in stages():
        at_ns = first.get(stage, 0)
        if at_ns <= newest.get(stage.process, 0):
            wrong.append(stage)
        newest[stage.process] = max(at_ns, newest.get(stage.process, 0))
    return wrong


class Observed(NamedTuple):
    """The times of a quiet interval and of an event's way, and the names of the processes."""

    quiet_ns: int
    began_ns: int
    ended_ns: int
    names: dict[str, str]


def journey() -> list[Call]:
    """Return the calls of one event on its way, without those of a time without events."""
    with tempfile.TemporaryDirectory() as directory:
        calls = Path(directory, "calls")
        calls.mkdir()
        seen = asyncio.run(_observe(Path(directory, "data"), calls))
        recorded = [
            call
            for path in calls.iterdir()
            if path.name in seen.names
            for call in _calls(path, seen.names[path.name])
        ]
    quiet = {call.function for call in recorded if seen.quiet_ns <= call.at_ns < seen.began_ns}
    return [
        call
        for call in recorded
        if seen.began_ns <= call.at_ns <= seen.ended_ns and call.function not in quiet
    ]


async def _observe(data_dir: Path, calls: Path) -> Observed:
    async with _traced_system(data_dir, calls) as system:
        record(str(calls), str(ROOT))
        names = {str(system.pid(name)): name for name in ("receiver", "worker", "query")}
        names[str(os.getpid())] = "client"
        async with connect(system.nats_url, environ={}) as client:
            warm = client.session("house", "before")
            await warm.context(max_tokens=8_000, after=(await warm.turn_completed(TURN)).seq)
            await asyncio.sleep(QUIET_SECONDS)
            quiet_ns = time.monotonic_ns()
            await asyncio.sleep(QUIET_SECONDS)
            began_ns = time.monotonic_ns()
            session = client.session("house", "followed")
            seq = (await session.turn_completed(TURN)).seq
            window = await session.context(max_tokens=8_000, after=seq, wait_ms=5_000)
            ended_ns = time.monotonic_ns()
        sys.setprofile(None)
    assert len(window.messages) == len(TURN), "the window does not show the event"
    return Observed(quiet_ns, began_ns, ended_ns, names)


@asynccontextmanager
async def _traced_system(data_dir: Path, calls: Path) -> AsyncGenerator[System, None]:
    environ = {
        "HOUSE_JOURNEY": str(calls),
        "HOUSE_ROOT": str(ROOT),
        "PYTHONPATH": str(Path(__file__).parent / "tracing"),
    }
    async with running_system(data_dir, environ=environ, is_forked=False) as system:
        yield system


def _calls(path: Path, process: str) -> Iterator[Call]:
    for line in path.read_text().splitlines():
        at_ns, file, name = line.split(" ", 2)
        short = file.removeprefix(f"{ROOT}/")
        if short.startswith(("shared/", "services/")) and not name.startswith("<"):
            yield Call(int(at_ns), process, short, name)


def main() -> None:
    """Print what the event passes in each process, and how many files and functions that are."""
    calls = journey()
    is_long = "--functions" in sys.argv
    for process in ("client", "receiver", "worker", "query"):
        functions = {call.function for call in calls if call.process == process}
        _print(process, functions)
        if is_long:
            for path in sorted({path for path, _ in functions}):
                names = " ".join(sorted(name for file, name in functions if file == path))
                sys.stdout.write(f"  {path}: {names}\n")
    _print("one event from publish to window", {call.function for call in calls})
    read = {(stage.path, stage.name) for stage in stages()}
    _print("of these to be read, in CONTRIBUTING.md", read)
    for stage in (wrong := not_in_order(calls)):
        sys.stdout.write(f"  not in this order: {stage.process} {stage.path} {stage.name}\n")
    sys.exit(1 if wrong else 0)


def _print(title: str, functions: set[tuple[str, str]]) -> None:
    files = {path for path, _ in functions}
    sys.stdout.write(f"{title}: {len(files)} files, {len(functions)} functions\n")


if __name__ == "__main__":
    main()
