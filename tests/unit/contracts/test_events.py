"""Events are read strictly, and kept to the letter."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnfold.contracts.events import LIMITS, Event, EventLimits, read_event, read_payload
from turnfold.contracts.subjects import token_of
from turnfold.errors import BadEvent

IDENTITY = '"event_id": "e1", "agent_id": "a", "session_id": "s"'


def turn(messages: str = '[{"role": "user", "content": "hi"}]', more: str = "") -> bytes:
    return f'{{{IDENTITY}, "messages": {messages}{more}}}'.encode("utf-8", "surrogatepass")


def result(content: str = '"42"', more: str = "") -> bytes:
    return f'{{{IDENTITY}, "tool_call_id": "c", "content": {content}{more}}}'.encode()


def read(payload: bytes) -> Event:
    return read_payload("turn.completed", payload)


def reason(kind: str, payload: bytes) -> str | None:
    """Why it is refused; None when it is read."""
    try:
        read_payload(kind, payload)
    except BadEvent as error:
        return error.reason
    return None


def content(written: str) -> bytes:
    return turn(f'[{{"role": "user", "content": {written}}}]')


# --- to the letter


@pytest.mark.proves("L1", "I2")
@pytest.mark.parametrize(
    "message",
    [
        '{"role":"user","content":"hi"}',
        '{ "content" : "x" ,\t"role":"user" }',
        r'{"role": "user", "content": "NUL \u0000 half \ud83d pair \ud83d\ude00"}',
        r'{"r\u006fle": "user", "content": "\/ \b \f"}',
        '{"role": "user", "content": 1.50, "n": [1E2, -0, 1e-7, 12345678901234567890]}',
        '{"role": "user", "role": "assistant", "content": null}',
        '{"role": "user", "content": "] } , \\" {", "tool_calls": [{"a": "]"}]}',
        '{"role": "user", "content": "漢字 🙂 \u2028"}',
    ],
)
def test_a_message_is_cut_out_as_it_was_written(message: str) -> None:
    event = read(turn(f" [ {message} ,\n{message}] "))

    assert event.bodies == (message, message)
    assert event.parsed == (json.loads(message),) * 2


@pytest.mark.proves("W12", "L1")
@pytest.mark.parametrize(
    ("published", "stored", "is_meta"),
    [
        ('{"role": "user", "content": 1.50, "is_meta": true}', '{"role": "user", "content": 1.50}', True),
        ('{"is_meta":false ,"role":"user"}', '{"role":"user"}', False),
        ('{ "role" : "user" ,\t"is_meta" : true , "x":1 }', '{ "role" : "user" , "x":1 }', True),
        (r'{"role": "user", "is\u005fmeta": true}', '{"role": "user"}', True),
        ('{"is_meta": false, "role": "user", "is_meta": true}', '{"role": "user"}', True),
        ('{"role": "assistant", "is_meta": true}', '{"role": "assistant"}', False),
        ('{"role": "user", "is_meta": 1}', '{"role": "user", "is_meta": 1}', False),
        ('{"role": "user", "x": {"is_meta": true}}', '{"role": "user", "x": {"is_meta": true}}', False),
    ],
)  # fmt: skip
def test_the_mark_of_a_message_is_taken_off_and_the_rest_stays_to_the_letter(
    published: str, stored: str, is_meta: bool
) -> None:
    event = read(turn(f"[{published}]"))

    assert event.bodies == (stored,)
    assert event.parsed == (json.loads(stored),)
    assert event.metas == (is_meta,)


@pytest.mark.proves("W12")
def test_the_mark_of_an_event_marks_all_its_user_messages() -> None:
    messages = '[{"role": "user", "is_meta": false}, {"role": "assistant"}, {"role": "user"}]'

    assert read(turn(messages, ', "is_meta": true')).metas == (True, False, True)
    assert read(turn(messages)).metas == (False, False, False)


@pytest.mark.proves("L1", "I2")
def test_escapes_stay_escaped_so_that_no_store_meets_a_nul_or_half_a_pair() -> None:
    event = read(content(r'"a\u0000b\ud83dc"'))

    assert event.parsed[0]["content"] == "a\0b\ud83dc"
    event.bodies[0].encode()
    assert "\0" not in event.bodies[0]


@pytest.mark.proves("I1", "I2")
@pytest.mark.parametrize(
    ("written", "shown", "is_kept"),
    [
        ('"text"', "text", False),
        ("null", None, False),
        ('[{"type": "text", "text": "x"}]', [{"type": "text", "text": "x"}], False),
        ('{"b": 1,  "a": [true, null]}', '{"b":1,"a":[true,null]}', True),
        ("[]", "[]", True),
        ("[1, 2]", "[1,2]", True),
        ("12.50", "12.5", True),
        ("false", "false", True),
        ('{"text": "漢字 \\u0000"}', '{"text":"漢字 \\u0000"}', True),
    ],
)
def test_any_json_may_be_a_result_and_what_is_no_text_is_shown_as_compact_json(
    written: str, shown: Any, is_kept: bool
) -> None:
    event = read_payload("tool.result", result(written))

    assert event.parsed[0]["content"] == shown
    assert json.loads(event.bodies[0]) == event.parsed[0]
    assert event.originals == (written if is_kept else None,)


@pytest.mark.proves("L2")
def test_equal_content_has_an_equal_digest_whatever_stands_around_it() -> None:
    plain, wrapped = read(turn()), read(turn(more=', "model": "m", "metadata": {"x": 1}'))

    assert plain.digest == wrapped.digest
    assert plain.digest != read(content('"ho"')).digest


@pytest.mark.proves("L2")
@pytest.mark.parametrize(
    "other", [result('"43"'), result('"42"', ', "is_error": true'), result('["42"]')]
)
def test_other_content_or_an_error_has_another_digest(other: bytes) -> None:
    assert read_payload("tool.result", result()).digest != read_payload("tool.result", other).digest


json_texts = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@st.composite
def written(draw: st.DrawFn) -> str:
    """A message as JSON text, spaced and escaped as somebody may."""
    message = {
        "role": draw(st.sampled_from(["user", "assistant", "tool", "system", "developer"])),
        "content": draw(json_texts),
    }
    message |= draw(
        st.dictionaries(
            st.text(max_size=6).filter(lambda name: name != "role"), json_texts, max_size=2
        )
    )
    is_ascii = draw(st.booleans())
    text = json.dumps(message, ensure_ascii=is_ascii, indent=draw(st.sampled_from([None, 1])))
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(message)
    return text


@pytest.mark.proves("L1", "I2")
@given(st.lists(written(), min_size=1, max_size=4), st.sampled_from(["", " ", "\n\t"]))
def test_what_is_cut_out_is_what_was_published(messages: list[str], space: str) -> None:
    event = read(turn(f"[{space}{f'{space},{space}'.join(messages)}{space}]"))

    assert list(event.bodies) == messages
    assert list(event.parsed) == [json.loads(message) for message in messages]


# --- strictly


@pytest.mark.proves("I5")
@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", "not_json"),
        (b"  ", "not_json"),
        (b"\xff\xfe{}", "not_json"),
        (b"\xef\xbb\xbf" + turn(), "not_json"),
        (turn() + b"x", "not_json"),
        (turn() + turn(), "not_json"),
        (turn() + b"\0", "not_json"),
        (turn()[:-1], "not_json"),
        (turn()[:-1] + b",}", "not_json"),
        (turn("[,]"), "not_json"),
        (turn('[{"role": "user"},]'), "not_json"),
        (turn('[{"role": "user"} {"role": "user"}]'), "not_json"),
        (turn('[{"role": "user"}}'), "not_json"),
        (b"{event_id: 1}", "not_json"),
        (b"{'event_id': 1}", "not_json"),
        (b'{"a" 1}', "not_json"),
        (b'{"a": 1 "b": 2}', "not_json"),
        (content("NaN"), "not_json"),
        (content("Infinity"), "not_json"),
        (content("-Infinity"), "not_json"),
        (content("1e999"), "not_json"),
        (content("-1e999"), "not_json"),
        (content("01"), "not_json"),
        (content("+1"), "not_json"),
        (content("1."), "not_json"),
        (content(".5"), "not_json"),
        (content("1" * 4_001), "not_json"),
        (content("-" + "1" * 4_001), "not_json"),
        (content('"\t"'), "not_json"),
        (content('"\\x"'), "not_json"),
        (content('"\\u12"'), "not_json"),
        (turn('[{"role": "user", "content": "\ud83d"}]'), "not_json"),
        (b"[1, 2]", "wrong_shape"),
        (b'"text"', "wrong_shape"),
        (b"null", "wrong_shape"),
        (b"{}", "wrong_shape"),
        (turn("[]"), "wrong_shape"),
        (turn("{}"), "wrong_shape"),
        (turn("null"), "wrong_shape"),
        (turn("[null]"), "wrong_shape"),
        (turn('["hi"]'), "wrong_shape"),
        (turn('[{"content": "hi"}]'), "wrong_shape"),
        (turn('[{"role": "robot"}]'), "wrong_shape"),
        (turn('[{"role": ["user"]}]'), "wrong_shape"),
        (turn(more=', "messages": 1'), "wrong_shape"),
        (turn(more=', "model": 5'), "wrong_shape"),
        (turn(more=', "usage": []'), "wrong_shape"),
        (turn(more=', "is_meta": 1'), "wrong_shape"),
        (turn(more=', "metadata": "x"'), "wrong_shape"),
        (turn(more=', "event_id": ""'), "wrong_shape"),
        (turn(more=', "event_id": 7'), "wrong_shape"),
        (turn(more=', "agent_id": null'), "wrong_shape"),
        (turn(more=r', "agent_id": "a\u0000"'), "wrong_shape"),
        (turn(more=r', "session_id": "a\nb"'), "wrong_shape"),
        (turn(more=r', "session_id": "\ud83d"'), "wrong_shape"),
        (turn(more=f', "session_id": "{"é" * 129}"'), "wrong_shape"),
        (turn("[" + ",".join(['{"role": "user"}'] * 1_001) + "]"), "too_many_messages"),
        (content('"' + "x" * 4 * 1024 * 1024 + '"'), "too_large"),
    ],
    ids=lambda value: value[:40].decode(errors="replace") if isinstance(value, bytes) else value,
)
def test_what_is_no_turn_is_refused_for_its_reason(payload: bytes, why: str) -> None:
    assert reason("turn.completed", payload) == why


@pytest.mark.proves("I5")
@pytest.mark.parametrize(
    "payload",
    [
        b'{"event_id": "e1", "agent_id": "a", "session_id": "s", "tool_call_id": "c"}',
        b'{"event_id": "e1", "agent_id": "a", "session_id": "s", "content": "x"}',
        result(more=', "tool_call_id": null'),
        result(more=', "tool_call_id": ["c"]'),
        result(more=', "name": 5'),
        result(more=', "is_error": "no"'),
    ],
)
def test_what_is_no_result_has_the_wrong_shape(payload: bytes) -> None:
    assert reason("tool.result", payload) == "wrong_shape"


@pytest.mark.proves("I5", "X4")
def test_nesting_is_read_to_its_limit_and_no_deeper() -> None:
    within = LIMITS.depth - 3

    assert reason("turn.completed", content("[" * within + "]" * within)) is None
    assert reason("turn.completed", content("[" * (within + 1) + "]" * (within + 1))) == "too_deep"
    assert (
        reason("turn.completed", content('{"a":' * (within + 1) + "1" + "}" * (within + 1)))
        == "too_deep"
    )
    assert reason("turn.completed", content("[" * 200_000 + "]" * 200_000)) == "too_deep"
    assert reason("turn.completed", content("[" * 200_000)) in ("too_deep", "not_json")


@pytest.mark.proves("I2")
@pytest.mark.parametrize("number", ["1" * 4_000, "-" + "1" * 4_000, "1e308", "-0.0", "0"])
def test_numbers_up_to_the_limit_are_read(number: str) -> None:
    assert reason("turn.completed", content(number)) is None


@pytest.mark.proves("I2")
def test_many_messages_side_by_side_are_not_deep() -> None:
    assert (
        len(read(turn("[" + ",".join(['{"role": "user", "content": [[]]}'] * 1_000) + "]")).bodies)
        == 1_000
    )


@pytest.mark.proves("I2")
def test_of_members_with_one_name_the_last_counts() -> None:
    event = read(
        turn(more=r', "m\u0065ssages": [{"role": "user", "content": "last"}], "event_id": "e2"')
    )

    assert (event.event_id, [one["content"] for one in event.parsed]) == ("e2", "last".split())
    assert event.bodies == ('{"role": "user", "content": "last"}',)


@pytest.mark.proves("I5", "L12")
def test_a_subject_that_names_somebody_else_is_refused() -> None:
    for subject in (
        "turn.completed.a.other",
        "turn.completed.b.s",
        "turn.completed.a",
        "turn.completed.a.s.x",
        "turn.completed.",
    ):
        with pytest.raises(BadEvent, match="subject_mismatch"):
            read_event(subject, turn())
    with pytest.raises(BadEvent, match="unknown_type"):
        read_event("turn.started.a.s", turn())
    with pytest.raises(BadEvent, match="unknown_type"):
        read_event("turn.completedx", turn())


@pytest.mark.proves("X2")
@given(st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=60))
@example("a.b*>% \u2028")
def test_any_id_finds_its_subject(session_id: str) -> None:
    payload = json.dumps(
        {
            "event_id": "e",
            "agent_id": "user.42",
            "session_id": session_id,
            "messages": [{"role": "user"}],
        }
    ).encode()

    event = read_event(f"turn.completed.user%2E42.{token_of(session_id)}", payload)

    assert event.key == ("user.42", session_id)


@pytest.mark.proves("I5")
@given(st.data())
def test_damage_is_refused_exactly_where_json_itself_would_be(data: st.DataObject) -> None:
    whole = bytearray(
        turn('[{"role": "user", "content": [1.5, -2, true, null, "a\\u0041\\n"], "x": {}}]')
    )
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from([b"", b",", b"]", b"}", b'"', b"\\", b" ", b"0", b"e", b"[", b"\xc3"])
        )

    try:
        json.loads(bytes(whole).decode())
        is_json = True
    except ValueError:
        is_json = False

    assert (reason("turn.completed", bytes(whole)) != "not_json") == is_json


@pytest.mark.proves("X4")
@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (EventLimits(bytes=80), "too_large"),
        (EventLimits(messages=1), "too_many_messages"),
        (EventLimits(depth=2), "too_deep"),
    ],
)
def test_an_installation_may_set_its_own_limits(limits: EventLimits, why: str) -> None:
    payload = turn('[{"role": "user"}, {"role": "user"}]')

    with pytest.raises(BadEvent, match=why):
        read_payload("turn.completed", payload, limits)
