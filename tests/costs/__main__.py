"""Search for inputs whose cost grows faster than their size.

`python -m tests.costs [--cases N] [--seed N] [--kind KIND] [--number N] [--only TEXT]` doubles
generated texts, queries, message lists, events and sessions. Four times the size may take at most
8.8 times the processor time (n log n: 5.4; quadratic: 16).
"""

import argparse
import sys
import time

from rich.console import Console

from tests.costs.cases import KINDS, case, tried
from tests.costs.readers import READERS


def main() -> None:
    """Measure generated cases, print those that grew too fast, and exit with 1 if there are any."""
    parser = argparse.ArgumentParser(
        prog="tests.costs", description="Processor time of generated inputs at sizes that double."
    )
    parser.add_argument(
        "--cases", type=int, default=500, help="how many cases of each kind (default: 500)"
    )
    parser.add_argument("--seed", type=int, default=1, help="other cases")
    parser.add_argument(
        "--kind",
        choices=sorted(KINDS),
        action="append",
        default=[],
        help="cases of this kind alone",
    )
    parser.add_argument(
        "--number", type=int, help="the case of this number alone, as a failure names it"
    )
    parser.add_argument("--only", default="", help="cases whose name holds this text alone")
    parser.add_argument(
        "--least-ms",
        type=float,
        default=5.0,
        help="the least processor time that is compared (default: 5)",
    )
    parser.add_argument(
        "--seconds", type=float, default=3_600.0, help="stop after this time (default: 3,600)"
    )
    chosen = parser.parse_args()
    console = Console(width=2_000, highlight=False, markup=False)
    began = time.monotonic()
    cases = measured = faults = 0
    for number in range(chosen.cases) if chosen.number is None else [chosen.number]:
        for kind in chosen.kind or KINDS:
            if (
                time.monotonic() - began > chosen.seconds
                or chosen.only not in case(kind, chosen.seed, number).name
            ):
                continue
            found = tried(kind, chosen.seed, number, least_seconds=chosen.least_ms / 1e3)
            cases += 1
            measured += found.growth is not None
            faults += found.fault is not None
            if found.fault is not None or chosen.number is not None:
                console.print(
                    f"--seed {chosen.seed} --kind {kind} --number {number}: {found.name}\n    {found.fault or found.growth}"
                )
    if chosen.only and not cases:
        readers = ", ".join([reader.name for reader in READERS])
        parser.error(
            f"no case is named like {chosen.only!r}; there are cases of each kind ({', '.join(KINDS)}), and of these readers of texts: {readers}"
        )
    console.print(
        f"{cases} cases, {measured} long enough to be measured, {faults} grew too fast, {time.monotonic() - began:.0f} s"
    )
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
