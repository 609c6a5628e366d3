"""A decided recall block stays the same for a turn, as far as the turn leaves room for it."""

import pytest

from tests.histories import history, user
from turnfold.core.recall.block import write_block
from turnfold.core.recall.material import RecalledMessage, RecallMaterial
from turnfold.operations.query.recall_decisions import RecallDecision
from turnfold.ports.recall import Recollection

BODIES = [user(f"The lantern number {number} stands in the harbor.") for number in range(12)]


def decision() -> RecallDecision:
    messages = history(BODIES).stored.messages
    told = [
        RecalledMessage(message, number, "2026-11-20 10:00", body)
        for number, (message, body) in enumerate(zip(messages, BODIES, strict=True))
    ]
    block = write_block(RecallMaterial(told), 500)
    return RecallDecision(block, Recollection(RecallMaterial(told), indexed_to=12))


@pytest.mark.proves("F2")
def test_a_block_is_shown_whole_then_half_and_then_not_at_all() -> None:
    decided = decision()
    assert decided.block is not None
    whole = decided.block.tokens
    half = whole // 2

    shown = {room: decided.fitting(room) for room in (whole, whole - 1, half, half - 1)}

    assert shown[whole] is decided.block
    assert shown[half - 1] is None
    for room in (whole - 1, half):
        block = shown[room]
        assert block is not None
        assert len(decided.block.positions) > len(block.positions) > 0
        assert block.tokens <= half
    assert shown[whole - 1] == shown[half]
