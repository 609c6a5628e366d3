"""Fairness: a hanging model of one agent delays no other, and requests precede background work."""

import os
from pathlib import Path

import pytest

from tests.model_server import running_model_server
from tests.process_table import parts_of
from tests.running_system import rows, running_parts, wait_until
from turnfold.process.scheduling import NICENESS


@pytest.mark.proves("X4", "S7")
async def test_an_agent_whose_model_hangs_leaves_a_place_to_the_others(tmp_path: Path) -> None:
    async with running_model_server() as model:
        model.fault = "hang"
        environ = model.settings | {"TURNFOLD_POLICY__MAX_LIVE_MESSAGES": "20"}
        async with (
            running_parts(tmp_path, environ=environ) as parts,
            parts.running("worker"),
            parts.client(timeout_seconds=30) as client,
        ):
            await client.agent_policy("patient", overrides={"uses_model": False})

            async def turns(agent: str, session: str) -> None:
                for number in range(16):
                    said = [
                        {"role": "user", "content": f"Where is order {number}? {'why ' * 40}"},
                        {"role": "assistant", "content": "It left Ghent."},
                    ]
                    await client.session(agent, session).turn_completed(said)

            for number in range(6):
                await turns("hanging", f"s-{number}")
            await wait_until(lambda: len(model.requests) == 3, seconds=90, told=parts.words)

            await turns("patient", "s")
            await wait_until(
                lambda: rows(
                    parts.database, "SELECT 1 FROM summaries_view WHERE agent_id = 'patient'"
                ),
                told=parts.words,
            )

            waiting = "SELECT count(*) FROM compactions_view WHERE agent_id = 'hanging' AND status = 'pending'"
            assert rows(parts.database, waiting)[0][0] >= 3
            assert len(model.requests) == 3


def niceness_of(pid: int) -> list[int]:
    """How much the threads of a process stand back, its first one first."""
    return [
        os.getpriority(os.PRIO_PROCESS, int(thread.name))
        for thread in sorted(
            Path(f"/proc/{pid}/task").iterdir(), key=lambda thread: int(thread.name)
        )
    ]


async def test_a_worker_stands_back_for_windows_and_for_the_bus(tmp_path: Path) -> None:
    async with (
        running_parts(tmp_path) as parts,
        parts.running("worker") as worker,
        parts.running("query") as query,
    ):
        ours = os.getpriority(os.PRIO_PROCESS, 0)
        main, *others = niceness_of(worker.pid)

        assert main == min(ours + NICENESS, 19)
        # Which of its threads writes does not matter: all were started by the first, but for one that waits for the parent's end.
        assert [niceness for niceness in others if niceness != main] == [ours]
        assert set(niceness_of(query.pid)) == {ours}
        assert set(niceness_of(parts_of(worker.pid)["receiver"])) == {ours}
