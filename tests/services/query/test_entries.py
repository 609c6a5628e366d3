"""The forms of a window's messages, over the bus, over HTTP and through the client."""

from pathlib import Path
from typing import Any

import pytest

from tests.histories import words
from tests.running_system import running_system
from turnfold.client import connect

Json = dict[str, Any]
PATH = "/v1/agents/support/sessions/user-42/context"
CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
OTHER_JSON = {"rows": [1, 2]}


@pytest.mark.proves("G1", "W3", "O3")
async def test_each_way_says_the_same_and_only_what_changed_travels(tmp_path: Path) -> None:
    calling = {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "c2"}]}
    async with (
        running_system(tmp_path / "system") as system,
        connect(system.nats_url, environ={}) as client,
    ):
        session = client.session("support", "user-42")
        asking = {"role": "user", "content": "Look twice."}
        await session.turn_completed([asking, calling], event_id="e1")
        await session.tool_result("c1", OTHER_JSON, event_id="r1")
        await session.tool_result("c2", words(4_000), event_id="r2")
        answer = {"role": "assistant", "content": "Found."}
        await session.turn_completed([answer, {"role": "user", "content": "Go on."}], event_id="e2")

        window = await session.context(max_tokens=1_500, entries=True, wait_ms=5_000)
        brief = await session.context(max_tokens=1_500, entries=True, bodies="changed")
        silent = await session.context(max_tokens=1_500)
        anthropic = await session.context(max_tokens=1_500, entries=True, format="anthropic")
        query = {"max_tokens": "1500", "entries": "true", "bodies": "changed"}
        async with system.http() as http:
            over_http = (await http.get(PATH, params=query)).json()
            refused = await http.get(PATH, params={"bodies": "some"})

    forms = [(entry["id"], entry["form"]) for entry in window.entries or ()]
    assert forms == [
        ("e1#0", "whole"),
        ("e1#1", "whole"),
        ("r1#0", "mended"),
        ("r2#0", "cut"),
        ("e2#0", "whole"),
        ("e2#1", "whole"),
    ]
    assert [entry["id"] for entry in window.entries or ()] == window.message_ids
    changed = [
        None if form == "whole" else message
        for message, (_, form) in zip(window.messages, forms, strict=True)
    ]
    assert brief.messages == changed
    assert brief.entries == window.entries == over_http["entries"]
    assert over_http["messages"] == changed
    assert silent.entries is None
    assert {entry["form"] for entry in anthropic.entries or ()} == {"mended", "cut"}
    assert refused.status_code == 400


@pytest.mark.proves("G1", "W3")
async def test_reasoning_that_a_format_has_no_place_for_is_named_as_left_out(
    tmp_path: Path,
) -> None:
    items: list[Json] = [
        {"type": "message", "role": "user", "content": "Where?"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "It may be lost."}]},
        {"type": "message", "role": "assistant", "content": "Over Ghent."},
    ]
    chat: list[Json] = [
        {"role": "user", "content": "And now?"},
        {"role": "assistant", "content": "In Gent.", "reasoning_content": "It has moved."},
    ]
    signed = {"type": "thinking", "thinking": "It has come.", "signature": "c2lnbmVk"}
    blocks: list[Json] = [
        {"role": "user", "content": "And now?"},
        {"role": "assistant", "content": [signed, {"type": "text", "text": "At the door."}]},
        {"role": "user", "content": "Thanks."},
    ]
    async with (
        running_system(tmp_path / "system") as system,
        connect(system.nats_url, environ={}) as client,
    ):
        session = client.session("support", "user-42")
        await session.turn_completed(items, shape="responses", event_id="r")
        await session.turn_completed(chat, event_id="c")
        await session.turn_completed(blocks, shape="anthropic", event_id="a")
        told = {}
        for shape in ("openai", "responses", "anthropic"):
            window = await session.context(format=shape, entries=True, wait_ms=5_000)
            told[shape] = [one["id"] for one in window.entries or () if one["without"]]
            assert {repr(one["without"]) for one in window.entries or ()} == {
                "[]",
                "['reasoning']",
            }

    assert told == {
        "openai": [["r#1", "r#2"]],
        "responses": ["c#1", "a#1"],
        "anthropic": [["r#1", "r#2"], "c#1"],
    }
