"""The simulated cell works at a small size: whatever its agents publish is stored, and its figures are complete."""

from pathlib import Path

from tests.benchmarks.cell import simulate
from tests.benchmarks.cell_figures import figures
from tests.benchmarks.cell_texts import LENGTHS, SHARES, CellSettings, length

SMALL = CellSettings(
    agents=6,
    services=1,
    turns_a_second=8.0,
    minutes=0.1,
    pause_seconds=0.5,
    step_seconds=0.1,
    # An eviction is due before the first turn ends.
    past_turns=(12, 12),
    model_seconds=0.1,
    concurrency=2,
    sample_seconds=1.0,
    is_durable=False,
)


async def test_a_small_cell_loses_nothing_and_tells_what_it_saw(tmp_path: Path) -> None:
    run = await simulate(tmp_path, SMALL)

    agents = run.agents
    assert agents["messages"] == 4 * agents["turns"]
    assert agents["windows"] == 2 * agents["turns"]
    assert not [what for what in agents if "failed" in what]
    assert run.stored_messages == run.filled_messages + agents["messages"]
    assert (run.dead_letters, run.unstored_events, run.open_jobs) == (0, 0, 0)
    assert run.audited
    assert list(run.broken_audits) == []
    assert run.samples[-1]["evictions"] > 0
    told = {figure.what for figure in figures(run)}
    assert {
        "window, p99",
        "of its limit: all cores",
        "events that were not stored yet, p99",
    } <= told


def test_lengths_are_those_of_the_distribution() -> None:
    for lengths in LENGTHS.values():
        found = [length(lengths, share) for share in SHARES]

        assert found == list(lengths)
        assert found == sorted(found)
