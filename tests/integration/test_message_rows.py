"""Rows of messages: the fields of the event, and the pairs of calls and results within it."""

import pytest

from turnfold.messages import AgentId, EventId, SessionId, SessionKey, ToolCall
from turnfold.ports.ingest import DecodedEvent, DecodedMessage
from turnfold.store.database.message_rows import STORED, add_message_rows

MESSAGE = DecodedMessage(
    "user", 9, 5, 0, 20, 1, 1, False, False, (), "", None, None, None, '{"role": "user"}', "4 hello"
)  # fmt: skip


def event(*messages: DecodedMessage, **fields: bool) -> DecodedEvent:
    key = SessionKey(AgentId("ada"), SessionId("s"))
    told = {"is_truncated": False, "is_error": False, **fields}
    return DecodedEvent(
        7, 1_000, "turn.completed", key, EventId("e"), b"d", None,
        told["is_truncated"], told["is_error"], None, messages,
    )  # fmt: skip


def rows_of(arrival: DecodedEvent) -> list[dict[str, object]]:
    rows: list[tuple[object, ...]] = []
    add_message_rows(arrival, 3, rows)
    return [dict(zip(STORED, row, strict=True)) for row in rows]


@pytest.mark.parametrize("name", ["is_truncated", "is_error"])
def test_what_an_event_says_of_all_its_messages_is_written(name: str) -> None:
    assert [row[name] for row in rows_of(event(MESSAGE, MESSAGE, **{name: True}))] == [True, True]


def test_a_result_is_written_with_the_call_of_its_event_that_it_answers() -> None:
    call = MESSAGE._replace(role="assistant", calls=(ToolCall(0, "c", "ls", 3),))
    result = MESSAGE._replace(role="tool", tool_call_id="c", content_digest=b"x")

    called, answered, copy = rows_of(event(call, result, result))

    assert (called["answers_position"], called["answers_slot"]) == (None, None)
    assert (answered["answers_position"], answered["answers_slot"]) == (called["position"], 0)
    assert (answered["is_copy"], copy["is_copy"]) == (False, True)
