"""Processes are killed, stopped, frozen and kept from writing: all invariants hold afterwards."""

import secrets
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.chaos.episode import run
from tests.chaos.fault_plan import Kind, Topology

KILLS = 3
FRESH_SEED = 20 * secrets.randbelow(50_000) + 1
"""With such a seed the long run, too, has neither a model nor older code."""


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
@pytest.mark.parametrize(
    ("topology", "seed"),
    [(Topology.SQLITE, 3), (Topology.POSTGRES, FRESH_SEED)],
    ids=list(Topology)[:2],
)
async def test_whatever_is_killed_every_law_holds_afterwards(
    topology: Topology, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with TemporaryDirectory(prefix="turnfold-chaos-", ignore_cleanup_errors=True) as made:
        told, _ = await run(Path(made), topology, seed=seed, kills=KILLS)

    replay = (
        f"python -m tests.chaos --seed {seed} --topology {topology} --kills {KILLS} --each {KILLS}"
    )
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
