"""The window in both shapes and as it was, over the bus, over HTTP, through the client and on the command line."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.anthropic_faults import anthropic_faults
from tests.running_system import System, running_system
from tests.running_system import command as turnfold_command
from turnfold.client import Session, connect
from turnfold.errors import BadRequest

Json = dict[str, Any]
PLACEMENTS = ("separate", "system", "message", "user")
PATH = "/v1/agents/support/sessions/user-42"


@asynccontextmanager
async def compacted(folder: Path) -> AsyncGenerator[tuple[System, Session]]:
    """A system with one session: thirty turns of which the first are summarised, and then a turn with a call that failed."""
    async with (
        running_system(folder / "system") as system,
        connect(system.nats_url, environ={}) as client,
    ):
        session = client.session("support", "user-42")
        await session.turn_completed([{"role": "system", "content": "Be brief."}], event_id="s")
        for number in range(30):
            said = [
                {"role": "user", "content": f"Note port {9_000 + number}."},
                {"role": "assistant", "content": "Noted.\n"},
            ]
            await session.turn_completed(said, event_id=f"e{number}")
        function = {"name": "look.up", "arguments": "{broken"}
        calling = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call:1", "type": "function", "function": function}],
        }
        await session.turn_completed([{"role": "user", "content": "Look."}, calling], event_id="c")
        await session.tool_result("call:1", "no such place", is_error=True, event_id="r")
        async with asyncio.timeout(30):
            while (await session.context(wait_ms=5_000)).summary is None:  # noqa: ASYNC110 - another process is waited for
                await asyncio.sleep(0.05)
        yield system, session


async def http_get(system: System, **query: str) -> tuple[int, Json]:
    """What HTTP answers."""
    async with system.http() as http:
        answer = await http.get(f"{PATH}/context", params=query)
        return answer.status_code, answer.json()


async def command(system: System, *arguments: str) -> tuple[int, str]:
    """What `turnfold context` prints, or says on standard error."""
    environ = {"TURNFOLD_DATA_DIR": str(system.data_dir)}
    ended = await turnfold_command("context", "support", "user-42", *arguments, environ=environ)
    return ended.status, ended.err if ended.status else ended.out


@pytest.mark.proves("W1", "L5", "O3")
async def test_the_anthropic_shape_is_the_same_on_every_way_and_its_summary_stands_where_it_was_asked_for(
    tmp_path: Path,
) -> None:
    async with compacted(tmp_path) as (system, session):
        on_bus = {
            place: (await session.ask("context.get", {"format": "anthropic", "placement": place}))
            for place in PLACEMENTS
        }
        on_http = {
            place: (await http_get(system, format="anthropic", placement=place))[1]
            for place in PLACEMENTS
        }
        window = await session.context(format="anthropic", placement="system")
        printed = json.loads(
            (await command(system, "--format", "anthropic", "--placement", "system", "--json"))[1]
        )
        _, readable = await command(system, "--format", "anthropic")

    assert on_http == on_bus
    assert printed == on_bus["system"] == window.raw
    for place, answer in on_bus.items():
        assert anthropic_faults(answer["messages"]) == []
        assert answer["system"].startswith("Be brief.")
        assert ("Conversation Summary" in answer["system"]) is (place in ("system", "message"))
        assert ("Conversation Summary" in json.dumps(answer["messages"])) is (place == "user")
    assert window.system == on_bus["system"]["system"]
    calling, answering = window.messages[-2:]
    assert [block["type"] for block in calling["content"]] == ["tool_use"]
    assert answering["content"] == [
        {
            "type": "tool_result",
            "tool_use_id": "call_1",
            "content": [{"type": "text", "text": "no such place"}],
            "is_error": True,
        }
    ]
    assert window.message_ids[-2:] == ["c#1", "r#0"]
    assert "Be brief." in readable
    assert "no such place" in readable


@pytest.mark.proves("W6", "L7", "O3")
async def test_a_window_of_the_past_is_the_same_on_every_way(tmp_path: Path) -> None:
    async with compacted(tmp_path) as (system, session):
        summary = (await session.context()).summary
        on_bus = await session.ask("context.get", {"as_of": "e3#1"})
        _, on_http = await http_get(system, as_of="e3#1")
        window = await session.context(as_of="e3#1")
        printed = json.loads((await command(system, "--as-of", "e3#1", "--json"))[1])
        assert summary is not None
        versioned = await session.context(as_of=summary.version)
        timed = await session.context(as_of=str(summary.created_at), placement="user")
        early = await session.context(as_of="2000-01-01T00:00:00Z")
        refused = [await http_get(system, as_of="e3#7"), await http_get(system, as_of="99")]
        status, advice = await command(system, "--as-of", "yesterday")
        with pytest.raises(BadRequest, match="as_of"):
            await session.context(as_of="never#0")

    assert on_bus == on_http == printed == window.raw
    assert window.account.total == 9
    assert window.message_ids[-1] == "e3#1"
    assert window.summary is None
    assert versioned.summary == timed.summary == summary
    assert (early.account.total, early.messages, early.summary) == (0, [], None)
    assert [(status, body["error"]["code"]) for status, body in refused] == [
        (400, "bad_request")
    ] * 2
    assert status == 1
    assert "as_of" in advice


ITEMS: list[Json] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Which?"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA" * 50},
    {"type": "function_call", "call_id": "a", "name": "read", "arguments": "{}"},
]


@pytest.mark.proves("G1", "O3")
async def test_items_come_back_to_the_letter_on_every_way(tmp_path: Path) -> None:
    async with (
        running_system(tmp_path / "system") as system,
        connect(system.nats_url, environ={}) as client,
    ):
        session = client.session("support", "user-42")
        await session.turn_completed(ITEMS, shape="responses", event_id="t")
        await session.tool_result("a", "8443", event_id="r")
        window = await session.context(format="responses", wait_ms=5_000)
        _, on_http = await http_get(system, format="responses")
        printed = json.loads((await command(system, "--format", "responses", "--json"))[1])
        stored = (await session.history()).messages
        published = (await session.history(bodies="published")).messages
        async with system.http() as http:
            ids = {"agent_id": "support", "session_id": "user-42"}
            event = {"type": "turn.completed", "event_id": "x", **ids, "messages": ITEMS}
            refused = await http.post(f"{PATH}/events", json=event)
            accepted = await http.post(f"{PATH}/events", json=event | {"shape": "responses"})

    output = {"type": "function_call_output", "call_id": "a", "output": "8443"}
    assert window.messages == [*ITEMS, output]
    assert window.message_ids == ["t#0", "t#1", "t#2", "r#0"]
    assert on_http["messages"] == printed["messages"] == window.messages
    assert [one.element for one in stored] == [*ITEMS, None]
    assert [one.shape for one in stored] == ["responses"] * 3 + ["chat"]
    assert [one.element for one in published] == [*ITEMS, None]
    assert [one.message for one in published] == [{}, {}, {}, stored[-1].message]
    assert (refused.status_code, accepted.status_code) == (400, 200)
