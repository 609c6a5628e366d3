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
    together = DecodedBatch.empty()

    for deliveries in ([delivery(1, valid)], [delivery(2, broken)]):
        together.add(decode_batch(deliveries, count=counter()))

    assert [event.stream_seq for event in together.events] == [1]
    assert [dead.stream_seq for dead in together.dead] == [2]
    assert together.payloads == {1: valid, 2: broken}


@pytest.mark.proves("I5")
@pytest.mark.parametrize(
    ("payload", "detail"),
    [
        (b"", "Expecting value, at character 0"),
        (b"{", "Expecting property name enclosed in double quotes, at character 1"),
        (b'{"a":}', "Expecting value, at character 5"),
        (b'{"a": 1} x', "Extra data, at character 9"),
        (b'{"a": "\xff"}', "not UTF-8, at byte 7"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b"[1]", "an event must be a JSON object"),
    ],
)
def test_a_dead_letter_says_where_its_event_is_broken(payload: bytes, detail: str) -> None:
    (dead,) = decode_batch([delivery(1, payload)], count=counter()).dead

    assert dead.detail == detail
