"""Change the code in random places and count the changes that no test reports: `python -m tests.mutants [--mutants N] [--seed N]`."""

import argparse
import json
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.mutants.mutants import Mutant, read_mutants, sample
from tests.mutants.running import Covering, Outcome, Suite, copy_tree, covering, run_mutant

ROOT = Path(__file__).parents[2]
PACKAGES = ("shared/turnfold/core", "shared/turnfold/operations", "shared/turnfold/store")
EQUIVALENT = Path(__file__).parent / "equivalent.toml"
GOAL = 0.9
COVERING_SECONDS = 3_600

Records = dict[str, dict[str, Any]]
"""What became of mutants, by their ids."""
Reasons = dict[str, str]
"""Why mutants change nothing, by their ids."""


def main() -> None:
    """Run what is left of the sample, show what survived, and exit with 1 below the goal."""
    parser = argparse.ArgumentParser(
        prog="tests.mutants", description="Mutants of the core, the operations and the store."
    )
    parser.add_argument("--mutants", type=int, default=300, help="how many (default: 300)")
    parser.add_argument("--seed", type=int, default=1, help="other mutants")
    parser.add_argument(
        "--processes", type=int, default=1, help="how many run at once (default: 1)"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=ROOT / "build" / "mutants",
        help="what is measured and found; a second run goes on",
    )
    parser.add_argument(
        "--only", default="", help="mutants of paths and functions that hold this text"
    )
    chosen = parser.parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=160)

    commit = _git("rev-parse", "HEAD")
    if _git("status", "--porcelain", "--", "shared", "services", "migrations", "tests"):
        console.print("mutants: what is not committed is not seen; commit it first", style="yellow")
    folder: Path = chosen.folder
    trees = [folder / f"tree-{number}" for number in range(chosen.processes)]
    for tree in trees:
        copy_tree(ROOT, commit, tree)
    everything = [
        mutant
        for path in _paths(trees[0])
        for mutant in read_mutants(trees[0], path, folder / "places")
    ]
    named = [mutant for mutant in everything if chosen.only in f"{mutant.path} {mutant.function}"]
    if not named:
        known = sorted({mutant.path for mutant in everything})
        parser.error(
            f"no path and no function with mutants holds {chosen.only!r}; the paths: {', '.join(known)}"
        )
    wanted = sample(named, chosen.mutants, chosen.seed)
    console.print(f"{commit[:8]}: looking which tests execute which lines")
    suite = Suite.of(ROOT, commit)
    tests = covering(
        trees[0], suite, folder / "covering", processes=chosen.processes, seconds=COVERING_SECONDS
    )
    reasons = _equivalent(everything, console)
    file = folder / f"results-{chosen.seed}.jsonl"
    records, survivors = _records(
        file, {mutant.id: suite.hash_of(tests.tests(mutant)) for mutant in wanted}
    )
    left = [mutant for mutant in wanted if mutant.id not in records and mutant.id not in reasons]
    # A survivor of an earlier run takes longest: it passes all its tests again, unless one is new.
    left.sort(key=lambda mutant: mutant.id in survivors)
    console.print(
        f"{len(everything)} mutants, {len(wanted)} in the sample, {len(left)} left to run; results are in {file}"
    )
    of_id = {mutant.id: mutant for mutant in wanted}
    began = time.monotonic()
    for done, record in enumerate(_run_all(left, tests, trees), start=1):
        record["suite"] = suite.hash_of(tests.tests(of_id[record["id"]]))
        records[record["id"]] = record
        with file.open("a") as lines:
            lines.write(json.dumps(record) + "\n")
        if record["outcome"] not in (Outcome.KILLED, Outcome.TIMEOUT):
            console.print(
                f"{done} of {len(left)}: {record['outcome']}: {record['name']}",
                markup=False,
                soft_wrap=True,
            )
        elif done % 25 == 0:
            console.print(f"{done} of {len(left)} after {time.monotonic() - began:.0f} s")
    sys.exit(0 if _show(wanted, records, reasons, console) >= GOAL else 1)


def _paths(tree: Path) -> Sequence[str]:
    return sorted(
        str(file.relative_to(tree))
        for package in PACKAGES
        for file in (tree / package).rglob("*.py")
    )


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", ROOT, *arguments], capture_output=True, check=True, text=True
    ).stdout.strip()


def _equivalent(mutants: Sequence[Mutant], console: Console) -> Reasons:
    """Read the reasons why mutants change nothing, by mutant; an entry that no mutant has any more is told."""
    listed = tomllib.loads(EQUIVALENT.read_text()).get("mutant", []) if EQUIVALENT.exists() else []
    by_change: dict[tuple[str, ...], list[str]] = {}
    for mutant in mutants:
        by_change.setdefault(
            (mutant.path, mutant.function, mutant.source, mutant.before, mutant.after), []
        ).append(mutant.id)
    reasons: Reasons = {}
    for entry in listed:
        ids = by_change.get(
            tuple(entry[name] for name in ("path", "function", "source", "before", "after")), []
        )
        if not ids:
            console.print(
                f"equivalent.toml: no mutant is like this any more: {entry['path']}: {entry['before']}",
                style="yellow",
                markup=False,
            )
        for name in ids:
            reasons[name] = str(entry["reason"])
    return reasons


def _records(file: Path, suites: Mapping[str, str]) -> tuple[Records, set[str]]:
    """Read earlier results: those that still hold, and the ids of survivors to be run again because their tests or the code changed."""
    latest: Records = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        record = json.loads(line)
        latest[record["id"]] = record
    dead = (Outcome.KILLED, Outcome.TIMEOUT, Outcome.INVALID)
    records = {
        name: one
        for name, one in latest.items()
        if one["outcome"] in dead
        or (one["outcome"] != Outcome.UNDECIDED and one["suite"] == suites.get(name))
    }
    return records, latest.keys() - records.keys()


def _run_all(
    mutants: Sequence[Mutant], tests: Covering, trees: Sequence[Path]
) -> Iterator[dict[str, Any]]:
    free: SimpleQueue[Path] = SimpleQueue()
    for tree in trees:
        free.put(tree)

    def run(mutant: Mutant) -> dict[str, Any]:
        tree = free.get()
        try:
            names = tests.tests(mutant)
            expected = sum(tests.seconds[name] for name in names)
            began = time.monotonic()
            outcome, by = run_mutant(tree, mutant, names, seconds=expected)
        finally:
            free.put(tree)
        return {
            "id": mutant.id, "name": str(mutant), "source": mutant.source, "before": mutant.before, "after": mutant.after, "outcome": outcome,
            "by": by, "tests": len(names), "expected": round(expected, 1), "seconds": round(time.monotonic() - began, 1),
        }  # fmt: skip

    with ThreadPoolExecutor(len(trees)) as pool:
        yield from pool.map(run, mutants)


def _show(wanted: Sequence[Mutant], records: Records, reasons: Reasons, console: Console) -> float:
    """Print the table, and every mutant that no test reports; the share of those that change anything and were reported."""
    counts: Counter[str] = Counter(
        "equivalent" if mutant.id in reasons else records[mutant.id]["outcome"] for mutant in wanted
    )
    by_outcome = {outcome: counts[outcome] for outcome in Outcome}
    killed = by_outcome[Outcome.KILLED] + by_outcome[Outcome.TIMEOUT]
    alive = (Outcome.SURVIVED, Outcome.UNCOVERED, Outcome.UNDECIDED)
    changing = killed + sum(by_outcome[outcome] for outcome in alive)
    table = Table("outcome", "mutants", title="Mutants")
    for name, number in (*by_outcome.items(), ("equivalent", counts["equivalent"])):
        table.add_row(name, str(number))
    console.print(table)
    for mutant in wanted:
        if mutant.id in reasons:
            console.print(
                f"equivalent: {mutant}: {reasons[mutant.id]}", markup=False, soft_wrap=True
            )
        elif records[mutant.id]["outcome"] in alive:
            console.print(
                f"{records[mutant.id]['outcome']}: {mutant}", markup=False, soft_wrap=True
            )
    share = killed / changing if changing else 1.0
    console.print(
        f"{killed} of {changing} that change anything were killed: {share:.1%} (the goal is {GOAL:.0%})"
    )
    return share


if __name__ == "__main__":
    main()
