"""Which messages a program may take for a notice."""

import json

import pytest

import turnfold

STREAM = "TURNFOLD_NOTICES"
SUBJECT = "summary.updated.support.user%2E42"
IDS = {"agent_id": "support", "session_id": "user.42"}


def test_a_notice_of_the_stream_is_read() -> None:
    """X5."""
    notice = turnfold.notice_of(STREAM, SUBJECT, json.dumps(IDS | {"version": 3}).encode())

    assert notice == turnfold.ReceivedNotice(
        "summary.updated", "support", "user.42", IDS | {"version": 3}
    )


@pytest.mark.parametrize(
    ("stream", "subject", "payload"),
    [
        (None, SUBJECT, IDS),
        ("TURNFOLD_EVENTS", SUBJECT, IDS),
        (STREAM, None, IDS),
        (STREAM, "", IDS),
        (STREAM, "summary.updated", IDS),
        (STREAM, "support.user%2E42", IDS),
        (STREAM, "summary.deleted.support.user%2E42", IDS),
        (STREAM, f"x.{SUBJECT}", IDS),
        (STREAM, f"{SUBJECT}.x", IDS),
        (STREAM, "summary.updated.other.user%2E42", IDS),
        (STREAM, "summary.updated.support.user-42", IDS),
        (STREAM, "summary.updated.support.user%2e42", IDS),
        (STREAM, "summary.updated.support.*", IDS),
        (STREAM, SUBJECT, IDS | {"agent_id": "other"}),
        (STREAM, SUBJECT, IDS | {"session_id": None}),
        (STREAM, SUBJECT, {"version": 3}),
        (STREAM, SUBJECT, [IDS]),
        (STREAM, SUBJECT, "text"),
    ],
)
def test_anything_else_is_no_notice(
    stream: str | None, subject: str | None, payload: object
) -> None:
    """X5, C70: it has to come from the stream, and the ids in it and in its subject have to agree."""
    assert turnfold.notice_of(stream, subject, json.dumps(payload).encode()) is None


@pytest.mark.parametrize("payload", [b"", b"-", b"\xff", b"{", b"[" * 100_000])
def test_a_payload_that_is_no_json_is_no_notice(payload: bytes) -> None:
    """X5."""
    assert turnfold.notice_of(STREAM, SUBJECT, payload) is None
