"""Sentences that say why a request is refused."""

import json
from functools import partial

import pytest

from turnfold.contracts.catalog import REQUESTS
from turnfold.contracts.reading import read_request
from turnfold.contracts.requests import ContextRequest
from turnfold.errors import BadRequest
from turnfold_query.http.commands import add_fields


@pytest.mark.parametrize(
    ("name", "body", "told"),
    [
        (
            "history.get",
            b'{"after": "x"}',
            "after: must be a valid integer; or: must be 'latest'",
        ),
        ("history.get", b"[]", "the request: must be an object"),
        ("history.search", b"{}", "q: is required"),
        ("history.get", b'{"wait_ms": "x"}', "wait_ms: must be a valid integer"),
        (
            "context.get",
            b'{"recall": {"tokens": -1}}',
            "recall.tokens: must be greater than or equal to 0",
        ),
        (
            "context.get",
            b'{"recall": true}',
            "recall: must be an object; or: must be False",
        ),
        (
            "deadletters.replay",
            b'{"reason": "nosuch"}',
            (
                "reason: must be 'not_json', 'wrong_shape', 'unknown_type', 'subject_mismatch',"
                " 'too_large', 'too_many_messages', 'too_deep', 'event_id_reused', 'too_many_sessions'"
                " or 'refused_by_database'"
            ),
        ),
    ],
)
def test_a_fault_names_the_field_and_what_it_may_hold(name: str, body: bytes, told: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_request(REQUESTS[name].request, body)

    assert str(caught.value) == told


@pytest.mark.proves("X6")
@pytest.mark.parametrize(
    "body",
    [
        b"{%b}" % b",".join(b'"%d":1' % number for number in range(90_000)),
        b'{"a":[%b[]]}' % (b"[]," * 20_000),
    ],
    ids=["fields", "lists"],
)
def test_a_request_of_many_values_is_refused_before_they_are_read(body: bytes) -> None:
    """A megabyte of them held all other requests up for a quarter of a second."""
    for read in (
        partial(read_request, ContextRequest),
        partial(add_fields, path_fields={"version": 1}),
    ):
        with pytest.raises(BadRequest, match="at most 10,000 values"):
            read(body)


def test_commas_and_brackets_of_a_text_are_no_values() -> None:
    text = '",[{' * 100_000

    body = json.dumps({"query": text}).encode()

    assert read_request(ContextRequest, body).query == text
    with pytest.raises(BadRequest, match="Invalid JSON"):
        read_request(ContextRequest, body[:-2])


@pytest.mark.proves("X2")
@pytest.mark.parametrize(
    ("name", "field"), [("agent.erase", "prefix"), ("deadletters.replay", "reason")]
)
@pytest.mark.parametrize("text", ["\0", "s\0", "\ud800", "語" * 100])
def test_a_text_that_can_be_part_of_no_id_is_refused(name: str, field: str, text: str) -> None:
    with pytest.raises(BadRequest):
        read_request(REQUESTS[name].request, json.dumps({field: text}).encode())


@pytest.mark.proves("I2", "F2")
@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (r"cut \ud83d", "cut \ufffd"),
        (r"\uDE00 and \ud83d\ude00", "\ufffd and \U0001f600"),
        (r"\ud83d\ud83d\uDE00\ude00", "\ufffd\U0001f600\ufffd"),
        (r"\\ud83d \ude00", "\\ud83d \ufffd"),
    ],
)
def test_a_question_that_was_cut_within_a_character_is_read(sent: str, read: str) -> None:
    for name, field in (("context.get", "query"), ("history.search", "q")):
        request = read_request(REQUESTS[name].request, f'{{"{field}": "{sent}"}}'.encode())

        assert getattr(request, field) == read
