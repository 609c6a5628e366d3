"""Whatever bytes come: every reader gives a value that keeps its promises, or the error it names. `make fuzz` tries many more."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.decoders import DECODERS, Decoder
from tests.fuzz.running import tried
from turnfold.contracts.events import read_event
from turnfold.contracts.subjects import id_fault, id_of, session_subject, token_of
from turnfold.messages import AgentId, SessionId, SessionKey

INPUTS = 150
SEED = 20_261_121

texts = st.text(st.characters(), max_size=30)
ids = st.text(min_size=1, max_size=40).filter(lambda text: id_fault(text) is None)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
messages = st.builds(
    lambda role, more: {**more, "role": role},
    st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
    st.dictionaries(
        st.sampled_from(["content", "tool_calls", "tool_call_id", "name", "refusal", "x"]),
        values,
        max_size=4,
    ),
)


@pytest.mark.proves("I5", "X2", "X4")
@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_every_reader_answers_mutated_input_with_a_value_or_the_error_it_names(
    decoder: Decoder,
) -> None:
    found = tried(decoder, range(INPUTS), seed=SEED)

    assert found.inputs == INPUTS
    assert found.failures == []


def test_a_fault_of_a_reader_is_told_with_the_number_of_its_input() -> None:
    """The run itself: a reader that lets an error out that is not declared is found, and its input comes again."""
    strict = Decoder("strict", [b"1", b"x"], lambda data, _: json.loads(data))

    found = tried(strict, [0, 1, 7], seed=SEED)

    assert [number for number, _ in found.failures] == [1, 7]
    assert strict.input(SEED, 7) == strict.input(SEED, 7) != strict.input(SEED + 1, 7)


@pytest.mark.proves("I1", "X2")
@given(
    agent_id=ids,
    session_id=ids,
    said=st.lists(messages, min_size=1, max_size=4),
    ascii_only=st.booleans(),
)
def test_any_event_of_the_right_shape_is_read_back_to_the_letter(
    agent_id: str, session_id: str, said: list[dict[str, Any]], ascii_only: bool
) -> None:
    key = SessionKey(AgentId(agent_id), SessionId(session_id))
    written = json.dumps(
        {"event_id": "e", "agent_id": agent_id, "session_id": session_id, "messages": said},
        ensure_ascii=ascii_only,
    ).encode("utf-8", "surrogatepass")
    try:
        written.decode()
    except UnicodeDecodeError:
        written = json.dumps(
            {"event_id": "e", "agent_id": agent_id, "session_id": session_id, "messages": said}
        ).encode()

    event = read_event(session_subject("turn.completed", key), written)

    assert event.key == key
    assert list(event.parsed) == said
    assert [json.loads(body) for body in event.bodies] == said


@pytest.mark.proves("X2")
@given(one=ids, other=ids)
def test_tokens_are_as_different_as_their_ids_and_hold_nothing_a_subject_could_mean(
    one: str, other: str
) -> None:
    assert (token_of(one) == token_of(other)) == (one == other)
    assert id_of(token_of(one)) == one
    assert not set(token_of(one)) & set(".*> \t\r\n")
