"""The models of events, requests, answers and notices, and that the fast readers agree with them."""

import json
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from tests.answer_models import OPERATIONS, faults
from turnfold.contracts.answers.base import Answer, ReadAnswer
from turnfold.contracts.answers.errors import ErrorAnswer, ErrorCode
from turnfold.contracts.answers.history import SessionUsage
from turnfold.contracts.answers.inspection import CompactionEntry
from turnfold.contracts.answers.reading import FIELDS, read_answer
from turnfold.contracts.catalog import REQUESTS
from turnfold.contracts.event_models import EVENTS, PublishedEvent, PublishedMessage
from turnfold.contracts.events import read_payload
from turnfold.contracts.fields import MessageState, PolicyMode, SummaryStyle
from turnfold.contracts.notice_models import NOTICE_MODELS, TriggerName
from turnfold.contracts.notices import NOTICE_NAMES
from turnfold.contracts.requests import Command
from turnfold.contracts.subjects import (
    AGENT_READS,
    AGENT_WRITES,
    EVENT_TYPES,
    INSTALLATION_REQUESTS,
    READS,
    WRITES,
)
from turnfold.core.eviction.triggers import Trigger
from turnfold.core.eviction.usage import usage_state
from turnfold.core.policy.presets import Mode, Style
from turnfold.errors import BadEvent, RequestError
from turnfold.messages import ROLES, State
from turnfold.ports.compact import JobStatus
from turnfold_query.http.description import BODIES

Json = dict[str, Any]
ANSWERS = {model for models in OPERATIONS.values() for model in models} | {
    model for entry in REQUESTS.values() for model in entry.answers
}
ASKED = {entry.request for entry in REQUESTS.values()}


def examples(model: type[BaseModel]) -> list[Json]:
    found: list[Json] = model.model_json_schema()["examples"]
    return found


def names_in(literal: Any) -> set[str]:
    return set(get_args(literal))


def codes(error: type[RequestError]) -> Iterator[str]:
    yield error.code
    for kind in error.__subclasses__():
        yield from codes(kind)


@pytest.mark.proves("V3", "V4")
def test_everything_on_the_wire_has_a_model() -> None:
    assert set(REQUESTS) == {*READS, *AGENT_READS, *WRITES, *AGENT_WRITES, *INSTALLATION_REQUESTS}
    assert set(EVENTS) == set(EVENT_TYPES)
    assert set(NOTICE_MODELS) == set(NOTICE_NAMES)


@pytest.mark.proves("X2")
def test_every_answer_to_a_read_may_name_unknown_fields() -> None:
    reads = [entry for entry in REQUESTS.values() if not issubclass(entry.request, Command)]

    assert reads
    assert [
        model for entry in reads for model in entry.answers if not issubclass(model, ReadAnswer)
    ] == []


@pytest.mark.parametrize(
    "model",
    sorted(
        {*ANSWERS, ErrorAnswer, *BODIES, *EVENTS.values(), *NOTICE_MODELS.values(), *ASKED},
        key=str,
    ),
)
def test_the_examples_of_a_model_match_it(model: type[BaseModel]) -> None:
    extra: Any = None if issubclass(model, PublishedEvent) else "forbid"

    assert examples(model)
    for example in examples(model):
        model.model_validate_json(json.dumps(example), strict=True, extra=extra)


@pytest.mark.parametrize("model", sorted(ANSWERS, key=str))
def test_an_answer_with_a_field_that_the_model_lacks_is_a_fault(model: type[Answer]) -> None:
    example = examples(model)[0]

    assert faults([model], json.dumps(example).encode()) is None
    assert "unknown" in (faults([model], json.dumps(example | {"unknown": 1}).encode()) or "")


def test_the_fast_reader_of_answers_accepts_every_example_and_knows_only_fields_of_models() -> None:
    for name, entry in REQUESTS.items():
        for model in entry.answers:
            example = examples(model)[0]
            assert read_answer(name, json.dumps(example).encode()) == example
    for name, fields in FIELDS.items():
        assert fields.keys() <= REQUESTS[name].answers[0].model_fields.keys()


@pytest.mark.proves("O7")
@pytest.mark.parametrize("name", FIELDS)
def test_an_answer_without_one_of_its_fields_is_no_answer(name: str) -> None:
    """Another subscriber of the bus may reply."""
    whole = {field: None if kind is object else kind() for field, kind in FIELDS[name].items()}

    assert read_answer(name, json.dumps(whole).encode()) == whole
    for field in whole:
        others = {other: whole[other] for other in whole if other != field}
        assert read_answer(name, json.dumps(others).encode()) is None


def test_the_words_of_the_models_are_those_of_the_rules() -> None:
    assert names_in(MessageState) == {*State}
    assert names_in(PolicyMode) == {*Mode}
    assert names_in(SummaryStyle) == {*Style}
    assert names_in(TriggerName) == {*Trigger}
    assert names_in(CompactionEntry.model_fields["status"].annotation) == {*JobStatus}
    states = {usage_state(evictions) for evictions in range(4)}
    assert names_in(SessionUsage.model_fields["state"].annotation) == states
    assert names_in(PublishedMessage.model_fields["role"].annotation) == {*ROLES}
    assert names_in(ErrorCode) == {*codes(RequestError)}


# --- events

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-9, 9),
    st.text("aö\x00 ", max_size=3),
    st.just([]),
    st.just({"role": "user"}),
    st.just([{"role": "user"}, {"role": "tool", "content": None}]),
    st.just([{"role": "nobody"}]),
    st.just([{"type": "text", "text": "hi"}]),
)
FIELD_NAMES = (
    "event_id",
    "agent_id",
    "session_id",
    "messages",
    "tool_call_id",
    "content",
    "name",
    "model",
    "usage",
    "is_meta",
    "is_error",
    "metadata",
    "occurred_at",
    "limit_tokens",
    "is_overflow",
    "message_id",
    "elsewhere",
)


def is_accepted_by_reader(kind: str, payload: bytes) -> bool:
    try:
        read_payload(kind, payload)
    except BadEvent:
        return False
    return True


def is_accepted_by_model(model: type[PublishedEvent], payload: bytes) -> bool:
    try:
        model.model_validate_json(payload, strict=True)
    except ValidationError:
        return False
    return True


@pytest.mark.proves("V3", "I2")
@pytest.mark.parametrize("kind", EVENT_TYPES)
@given(
    changes=st.dictionaries(st.sampled_from(FIELD_NAMES), ANYTHING, max_size=2),
    missing=st.sets(st.sampled_from(FIELD_NAMES), max_size=1),
)
def test_the_fast_reader_of_events_accepts_exactly_what_the_model_accepts(
    kind: str, changes: Json, missing: set[str]
) -> None:
    event = examples(EVENTS[kind])[0] | changes
    payload = json.dumps({name: event[name] for name in event if name not in missing}).encode()

    assert is_accepted_by_model(EVENTS[kind], payload) is is_accepted_by_reader(kind, payload)
