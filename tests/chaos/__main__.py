"""Inject faults into whole systems until enough processes have been killed.

`python -m tests.chaos [--seed S] [--kills N] [--topology sqlite|postgres|cluster] [--minutes M]
[--no-strangers]` runs episodes one after another, each a system with its own seed. A run continues
the figures of `build/chaos.jsonl`; delete the file to start again. A failed episode keeps logs,
database and answers (`readings.jsonl`) and prints the command that repeats its faults.
"""

import argparse
import asyncio
import json
import secrets
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import count, cycle
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.chaos.episode import run
from tests.chaos.fault_plan import Topology
from tests.previous_release import PREVIOUS, NoHistory, code_of

EACH = 30
MODEL_EVERY = 4
"""One episode in so many has a model, which is slow to load and fails now and then."""
MIXED_EVERY = 5
"""One in so many has services of yesterday beside those of today, where their code is to be had."""


def main() -> None:
    """Run, print what was found, and exit with 1 where a law was broken or too little was killed."""
    parser = argparse.ArgumentParser(
        prog="tests.chaos",
        description="Kills, stops, freezes and fills a system, and checks the laws.",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=None,
        help="of the first episode; the next has the next (default: a fresh one)",
    )
    parser.add_argument(
        "--kills", type=int, default=1_000, help="processes to kill in all (default: 1,000)"
    )
    parser.add_argument(
        "--each", type=int, default=EACH, help=f"processes to kill in an episode (default: {EACH})"
    )
    parser.add_argument(
        "--topology",
        choices=list(Topology),
        action="append",
        help="take turns among these alone (default: all)",
    )
    parser.add_argument(
        "--minutes", type=float, default=120.0, help="begin no episode after so long (default: 120)"
    )
    parser.add_argument(
        "--figures", type=Path, help="a file of earlier episodes to go on from, and to add to"
    )
    parser.add_argument(
        "--strangers",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="have somebody reply to everything on the bus (default: yes)",
    )
    chosen = parser.parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=140)
    told = _earlier(chosen.figures)
    deadline = monotonic() + 60 * chosen.minutes
    first = secrets.randbelow(1_000_000) if chosen.seed is None else chosen.seed
    for seed, topology in _episodes(first, chosen.topology or list(Topology)):
        if _kills(told) >= chosen.kills or monotonic() > deadline:
            break
        told.append(
            _episode(
                seed,
                topology,
                min(chosen.each, chosen.kills - _kills(told)),
                console,
                strangers=chosen.strangers,
            )
        )
        if chosen.figures is not None:
            chosen.figures.parent.mkdir(parents=True, exist_ok=True)
            with chosen.figures.open("a") as file:
                file.write(json.dumps(told[-1]) + "\n")
        console.print(f"{_kills(told):,} of {chosen.kills:,} killed", highlight=False)
    _show(told, console)
    failed = [one for one in told if one["faults"]]
    for one in failed:
        console.print(
            f"\n{_command(one)}", *one["faults"], sep="\n  ", markup=False, soft_wrap=True
        )
    sys.exit(bool(failed) or _kills(told) < chosen.kills)


def _episodes(first: int, topologies: Sequence[Topology]) -> Iterator[tuple[int, Topology]]:
    return zip(count(first), cycle([Topology(one) for one in topologies]), strict=False)


def _episode(
    seed: int, topology: Topology, kills: int, console: Console, *, strangers: bool
) -> dict[str, Any]:
    """The figures of one episode; what a broken law, or the driver, left is kept to be looked at."""
    has_model = seed % MODEL_EVERY == 0
    directory = Path(tempfile.mkdtemp(prefix=f"turnfold-chaos-{topology}-{seed}-"))
    try:
        yesterday = _yesterday(directory, console) if seed % MIXED_EVERY == 0 else None
        episode = run(
            directory,
            topology,
            seed=seed,
            kills=kills,
            has_model=has_model,
            yesterday=yesterday,
            has_strangers=strangers,
        )
        told_here, history = asyncio.run(episode)
    except Exception:
        console.print(
            f"the driver failed; {directory} is kept; replay: {_command({'seed': seed, 'topology': topology, 'kills': kills})}"
        )
        raise
    told = asdict(told_here)
    if told["faults"]:
        (directory / "readings.jsonl").write_text(
            "".join(json.dumps(asdict(one)) + "\n" for one in history.published.readings)
        )
        console.print(
            f"{len(told['faults'])} faults, the first: {told['faults'][0]}; {directory} is kept",
            markup=False,
        )
    else:
        shutil.rmtree(directory, ignore_errors=True)
    figures = {
        name: value for name, value in told.items() if name != "faults" and value not in ({}, 0)
    }
    console.print(json.dumps(figures), markup=False, highlight=False, soft_wrap=True)
    return told


def _yesterday(directory: Path, console: Console) -> Mapping[str, str] | None:
    """The environment of older code; None, and a word of it, where that is not to be had."""
    try:
        return code_of(PREVIOUS, directory / "yesterday")
    except NoHistory as error:
        console.print(f"no older code takes part: {error}", markup=False, soft_wrap=True)
        return None


def _command(one: Mapping[str, Any]) -> str:
    """What deals the same faults again."""
    kills = one["kills"]
    strangers = "" if one.get("foreign_replies", 1) else " --no-strangers"
    return f"python -m tests.chaos --seed {one['seed']} --topology {one['topology']} --kills {kills} --each {kills}{strangers}"


def _earlier(figures: Path | None) -> list[dict[str, Any]]:
    if figures is None or not figures.exists():
        return []
    return [json.loads(line) for line in figures.read_text().splitlines()]


def _kills(told: Sequence[Mapping[str, Any]]) -> int:
    return sum(one["kills"] for one in told)


def _show(told: Sequence[Mapping[str, Any]], console: Console) -> None:
    table = Table("", *Topology, "all", title="what was done, and what was checked")
    columns = [[one for one in told if one["topology"] == topology] for topology in Topology] + [
        list(told)
    ]
    names = sorted({name for one in told for name in one["done"]})
    done = [sum((Counter(one["done"]) for one in column), Counter[str]()) for column in columns]
    table.add_row("episodes", *(str(len(column)) for column in columns))
    for name in names:
        table.add_row(name, *(f"{counted[name]:,}" for counted in done))
    for name in (
        "kills",
        "events",
        "copies",
        "windows",
        "fresh_windows",
        "pages",
        "foreign_replies",
        "seconds",
    ):
        table.add_row(
            name, *(f"{sum(one.get(name, 0) for one in column):,.0f}" for column in columns)
        )
    table.add_row(
        "violations", *(str(sum(len(one["faults"]) for one in column)) for column in columns)
    )
    console.print(table)


if __name__ == "__main__":
    main()
