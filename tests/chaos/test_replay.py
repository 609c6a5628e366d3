"""Recorded conversations through the whole system, with every message accounted for."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.running_system import rows, running_system
from turnfold.cli.recordings import Recording, load_recordings

DATA = os.environ.get("REPLAY_DATA")
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.jsonl"))
"""With `REPLAY_DATA` set to a folder, the conversations in it are replayed instead."""


def files() -> list[str]:
    """What is replayed."""
    folder = [*Path(DATA).rglob("*.jsonl"), *Path(DATA).rglob("*.jsonl.gz")] if DATA else []
    return [str(path) for path in (sorted(folder) or EXAMPLES)]


def unaccounted(database: Path, recordings: list[Recording]) -> list[str]:
    """Conversations of which something is missing, doubled, out of order, altered or in no state."""
    stored: dict[tuple[str, ...], list[Any]] = {}
    states: Counter[tuple[str, ...]] = Counter()
    statement = (
        "SELECT s.agent_id, s.session_id, m.body, m.original, v.state FROM messages m JOIN sessions s USING (sid)"
        " JOIN messages_view v ON v.agent_id = s.agent_id AND v.session_id = s.session_id AND v.position = m.position"
        " ORDER BY s.sid, m.position"
    )
    for row in rows(database, statement):
        stored.setdefault((row["agent_id"], row["session_id"]), []).append(json.loads(row["body"]))
        states[row["agent_id"], row["session_id"]] += row["state"] in ("live", "pending", "covered")
    faults = [
        f"{one.key.session_id}: altered"
        for one in recordings
        if stored.get(tuple(one.key)) != list(one.conversation.messages)
    ]
    faults += [
        f"{one.key.session_id}: stateless"
        for one in recordings
        if states[tuple(one.key)] != len(one.conversation.messages)
    ]
    told: dict[tuple[str, ...], tuple[int, ...]] = {
        (row["agent_id"], row["session_id"]): tuple(row)[2:] for row in rows(database, COUNTERS)
    }
    for one in recordings:
        total, live, pending, covered = told[tuple(one.key)]
        if total != len(one.conversation.messages) or live + pending + covered != total:
            faults.append(
                f"{one.key.session_id}: {live} live, {pending} pending and {covered} covered of {total}"
            )
    return faults


COUNTERS = "SELECT agent_id, session_id, messages_total, messages_live, messages_pending, messages_covered FROM sessions_view"


@pytest.mark.timeout(120 if DATA is None else 1_800)
@pytest.mark.proves("L1", "L2", "L3", "I2", "O3")
async def test_a_replay_of_everything_leaves_every_message_in_one_state_and_as_it_was(
    tmp_path: Path,
) -> None:
    recordings = load_recordings(files())
    async with running_system(
        tmp_path / "data", environ={"TURNFOLD_LOG_LEVEL": "warning"}
    ) as system:
        replayed = await system.command(
            "replay", *files(), "--json", seconds=100 if DATA is None else 1_700
        )
        verified = await system.command("audit", "verify")

        assert replayed.status == 0, replayed.err
        assert sum(row["messages"] for row in replayed.rows) == sum(
            len(one.conversation.messages) for one in recordings
        )
        assert not unaccounted(system.database, recordings)
        assert not rows(system.database, "SELECT * FROM dead_letters")
        assert verified.status == 0, verified.err
