"""What a publisher learns of events that are not stored, over HTTP and from windows."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import nats
import pytest

from tests.running_system import running_parts, serving_parts
from turnfold.contracts.events import check_copy
from turnfold.errors import Conflict

PATH = "/v1/agents/support/sessions/user-42"
EVENT: dict[str, Any] = {
    "type": "turn.completed",
    "event_id": "e1",
    "agent_id": "support",
    "session_id": "user-42",
}


def said(text: str) -> dict[str, Any]:
    """The event with this text."""
    return {**EVENT, "messages": [{"role": "user", "content": text}]}


@pytest.mark.proves("G1", "L2")
async def test_other_content_under_a_known_id_is_a_conflict_and_stores_nothing(
    tmp_path: Path,
) -> None:
    """G1: the same event again is none, in whatever JSON."""
    elsewhere = PATH.replace("user-42", "user-43")
    async with (
        running_parts(tmp_path) as parts,
        parts.running("query"),
        parts.http() as http,
    ):
        first = await http.post(f"{PATH}/events", json=said("one"))
        copy = await http.post(f"{PATH}/events", content=json.dumps(said("one"), indent=2))
        other = await http.post(f"{PATH}/events", json=said("two"))
        moved = await http.post(f"{elsewhere}/events", json=said("one") | {"session_id": "user-43"})
        next_one = await http.post(f"{PATH}/events", json=said("three") | {"event_id": "e2"})

    assert [answer.status_code for answer in (first, copy, other, moved)] == [200, 200, 409, 409]
    assert first.json() == copy.json()
    assert other.json()["error"]["code"] == moved.json()["error"]["code"] == "conflict"
    assert next_one.json()["seq"] == first.json()["seq"] + 1


@pytest.mark.proves("G1", "L2")
@pytest.mark.parametrize(
    ("other", "is_same"),
    [({"b": [2.0], "a": 1}, True), ('{"a":1,"b":[2]}', False), ({"a": 1}, False)],
)
def test_a_result_of_json_is_compared_by_its_value(other: Any, is_same: bool) -> None:
    again, stored = (
        json.dumps({**EVENT, "tool_call_id": "c", "content": content}).encode()
        for content in (other, {"a": 1, "b": [2]})
    )

    with nullcontext() if is_same else pytest.raises(Conflict):
        check_copy("tool.result", again, stored)


@pytest.mark.proves("G1", "I5")
async def test_a_window_tells_of_refused_events_even_if_there_are_no_others(
    tmp_path: Path,
) -> None:
    """G1: it was empty and said `fresh`, as if nothing had been published."""
    async with (
        serving_parts(tmp_path) as (parts, client),
        await nats.connect(parts.server.url) as bus,
    ):
        session = client.session("support", "user-42")
        before = await session.context()
        bad = {**said(""), "messages": [{"content": "no role"}]}
        subject = "turn.completed.support.user-42"
        await bus.jetstream().publish(subject, json.dumps(bad).encode())
        after = await session.context(after="latest", wait_ms=5_000)
        cached = await session.context(known=after)

    assert (before.refused, after.refused, after.fresh) == (0, 1, True)
    assert before.etag != after.etag
    assert cached is after
