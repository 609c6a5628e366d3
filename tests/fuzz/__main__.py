"""Feed malformed input to every reader of outside input, then to the services.

`python -m tests.fuzz [--inputs N] [--seed N] [--only NAME] [--number N]` changes, cuts, nests and
splices bytes. Each reader (`decoders`) must return a valid value or its documented error. A failure prints the command that
repeats it. On SQLite and PostgreSQL, `make fuzz` then calls every HTTP operation with allowed and
forbidden input, sends noise to every bus subject, and searches for one agent's secrets in answers
to twenty agents with similar ids.
"""

import argparse
import sys
import time
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from tests.fuzz.decoders import DECODERS
from tests.fuzz.running import Tried, all_tried, named, tried

SHOWN_FAILURES = 10


def main() -> None:
    """Try, print the figures, and exit with 1 where something came out that is not declared."""
    parser = argparse.ArgumentParser(
        prog="tests.fuzz",
        description="Mutated inputs for every part that reads what comes from outside.",
    )
    parser.add_argument(
        "--inputs",
        type=int,
        default=200_000,
        help="how many inputs, all decoders together (default: 200,000)",
    )
    parser.add_argument("--seed", type=int, default=1, help="other inputs")
    parser.add_argument(
        "--processes", type=int, default=1, help="how many processes try them (default: 1)"
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=[decoder.name for decoder in DECODERS],
        default=[],
        help="this decoder alone",
    )
    parser.add_argument(
        "--number",
        type=int,
        help="the input of this number alone, shown, as a failure names it; with --only",
    )
    chosen = parser.parse_args()
    if chosen.number is not None and len(chosen.only) != 1:
        parser.error("--number takes one --only")
    console = Console() if sys.stdout.isatty() else Console(width=110)
    began = time.perf_counter()
    if chosen.number is not None:
        console.print(
            repr(named(chosen.only[0]).input(chosen.seed, chosen.number)),
            markup=False,
            soft_wrap=True,
        )
        found = {chosen.only[0]: tried(named(chosen.only[0]), [chosen.number], seed=chosen.seed)}
    else:
        found = {}
        for batch in all_tried(
            chosen.inputs, seed=chosen.seed, processes=chosen.processes, only=chosen.only
        ):
            found.setdefault(batch.decoder, Tried(batch.decoder)).add(batch)
    failed = sum(len(one.failures) for one in found.values())
    inputs = sum(one.inputs for one in found.values())
    console.print(
        f"seed {chosen.seed}: {inputs:,} inputs in {time.perf_counter() - began:,.0f} s, {failed:,} failures"
    )
    console.print(_table(found.values()))
    for one in found.values():
        for number, fault in one.failures[:SHOWN_FAILURES]:
            console.print(
                f"\n--seed {chosen.seed} --only {one.decoder} --number {number}: {fault[:500]}",
                markup=False,
            )
    sys.exit(1 if failed else 0)


def _table(found: Iterable[Tried]) -> Table:
    table = Table("decoder", "inputs", "failures", "µs each", "slowest, ms", "memory grew, MiB")
    for one in found:
        slowest = f"{one.slowest[0] * 1e3:.1f} (number {one.slowest[1]})"
        each = f"{one.seconds / max(one.inputs, 1) * 1e6:,.0f}"
        table.add_row(
            one.decoder,
            f"{one.inputs:,}",
            str(len(one.failures)),
            each,
            slowest,
            f"{one.grown_bytes / 2**20:.1f}",
        )
    return table


if __name__ == "__main__":
    main()
