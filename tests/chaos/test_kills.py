"""Processes are killed, stopped, frozen and kept from writing: all invariants hold afterwards."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.chaos.episode import run
from tests.chaos.fault_plan import Kind, Topology

SEED = KILLS = 3
"""A step of .ci/run kills as many of a system with PostgreSQL, each time others; `make chaos` kills a thousand."""


@pytest.mark.timeout(300)
@pytest.mark.proves(
    "L1",
    "L2",
    "L3",
    "L5",
    "L6",
    "L7",
    "L10",
    "L12",
    "W5",
    "A1",
    "A3",
    "S1",
    "O2",
    "C48",
    "C49",
    "C50",
)
async def test_whatever_is_killed_every_law_holds_afterwards(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with TemporaryDirectory(prefix="turnfold-chaos-", ignore_cleanup_errors=True) as made:
        told, _ = await run(Path(made), Topology.SQLITE, seed=SEED, kills=KILLS)

    replay = f"python -m tests.chaos --seed {SEED} --topology {Topology.SQLITE} --kills {KILLS} --each {KILLS}"
    with capsys.disabled():
        sys.stderr.write(
            f"\n{replay}: {dict(told.done)}, {told.events} events, {told.fresh_windows} fresh windows of {told.windows}\n"
        )
    assert not told.faults, "\n".join([replay, *told.faults])
    assert (
        KILLS
        <= told.kills
        == sum(times for name, times in told.done.items() if name.startswith(Kind.KILL))
    )
