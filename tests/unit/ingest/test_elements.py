"""Limits of events whose elements are no chat messages."""

import json

import pytest

from tests.histories import counter
from turnfold.contracts.events import EventLimits
from turnfold.errors import BadEvent
from turnfold.operations.ingest.decode import Delivery, decode_event


def results(number: int) -> list[dict[str, str]]:
    return [
        {"type": "tool_result", "tool_use_id": f"c{n}", "content": "done"} for n in range(number)
    ]


def delivery(number: int) -> Delivery:
    """One message of the Anthropic API with this many results: a chat message for each."""
    event = {
        "event_id": "e1",
        "agent_id": "a",
        "session_id": "s",
        "shape": "anthropic",
        "messages": [{"role": "user", "content": results(number)}],
    }
    return Delivery("turn.completed", json.dumps(event).encode(), 1, 0)


@pytest.mark.proves("G1")
def test_results_of_one_message_count_as_the_messages_that_they_become() -> None:
    limits = EventLimits(messages=3)

    stored = decode_event(delivery(3), count=counter(), limits=limits)
    with pytest.raises(BadEvent, match="4 messages; at most 3 are allowed") as refused:
        decode_event(delivery(4), count=counter(), limits=limits)

    assert len(stored.messages) == 3
    assert refused.value.reason == "too_many_messages"
