"""Recorded conversations as events."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from turnfold.cli.recordings import Recording, Step, events_of, load_recordings, pieces
from turnfold.client import OutgoingEvent, session_key
from turnfold.errors import BadRequest, TooLarge
from turnfold.transcripts import Conversation, Turn

Json = Mapping[str, Any]

USER = {"role": "user", "content": "How many rows?"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "count", "arguments": "{}"}}
    ],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "name": "count", "content": "42"}
ANSWER = {"role": "assistant", "content": "42 rows."}


def recording(
    *messages: Json, session_id: str = "s", machine_made: frozenset[int] = frozenset()
) -> Recording:
    return Recording(
        session_key("a", session_id),
        Conversation("c", messages, model="gpt-4.1", machine_made=machine_made),
    )


def payload(event: OutgoingEvent) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(event.payload)
    return told


def kinds(found: Recording, step: Step) -> list[str]:
    return [event.kind for event, _ in events_of(found, step)]


# --- events


@pytest.mark.proves("I1")
def test_a_turn_travels_as_one_event_or_step_by_step() -> None:
    found = recording(USER, CALL, RESULT, ANSWER, USER)

    assert kinds(found, Step.TURN) == ["turn.completed", "turn.completed"]
    assert kinds(found, Step.MESSAGE) == [
        "turn.completed",
        "turn.completed",
        "tool.result",
        "turn.completed",
        "turn.completed",
    ]


@pytest.mark.proves("I6")
@pytest.mark.parametrize("step", list(Step))
def test_a_later_system_message_begins_no_event_and_is_not_pinned(step: Step) -> None:
    first: Json = {"role": "system", "content": "Be brief."}
    later: Json = {"role": "developer", "content": "Be brief."}
    said = [first, USER, CALL, RESULT, later, later, ANSWER]

    told = [payload(event).get("messages") for event, _ in events_of(recording(*said), step)]

    begins = [messages[0] for messages in told if messages]
    assert begins.count(first) == 1
    assert later not in begins
    assert [one for messages in told if messages for one in messages] == said


@pytest.mark.parametrize("step", list(Step))
@pytest.mark.proves("L1")
def test_no_message_is_left_out(step: Step) -> None:
    said: list[Json] = [
        USER,
        CALL,
        RESULT,
        ANSWER,
        USER,
        {"role": "tool", "tool_call_id": "c1", "content": "", "odd": 1},
        {"role": "tool", "content": "?"},
    ]
    told: list[dict[str, Any]] = []

    for event, count in events_of(recording(*said), step):
        body = payload(event)
        messages = body.get("messages") or [
            {"role": "tool"}
            | {key: body[key] for key in ("tool_call_id", "name", "content") if key in body}
        ]
        assert len(messages) == count
        told += messages

    assert told == said


@pytest.mark.proves("L2")
@pytest.mark.parametrize("step", list(Step))
def test_the_same_replay_makes_the_same_events(step: Step) -> None:
    first = [event.event_id for event, _ in events_of(recording(USER, ANSWER, USER), step)]
    again = [event.event_id for event, _ in events_of(recording(USER, ANSWER, USER), step)]
    other = [
        event.event_id
        for event, _ in events_of(recording(USER, ANSWER, USER, session_id="t"), step)
    ]

    assert first == again
    assert not set(first) & set(other)
    assert len(set(first)) == len(first)


@pytest.mark.proves("I6")
def test_what_a_machine_said_is_marked_as_its_own_event() -> None:
    events = [
        payload(event)
        for event, _ in events_of(recording(USER, ANSWER, USER, machine_made=frozenset({2})))
    ]

    assert [event.get("is_meta") for event in events] == [None, True]


def test_a_long_turn_is_parted_between_messages() -> None:
    turn = Turn(
        tuple({"role": "assistant", "content": "x" * size} for size in (10, 10, 500, 10, 10)),
        is_meta=True,
    )

    by_count = [len(piece.messages) for piece in pieces(turn, max_messages=2)]
    by_size = list(pieces(turn, max_bytes=200))

    assert by_count == [2, 2, 1]
    assert [len(piece.messages) for piece in by_size] == [2, 1, 2]
    assert all(piece.is_meta for piece in by_size)


@pytest.mark.proves("X4")
def test_a_turn_of_thousands_of_messages_stays_within_the_limits_of_an_event() -> None:
    events = list(events_of(recording(USER, *[ANSWER] * 2_500)))

    assert [count for _, count in events] == [1_000, 1_000, 501]


def test_a_message_too_large_for_any_event_is_told_with_its_conversation() -> None:
    with pytest.raises(TooLarge, match=r"^c: one message exceeds the size of an event"):
        list(events_of(recording({"role": "user", "content": "x" * 4_194_304})))


def test_conversations_of_one_id_get_sessions_of_their_own(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.jsonl").write_text(
            json.dumps({"id": "same", "agent": "support", "messages": [USER]})
        )

    found = load_recordings([str(tmp_path / "one.jsonl"), str(tmp_path / "two.jsonl")])

    assert [one.key for one in found] == [("support", "same"), ("support", "same-2")]


def test_no_two_conversations_get_one_session_whatever_their_ids_are(tmp_path: Path) -> None:
    ids = ["a", "a-2", "a", "a", "a-2", "a-3", "a-2-2"]
    file = tmp_path / "all.jsonl"
    lines = [json.dumps({"id": name, "agent": "support", "messages": [USER]}) for name in ids]
    file.write_text("\n".join(lines))

    found = [one.key.session_id for one in load_recordings([str(file)])]

    assert found == ["a", "a-2", "a-3", "a-4", "a-2-2", "a-3-2", "a-2-2-2"]
    assert len(set(found)) == len(ids)


@pytest.mark.parametrize(("agent", "told"), [(None, "replay"), ("mine", "mine")])
def test_the_agent_is_the_one_asked_for_else_the_conversations_own(
    tmp_path: Path, agent: str | None, told: str
) -> None:
    (tmp_path / "talk.json").write_text(json.dumps([USER]))

    (found,) = load_recordings([str(tmp_path / "talk.json")], agent)

    assert found.key == (told, "talk")


def test_an_empty_agent_is_none_and_not_the_conversations_own(tmp_path: Path) -> None:
    """As of a variable that is not set: the messages must not come to another agent."""
    (tmp_path / "talk.json").write_text(json.dumps([USER]))

    with pytest.raises(BadRequest, match="agent_id has 0 bytes"):
        load_recordings([str(tmp_path / "talk.json")], "")
