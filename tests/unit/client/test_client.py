"""What the client makes of what it is given and told, before anything travels."""

import copy
import doctest
import json
import pickle
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import turnfold
import turnfold.client.events
import turnfold.transcripts.reading
from turnfold.client import OutgoingEvent, Window, result_event, session_key, turn_event
from turnfold.client.copies import check_duplicate
from turnfold.client.replies import error_from_json
from turnfold.contracts.events import read_event
from turnfold.errors import (
    BadRequest,
    BudgetSpent,
    CannotFit,
    Conflict,
    ContextOverflow,
    NotAllowed,
    RequestError,
    StartError,
    TooLarge,
    TurnfoldError,
    Unavailable,
    UnknownSession,
)
from turnfold.messages import Json
from turnfold.nats_client.acknowledgements import Acknowledgement

KEY = session_key("support", "user.42")


def payload(event: OutgoingEvent) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(event.payload)
    return told


# --- events


@pytest.mark.proves("X2")
def test_an_event_goes_to_the_subject_of_its_session_with_its_own_header() -> None:
    event = turn_event(KEY, [{"role": "user", "content": "hi"}], event_id="e 1")

    assert event.subject == "turn.completed.support.user%2E42"


@pytest.mark.proves("I2")
def test_the_service_reads_what_the_client_writes() -> None:
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1"}],
        "x": "語 \u0000 \u2028",
    }
    event = turn_event(
        KEY,
        [message, {"role": "user", "content": "reminder"}],
        model="gpt-4.1",
        usage={"total_tokens": 7},
        is_meta=True,
        metadata={"truncated": True},
    )

    read = read_event(event.subject, event.payload)

    assert (read.key, read.event_id, read.parsed[0]) == (KEY, event.event_id, message)
    assert (read.model, read.usage, read.metas, read.is_truncated) == (
        "gpt-4.1",
        {"total_tokens": 7},
        (False, True),
        True,
    )


@pytest.mark.parametrize(
    "content", ["text", None, "", [{"type": "text", "text": "x"}], {"rows": [1, 2]}, 4.5, False]
)
def test_a_tool_may_return_any_json(content: Any) -> None:
    event = result_event(KEY, "call_1", content, name="search", is_error=True)

    assert payload(event)["content"] == content
    assert read_event(event.subject, event.payload).is_error


@pytest.mark.proves("I2")
def test_a_lone_surrogate_travels_escaped() -> None:
    event = turn_event(KEY, [{"role": "user", "content": "a\ud800b"}])

    assert payload(event)["messages"][0]["content"] == "a\ud800b"
    assert event.payload.isascii()


def test_what_was_not_given_is_not_sent() -> None:
    event = turn_event(KEY, [{"role": "user", "content": "hi"}])

    assert set(payload(event)) == {"event_id", "agent_id", "session_id", "occurred_at", "messages"}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), {1, 2}, b"bytes"])
def test_what_is_no_json_is_refused_before_it_is_sent(number: Any) -> None:
    with pytest.raises(BadRequest, match="cannot be sent as JSON"):
        result_event(KEY, "call_1", {"value": number})


@pytest.mark.proves("X4")
@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([{"role": "user", "content": "x"}] * 1_001, "at most 1000"),
        ([{"role": "user", "content": "x" * 4_194_304}], "at most 4194304"),
    ],
)
def test_an_event_above_the_limits_is_refused_before_it_is_sent(
    messages: list[dict[str, Any]], told: str
) -> None:
    with pytest.raises(TooLarge, match=told):
        turn_event(KEY, messages)


@pytest.mark.parametrize(
    ("messages", "shape", "told"),
    [
        ([], None, "at least one message"),
        ("Hi.", None, "a list of at least one message"),
        ({"role": "user", "content": "Hi."}, None, "a list of at least one message"),
        (
            [{"role": "user"}, {"content": "hi"}],
            None,
            r"messages\[1\]: a message needs one of the roles",
        ),
        ([{"role": "usr"}], None, "a message needs one of the roles assistant"),
        ([{"type": 1}], "responses", "the type of an item must be a string"),
        ([{"role": "user"}], "gemini", "shape must be one of chat"),
    ],
)
def test_a_turn_that_would_become_a_dead_letter_is_refused(
    messages: Any, shape: Any, told: str
) -> None:
    with pytest.raises(BadRequest, match=told):
        turn_event(KEY, messages, shape=shape)


@pytest.mark.proves("X2")
@pytest.mark.parametrize("identifier", ["", "x" * 257, "a\nb", "a\u0000", "\ud800"])
def test_an_id_that_cannot_be_one_is_refused_by_name(identifier: str) -> None:
    with pytest.raises(BadRequest, match="session_id"):
        session_key("support", identifier)
    with pytest.raises(BadRequest, match="event_id"):
        turn_event(KEY, [{"role": "user"}], event_id=identifier)


def test_event_ids_are_unique_and_sort_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for milliseconds in (1_000, 1_001, 90_000, 1_800_000_000_000):
        monkeypatch.setattr("time.time_ns", lambda now=milliseconds: now * 1_000_000)
        made += [turnfold.new_event_id() for _ in range(50)]

    assert len(set(made)) == len(made)
    assert [identifier[:10] for identifier in made] == sorted(
        identifier[:10] for identifier in made
    )
    assert {len(identifier) for identifier in made} == {26}


# --- answers

TOLD: dict[str, Any] = {
    "agent_id": "support",
    "session_id": "user-42",
    "fresh": True,
    "etag": "abc",
    "summary": {"version": 3, "kind": "llm", "style": "structured", "text": "They ordered.", "ledger": ["KC-1"], "tokens": 12, "covers": {"messages": 118}},
    "messages": [{"role": "user", "content": "hi"}],
    "message_ids": ["e59#0"],
    "window": {"tokens": 5230, "budget_tokens": 8000, "messages": 1, "model_window": 128000},
    "account": {"total": 119, "shown": 1, "covered": 118},
    "pending": {"messages": 0, "tokens": 0, "since": None},
}  # fmt: skip


def test_a_window_reads_as_the_contract_tells_it() -> None:
    window = Window.of(TOLD)

    assert (window.messages, window.message_ids, window.fresh, window.etag) == (
        [{"role": "user", "content": "hi"}],
        ["e59#0"],
        True,
        "abc",
    )
    assert (window.tokens, window.budget_tokens, window.account.total, window.account.folded) == (
        5230,
        8000,
        119,
        0,
    )
    assert window.summary is not None
    assert (window.summary.version, window.summary.ledger, window.summary.covers["messages"]) == (
        3,
        ("KC-1",),
        118,
    )
    assert window.raw is TOLD


def test_a_window_before_the_first_summary_has_none() -> None:
    assert Window.of(TOLD | {"summary": None}).summary is None


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("bad_request", BadRequest),
        ("not_allowed", NotAllowed),
        ("unknown_session", UnknownSession),
        ("too_large", TooLarge),
        ("conflict", Conflict),
        ("unavailable", Unavailable),
        ("cannot_fit", CannotFit),
        ("of_a_later_version", RequestError),
    ],
)
def test_an_error_of_the_contract_becomes_the_exception_of_its_code(
    code: str, kind: type[RequestError]
) -> None:
    error = error_from_json({"code": code, "message": "why"})

    assert type(error) is kind
    assert str(error) == "why"


@pytest.mark.proves("L6", "C13")
def test_what_cannot_fit_tells_what_would() -> None:
    error = error_from_json({"code": "cannot_fit", "message": "too small", "needed_tokens": 5120})

    assert isinstance(error, CannotFit)
    assert (error.needed_tokens, error.needed_messages) == (5120, None)


@pytest.mark.parametrize("copied", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
@pytest.mark.parametrize(
    "error",
    [
        ContextOverflow(limit_tokens=8_192, tokens=9_000),
        CannotFit("too small", needed_tokens=5_120),
        Unavailable("try again", retry_after_ms=200, is_answer=True),
        BudgetSpent("rate_limited", until_ms=1),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_reaches_another_process_with_all_that_it_tells(
    error: TurnfoldError, copied: Callable[[TurnfoldError], TurnfoldError]
) -> None:
    received = copied(error)

    assert (type(received), str(received)) == (type(error), str(error))
    assert vars(received) == vars(error)


# --- the manual


def test_everything_the_manual_names_is_there() -> None:
    assert all(getattr(turnfold, name) is not None for name in turnfold.__all__)
    assert sorted(turnfold.__all__) == turnfold.__all__


@pytest.mark.parametrize("module", [turnfold.client.events, turnfold.transcripts.reading])
def test_the_examples_in_docstrings_hold(module: ModuleType) -> None:
    tried = doctest.testmod(module)

    assert (tried.failed, tried.attempted > 0) == (0, True)


@pytest.mark.proves("R3")
@pytest.mark.parametrize("page", ['{"messages": [1], "fresh": true}', '{"fresh": true}'])
async def test_a_history_that_another_program_made_up_proves_no_event_wrong(page: str) -> None:
    event = turn_event(KEY, [{"role": "user", "content": "hi"}], event_id="e1")

    async def ask(subject: str, fields: Json) -> dict[str, Any]:
        assert (subject, fields["message_ids"]) == ("history.get.support.user%2E42", ["e1#0"])
        answer: dict[str, Any] = json.loads(page)
        return answer

    await check_duplicate(event, Acknowledgement(4, is_duplicate=True), ask)


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:4222",
        "nats://a:4222, HTTPS://me:secret@b",
        "nats://me:secret@a:65536",
        'a:4222"',
        "nats://",
    ],
)
async def test_what_is_no_address_of_nats_is_refused_at_once(url: str) -> None:
    with pytest.raises(StartError, match="not a NATS address; it must begin with nats://") as told:
        async with turnfold.connect(url, environ={}, buffering=turnfold.BufferOptions()):
            raise AssertionError("it connected")

    assert "secret" not in str(told.value)
