"""Transcripts of the Claude Agent SDK are kept to the letter, and their messages can be found."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from claude_agent_sdk import (
    fork_session_via_store,
    get_session_messages_from_store,
    list_sessions_from_store,
)
from claude_agent_sdk.testing import run_session_store_conformance

from tests.hosts.chat import BUDGETS, TURNS, size, tree
from tests.hosts.conftest import RunningSystem
from turnfold.client import connect
from turnfold.integrations.claude_agent import TurnfoldSessionStore

PROJECT = "-srv-shop"

Entry = dict[str, Any]


def entry(kind: str, **fields: Any) -> Entry:
    return {"type": kind, "uuid": str(uuid4()), "timestamp": "2026-11-23T10:00:00Z", **fields}


def user(content: Any, **fields: Any) -> Entry:
    return entry("user", message={"role": "user", "content": content}, **fields)


def assistant(*blocks: Entry, **fields: Any) -> Entry:
    usage = {"input_tokens": 4_711, "output_tokens": 3}
    message = {"id": "msg_1", "role": "assistant", "content": list(blocks), "usage": usage}
    return entry("assistant", message=message, **fields)


def text(words: str) -> Entry:
    return {"type": "text", "text": words}


def call(name: str) -> Entry:
    return {"type": "tool_use", "id": name, "name": "Read", "input": {"file_path": f"/{name}"}}


def result(name: str) -> Entry:
    return {"type": "tool_result", "tool_use_id": name, "content": f"{name} holds " + "42, " * 300}


def turn(number: int) -> list[Entry]:
    """A turn as the CLI writes it: each block of an answer is an entry, and each result."""
    one, two, three = (f"toolu_{number}_{place}" for place in range(3))
    return [
        entry("file-history-snapshot", snapshot={"turn": number}),
        user(f"Look again, {number}."),
        assistant({"type": "thinking", "thinking": "Two files.", "signature": "c2ln"}),
        assistant(call(one)),
        assistant(call(two)),
        user([result(one)], toolUseResult={"file": one}),
        user([result(two), text("And hurry.")]),
        assistant(text("One more."), call(three)),
        user([result(three)]),
        entry("system", subtype="turn_duration", durationMs=1_200),
        assistant(text(f"Done with {number}.")),
    ]


@pytest.fixture
def store(system: RunningSystem, session_id: str) -> TurnfoldSessionStore:
    """The store of an agent that nobody else uses."""
    return TurnfoldSessionStore(session_id, client=system.nats_url)


@pytest.mark.proves("G9")
@pytest.mark.timeout(300)
async def test_the_conformance_run_of_the_sdk_passes(system: RunningSystem) -> None:
    """Proves G9."""
    await run_session_store_conformance(
        lambda: TurnfoldSessionStore(uuid4().hex, client=system.nats_url)
    )


@pytest.mark.proves("G9")
async def test_every_entry_comes_back_to_the_letter(
    system: RunningSystem, store: TurnfoldSessionStore, session_id: str
) -> None:
    """Proves G9."""
    key: Any = {"project_key": PROJECT, "session_id": "s/1"}
    entries: list[Any] = [
        {"type": "mode", "mode": "plan"},
        *turn(0),
        user(
            "half a character: \ud83d, NUL \0, 1e400 and 値", deep=[1, 2.5, None, {"b": {"a": 1}}]
        ),
        user("", isMeta=True),
        entry("user", message="no object"),
        entry("assistant", message={"role": "assistant", "content": 7}),
        {"type": "mode", "mode": "plan"},
        entry("attachment", data='"\\' * 700_000),
        user("long " * 400_000),
    ]

    await store.append(key, entries)
    await store.append(key, [one for one in entries if "uuid" in one])

    assert await store.load(key) == entries
    async with connect(system.nats_url, environ={}) as client:
        session = client.session(session_id, f"{PROJECT}/s%2F1")
        [hit, *_] = await session.search("hurry", after="latest", wait_ms=5_000)
        window = await session.context(max_tokens=50_000, format="anthropic")
    assert hit.message["content"] == "And hurry."
    assert window.messages[0]["content"][0]["text"] == "Look again, 0."
    assert not any(message["content"] in ("", []) for message in window.messages)


@pytest.mark.proves("G9", "L1")
async def test_an_entry_that_nests_deeper_than_an_event_may_is_stored_with_those_beside_it(
    store: TurnfoldSessionStore,
) -> None:
    key: Any = {"project_key": PROJECT, "session_id": "s"}
    entries: list[Any] = [
        user("Read the page."),
        user([result("page")], toolUseResult={"structuredContent": tree()}),
        assistant({"type": "tool_use", "id": "draw", "name": "Draw", "input": tree()}),
        assistant(text("It is read.")),
    ]

    await store.append(key, entries)

    assert await store.load(key) == entries


@pytest.mark.proves("G9", "L12")
async def test_a_transcript_that_is_copied_to_another_project_is_stored_there_as_well(
    store: TurnfoldSessionStore,
) -> None:
    keys: list[Any] = [{"project_key": one, "session_id": "s"} for one in (PROJECT, "-srv-moved")]
    entries: list[Any] = [user("Where is order 7341?"), assistant(text("In Bonn."))]

    for key in keys:
        await store.append(key, entries)

    assert [await store.load(key) for key in keys] == [entries, entries]


async def test_the_helpers_of_the_sdk_read_list_and_fork_sessions(
    store: TurnfoldSessionStore,
) -> None:
    session_id = str(uuid4())
    key: Any = {"project_key": PROJECT, "session_id": session_id}
    asked = user("Where is order 7341?", sessionId=session_id, parentUuid=None)
    said = assistant(text("In Bonn."), sessionId=session_id, parentUuid=asked["uuid"])
    await store.append(key, [asked, said])

    [listed] = await list_sessions_from_store(store, directory="/srv/shop")
    messages = await get_session_messages_from_store(store, session_id, directory="/srv/shop")
    fork = await fork_session_via_store(store, session_id, directory="/srv/shop")

    assert listed.session_id == session_id
    assert [one.message for one in messages] == [asked["message"], said["message"]]
    forked = await store.load({"project_key": PROJECT, "session_id": fork.session_id})
    assert forked is not None
    assert len(forked) >= 2


async def test_many_appends_at_once_are_all_stored(store: TurnfoldSessionStore) -> None:
    key: Any = {"project_key": "long" * 100, "session_id": "s", "subpath": "subagents/agent-1"}
    entries = [user(f"Note {number}") for number in range(60)]

    await asyncio.gather(*(store.append(key, entries[at : at + 6]) for at in range(0, 60, 6)))

    loaded = await store.load(key)
    assert loaded is not None
    assert sorted(one["uuid"] for one in loaded) == sorted(one["uuid"] for one in entries)
    assert await store.list_sessions("long" * 100) == []
    assert await store.list_subkeys({"project_key": "long" * 100, "session_id": "s"}) == [
        "subagents/agent-1"
    ]


@pytest.mark.proves("G9")
@pytest.mark.timeout(300)
@pytest.mark.stress
async def test_windows_of_two_hundred_turns_with_parallel_calls_break_no_pair(
    system: RunningSystem, store: TurnfoldSessionStore, session_id: str
) -> None:
    """Proves G9."""
    key: Any = {"project_key": PROJECT, "session_id": "stress"}
    turns = [turn(number) for number in range(TURNS)]
    broken: list[str] = []
    async with connect(system.nats_url, environ={}) as client:
        session = client.session(session_id, f"{PROJECT}/stress")
        for entries in turns:
            await store.append(key, entries)
            for budget in BUDGETS:
                window = await session.context(
                    max_tokens=budget, format="anthropic", after="latest", wait_ms=5_000
                )
                assert window.fresh
                assert window.tokens <= budget
                assert size(window.messages) <= budget * 1.1
                broken += faults(window.messages)

    assert broken == []
    assert await store.load(key) == [one for entries in turns for one in entries]


def faults(messages: list[Entry]) -> list[str]:
    """Return the calls without their results in the next message, and results without calls."""
    found: list[str] = []
    called: list[str] = []
    for message in messages:
        blocks = message["content"] if isinstance(message["content"], list) else []
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        found += [name for name in {*called, *results} if called.count(name) != results.count(name)]
        called = [block["id"] for block in blocks if block["type"] == "tool_use"]
    return found + called
