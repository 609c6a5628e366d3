"""Batches of decoded deliveries that are stored in one transaction."""

import json

import pytest

from tests.histories import counter
from turnfold.operations.ingest.decode import DecodedBatch, Delivery, decode_batch


def delivery(seq: int, payload: bytes) -> Delivery:
    return Delivery("turn.completed", payload, seq, 1_700_000_000_000)


@pytest.mark.proves("L1", "I5")
def test_batches_that_are_stored_together_keep_all_events_and_the_bytes_of_each() -> None:
    """The database may refuse a valid event, and its dead letter needs the bytes."""
    said = [{"role": "user", "content": "Hello."}]
    event = {"event_id": "e1", "agent_id": "support", "session_id": "user-42", "messages": said}
    valid, broken = json.dumps(event).encode(), b"{"
    together = DecodedBatch([], [], {})

    for deliveries in ([delivery(1, valid)], [delivery(2, broken)]):
        together.add(decode_batch(deliveries, count=counter()))

    assert [arrival.stream_seq for arrival in together.arrivals] == [1]
    assert [dead.stream_seq for dead in together.dead] == [2]
    assert together.payloads == {1: valid, 2: broken}
