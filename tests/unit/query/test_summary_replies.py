"""Versions of the summary in windows."""

import json
import sys
from types import FrameType
from typing import Any

import pytest

from turnfold.core.window.rendering.render import Rendered
from turnfold.messages import CompactionId
from turnfold.operations.query.replies import prepared_summary, shown_summary_json
from turnfold.ports.query import StoredSummary


@pytest.mark.proves("L4")
def test_a_summary_that_is_shown_in_part_costs_what_that_part_costs() -> None:
    """L4: its sections, of thousands of values, are no part of such a window."""
    summary = StoredSummary(
        version=3,
        base_version=None,
        kind="structured",
        style="plain",
        model=None,
        text="They met.",
        sections=json.dumps({"sources": list(range(10_000))}),
        ledger=json.dumps(["a.py", "b.py"]),
        tokens=8,
        text_tokens=4,
        cuts="",
        covers_first="e1#0",
        covers_last="e9#0",
        messages_covered=9,
        compaction_id=CompactionId("1"),
        created_at_ms=0,
        last_position=0,
    )
    prepared_summary(summary)
    calls = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        shown = json.loads(shown_summary_json(summary, Rendered((), (), "They met.", ("a.py",))))
    finally:
        sys.setprofile(None)

    assert (shown["ledger"], shown["sections"], shown["trimmed"]) == (["a.py"], {}, True)
    assert calls < 100
