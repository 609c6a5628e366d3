"""What an event carries for its producer, over the bus, over HTTP and through the client."""

from pathlib import Path
from typing import Any

import pytest

from tests.running_system import running_system
from turnfold.client import connect
from turnfold.errors import BadRequest

PATH = "/v1/agents/support/sessions/user-42"
CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
CARRIED: dict[str, Any] = {"uuid": "4711", "deep": [1, 2.5, None, {"ключ": "値"}]}


@pytest.mark.proves("G1", "I5", "O3")
async def test_each_way_gives_back_what_was_carried_and_refuses_another_number(
    tmp_path: Path,
) -> None:
    asking = {"role": "user", "content": "Look."}
    calling = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    refused = {
        "type": "turn.completed", "event_id": "e9", "agent_id": "support", "session_id": "user-42",
        "messages": [asking, calling], "carry": [CARRIED],
    }  # fmt: skip
    async with (
        running_system(tmp_path / "system") as system,
        connect(system.nats_url, environ={}) as client,
        system.http() as http,
    ):
        session = client.session("support", "user-42")
        await session.turn_completed([asking, calling], carry=[CARRIED, None], event_id="e1")
        await session.tool_result("c1", "42", carry="of the result", event_id="r1")
        window = await session.context(entries=True, wait_ms=5_000)
        page = await session.history()
        over_http = (await http.get(f"{PATH}/context", params={"entries": "true"})).json()
        status = (await http.post(f"{PATH}/events", json=refused)).status_code
        with pytest.raises(BadRequest, match="carry has 1 values for 2 messages"):
            await session.turn_completed([asking, calling], carry=[CARRIED])
        (popped,) = await session.pop()

    assert [entry.get("carry") for entry in window.entries or ()] == [
        CARRIED,
        None,
        "of the result",
    ]
    assert [stored.carry for stored in page.messages] == [CARRIED, None, "of the result"]
    assert over_http["entries"] == window.entries
    assert (status, popped.carry) == (400, "of the result")
