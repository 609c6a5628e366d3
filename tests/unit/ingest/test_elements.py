"""Limits of events whose elements are no chat messages."""

import json
from typing import Any

import pytest

from tests.histories import counter
from tests.shaped import decoded
from turnfold.contracts.events import EventLimits
from turnfold.core.history.pairing import CallPosition, ResultPosition, match_results
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


@pytest.mark.proves("I1", "L5")
@pytest.mark.parametrize("shape", ["anthropic", "responses"])
def test_results_that_differ_in_their_media_alone_are_no_copies(shape: str) -> None:
    """Ids may be used again, and a result may come before its call."""

    def result(data: str) -> list[dict[str, Any]]:
        block = {"type": "screen", "source": {"type": "base64", "data": data}}
        if shape == "responses":
            return [{"type": "function_call_output", "call_id": "c1", "output": [block]}]
        told = {"type": "tool_result", "tool_use_id": "c1", "content": [block]}
        return [{"role": "user", "content": [told]}]

    def digest(seq: int, data: str) -> bytes:
        (message,) = decoded(seq, result(data), shape).messages
        assert message.content_digest is not None
        return message.content_digest

    results = [ResultPosition(2, digest(2, "UE5H")), ResultPosition(3, digest(3, "R0lG"))]
    matches = match_results([CallPosition(1, 0), CallPosition(4, 0)], results)

    assert [match.answers and match.answers.position for match in matches.values()] == [1, 4]
    assert digest(5, "UE5H") == results[0].digest
