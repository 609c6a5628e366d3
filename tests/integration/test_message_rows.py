"""Rows of messages: the columns that most messages leave empty are not written for those."""

import pytest

from turnfold.messages import AgentId, EventId, SessionId, SessionKey, ToolCall
from turnfold.ports.ingest import DecodedEvent, DecodedMessage
from turnfold.store.database.message_rows import PLAIN, PLAIN_CONSTANTS, STORED, add_message_rows

PLAIN_MESSAGE = DecodedMessage(
    "user", 9, 5, 0, 20, 1, 1, False, False, (), "", None, None, None, '{"role": "user"}', "4 hello"
)  # fmt: skip


def event(*messages: DecodedMessage, **fields: bool) -> DecodedEvent:
    key = SessionKey(AgentId("ada"), SessionId("s"))
    told = {"is_truncated": False, "is_error": False, **fields}
    return DecodedEvent(
        7, 1_000, "turn.completed", key, EventId("e"), b"d", None,
        told["is_truncated"], told["is_error"], None, messages,
    )  # fmt: skip


def rows_of(arrival: DecodedEvent) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    plain: list[tuple[object, ...]] = []
    others: list[tuple[object, ...]] = []
    add_message_rows(arrival, 3, plain, others)
    return (
        [dict(zip(PLAIN, row, strict=True)) for row in plain],
        [dict(zip(STORED, row, strict=True)) for row in others],
    )


def test_a_plain_message_leaves_out_what_the_statement_writes_for_it() -> None:
    plain, others = rows_of(event(PLAIN_MESSAGE))

    assert not others
    (row,) = plain
    assert {**row, **PLAIN_CONSTANTS}.keys() == set(STORED)
    assert (row["sid"], row["body"], row["gist"]) == (3, '{"role": "user"}', "4 hello")


@pytest.mark.parametrize(
    ("changed", "column", "stored"),
    [
        ({"is_meta": True}, "is_meta", True),
        ({"is_irregular": True}, "is_irregular", True),
        ({"is_error": True}, "is_error", True),
        ({"calls": (ToolCall(0, "c", "ls", 3),)}, "calls", '[[0, "c", "ls", 3, null]]'),
        ({"tool_call_id": "c"}, "tool_call_id", "c"),
        ({"content_digest": b"x"}, "content_digest", b"x"),
        ({"cuts": "1"}, "cuts", "1"),
        ({"original": "1"}, "original", "1"),
        ({"element": 2}, "element", 2),
    ],
)
def test_a_message_with_any_other_value_is_written_with_all_columns(
    changed: dict[str, object], column: str, stored: object
) -> None:
    plain, others = rows_of(event(PLAIN_MESSAGE._replace(**changed)))  # type: ignore[arg-type]

    assert not plain
    assert others[0][column] == stored


@pytest.mark.parametrize("name", ["is_truncated", "is_error"])
def test_what_an_event_says_of_all_its_messages_is_written(name: str) -> None:
    plain, others = rows_of(event(PLAIN_MESSAGE, **{name: True}))

    assert not plain
    assert others[0][name] is True


def test_a_result_is_written_with_the_call_of_its_event_that_it_answers() -> None:
    call = PLAIN_MESSAGE._replace(role="assistant", calls=(ToolCall(0, "c", "ls", 3),))
    result = PLAIN_MESSAGE._replace(role="tool", tool_call_id="c", content_digest=b"x")

    _, (called, answered, copy) = rows_of(event(call, result, result))

    assert (called["answers_position"], called["answers_slot"]) == (None, None)
    assert (answered["answers_position"], answered["answers_slot"]) == (called["position"], 0)
    assert (answered["is_copy"], copy["is_copy"]) == (False, True)


def test_every_column_with_a_constant_has_a_test_of_another_value() -> None:
    tested = {
        "is_meta", "is_irregular", "is_error", "calls", "tool_call_id", "content_digest", "cuts",
        "original", "element", "is_truncated", "answers_position", "answers_slot", "is_copy",
    }  # fmt: skip

    assert tested == PLAIN_CONSTANTS.keys()
