"""Logs of other programs, replayed into a whole system."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from urllib.parse import quote

import httpx
import pytest

from tests.running_system import Command, System, eventually, running_system
from turnfold.client import connect
from turnfold.core.history.validation import validation_errors

LOGS = Path(__file__).parents[3] / "examples" / "logs"
QUESTION = '{"role": "user", "content": "And on Sundays?"}\n'
ANSWER = '{"role": "assistant", "content": "At 21:10."}\n'
MESSAGES = {
    ("claude-code", "7c1e44d0-52b9-4d0e-8a7b-90f2d1c3ab55"): 6,
    ("codex", "0199b1c2-7d10-7c41-9a55-3f2e8c6a1b04"): 13,
    ("nanobot", "telegram:4711"): 6,
    ("replay", "openai-chat"): 5,
    ("replay", "openai-responses"): 4,
}


async def replay(system: System, *arguments: str) -> Command:
    """Replay, again if the system did not answer in time: a replay can be repeated."""
    replayed = await system.command("replay", *arguments, "--json")
    for _ in range(4):
        if "try again" not in replayed.err:
            break
        replayed = await system.command("replay", *arguments, "--json")
    return replayed


@pytest.mark.proves("G11", "L2")
async def test_each_log_becomes_a_session_once_with_its_calls_and_results(tmp_path: Path) -> None:
    files = [str(path) for path in sorted(LOGS.iterdir())]
    async with running_system(tmp_path) as system:
        first = await replay(system, *files)
        again = await replay(system, *files, "--format", "turnfold")
        second = await replay(system, *files)
        dead = await system.command("deadletters", "list", "--json")
        async with connect(system.nats_url, environ={}) as client:
            windows = {
                key: (await client.session(*key).context(max_tokens=8_000)).messages
                for key in MESSAGES
            }
            codex = client.session("codex", "0199b1c2-7d10-7c41-9a55-3f2e8c6a1b04")
            items = (await codex.context(max_tokens=8_000, format="responses")).messages
            originals = [stored async for stored in codex.originals()]
        grown = tmp_path / "grown.jsonl"
        grown.write_text((LOGS / "nanobot.jsonl").read_text() + QUESTION)
        longer = await replay(system, str(grown))
        grown.write_text(grown.read_text() + ANSWER)
        changed = await replay(system, str(grown))

    for replayed in (first, second):
        assert replayed.status == 0, replayed.err
        counted = {(row["agent_id"], row["session_id"]): row["messages"] for row in replayed.rows}
        assert counted == MESSAGES
    assert "codex.jsonl: not imported: base instructions (1), token_count (1), rolled" in first.err
    assert (again.status, dead.rows) == (1, [])
    assert "claude-code.jsonl, line 1: neither a conversation" in again.err
    for key, messages in windows.items():
        assert validation_errors(messages) == [], key
    assert [item["type"] for item in items].count("function_call_output") == 2
    assert len(originals) == 13
    assert (longer.status, longer.rows[0]["messages"], longer.rows[0]["refused"]) == (0, 7, 0)
    assert (changed.status, changed.rows[0]["messages"], changed.rows[0]["refused"]) == (1, 7, 1)
    assert "telegram:4711: 1 event could not be stored" in changed.err


@pytest.mark.proves("G11", "A6")
async def test_a_log_can_be_imported_again_after_its_session_was_erased(tmp_path: Path) -> None:
    """As the dead letter of a turn that was incomplete at the first import advises."""
    log = tmp_path / "grown.jsonl"
    log.write_text((LOGS / "nanobot.jsonl").read_text() + QUESTION)
    async with running_system(tmp_path) as system:
        await replay(system, str(log))
        log.write_text(log.read_text() + ANSWER)
        changed = await replay(system, str(log))
        counts = []
        for _ in range(2):
            erased = await system.command("erase", "nanobot", "telegram:4711", "--yes")
            assert erased.status == 0, erased.err
            for _ in range(2):
                again = await replay(system, str(log))
                counts.append((again.status, again.rows[0]["messages"], again.rows[0]["refused"]))

    assert (changed.status, changed.rows[0]["refused"]) == (1, 1)
    assert counts == [(0, 8, 0)] * 4


@pytest.mark.proves("G11", "L2")
async def test_a_log_that_was_imported_by_turns_is_not_stored_again_by_messages(
    tmp_path: Path,
) -> None:
    log = str(LOGS / "nanobot.jsonl")
    async with running_system(tmp_path) as system:
        await replay(system, log)
        by_message = await replay(system, log, "--step", "message")
        (session,) = (await system.command("sessions", "--json")).rows
        elsewhere = await replay(system, log, "--step", "message", "--agent", "other")

    assert by_message.status == 1
    assert "telegram:4711 was imported with --step turn" in by_message.err
    assert session["messages_total"] == 6
    assert (elsewhere.status, elsewhere.rows[0]["messages"]) == (0, 6)


@pytest.mark.proves("G11", "I5")
async def test_a_refused_event_is_told_whatever_the_size_of_its_session_is(tmp_path: Path) -> None:
    """All messages of the session together are larger than an answer on the bus."""
    log = tmp_path / "long.jsonl"
    line = json.dumps({"role": "user", "content": "word " * 600_000}) + "\n"
    log.write_text(line * 3 + QUESTION)
    async with running_system(tmp_path) as system:
        await replay(system, str(log))
        log.write_text(log.read_text() + ANSWER)
        changed = await replay(system, str(log))

    assert (changed.status, changed.rows[0]["messages"], changed.rows[0]["refused"]) == (1, 4, 1)


@pytest.mark.proves("G11", "I5")
async def test_a_session_of_which_no_event_can_be_stored_names_its_dead_letters(
    tmp_path: Path,
) -> None:
    files = [str(LOGS / "nanobot.jsonl"), str(LOGS / "openai-chat.jsonl")]
    one_session = {"TURNFOLD_MAX_SESSIONS_PER_AGENT": "1"}
    async with running_system(tmp_path, environ=one_session) as system:
        first = await replay(system, files[0], "--agent", "one")
        both = await replay(system, *files, "--agent", "one")

    assert (first.status, both.status) == (0, 1), both.err
    assert [(row["messages"], row["refused"]) for row in both.rows] == [(6, 0), (0, 1)]
    assert "openai-chat: 1 event could not be stored" in both.err


@pytest.mark.proves("G11")
async def test_a_replay_waits_for_a_worker_that_has_stored_nothing_yet(tmp_path: Path) -> None:
    async with running_system(tmp_path) as system, system.http() as http:
        assert system.signal("worker", SIGSTOP)
        replaying = asyncio.create_task(replay(system, str(LOGS / "nanobot.jsonl")))

        async def is_counted() -> bool:
            return 'seconds_count{request="session.get"}' in (await http.get("/metrics")).text

        await eventually(is_counted)
        assert system.signal("worker", SIGCONT)
        replayed = await replaying

    assert replayed.status == 0, replayed.err
    assert [row["messages"] for row in replayed.rows] == [6]


@pytest.mark.proves("A5", "G11")
@pytest.mark.parametrize("source", ["command", "pages"])
async def test_a_saved_history_can_be_imported(tmp_path: Path, source: str) -> None:
    logs = ("codex.jsonl", "nanobot.jsonl", "openai-chat.json")
    async with running_system(tmp_path) as system:
        first = await replay(system, *(str(LOGS / name) for name in logs))
        async with connect(system.nats_url, environ={}) as client:
            for row in first.rows:
                key = row["agent_id"], row["session_id"]
                path = f"/v1/agents/{quote(key[0], '')}/sessions/{quote(key[1], '')}/history"
                saved = tmp_path / f"{key[0]}.jsonl"
                if source == "command":
                    told = await system.command("history", *key, "--newest", "0", "--json")
                    saved.write_text(told.out)
                else:
                    saved.write_text("\n".join(pages(system.http_url + path)))
                again = await replay(system, str(saved), "--agent", "saved")
                before, after = (
                    [(one.message, one.element, one.is_meta) async for one in session.originals()]
                    for session in (client.session(*key), client.session("saved", key[0]))
                )

                assert (again.status, again.rows[0]["refused"]) == (0, 0), again.err
                assert after == before


@pytest.mark.proves("A5", "G11")
async def test_an_imported_history_has_the_same_system_message_pinned(tmp_path: Path) -> None:
    saved = tmp_path / "saved.jsonl"
    turns = [
        ["system: Be brief.", "user: One?", "assistant: One.", "system: Time passes."],
        ["user: Two?", "assistant: Two."],
        ["system: Be thorough.", "user: Three?", "assistant: Three."],
        ["developer: Be kind."],
        ["assistant: Four.", "user: Five?"],
    ]
    async with (
        running_system(tmp_path) as system,
        connect(system.nats_url, environ={}) as client,
    ):
        session = client.session("ada", "s")
        for turn in turns:
            parts = [text.split(": ") for text in turn]
            await session.turn_completed([{"role": role, "content": text} for role, text in parts])
        before = await session.context(max_tokens=8_000, wait_ms=5_000)
        told = await system.command("history", "ada", "s", "--newest", "0", "--json")
        saved.write_text(told.out)
        again = await replay(system, str(saved))
        after = await client.session("replay", "saved").context(max_tokens=8_000)

    assert (again.status, before.fresh) == (0, True)
    assert before.messages[0]["content"] == "Be kind."
    assert after.messages == before.messages


@pytest.mark.proves("A5", "I2")
async def test_a_history_that_a_command_saved_has_results_as_they_were_published(
    tmp_path: Path,
) -> None:
    saved = tmp_path / "saved.jsonl"
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    async with (
        running_system(tmp_path) as system,
        connect(system.nats_url, environ={}) as client,
    ):
        session = client.session("ada", "s")
        await session.turn_completed([{"role": "user", "content": "How much?"}, asked])
        await session.tool_result("c", {"price": [1, 2]}, is_error=True)
        before = await session.context(max_tokens=8_000, format="anthropic", wait_ms=5_000)
        told = await system.command("history", "ada", "s", "--newest", "0", "--json")
        saved.write_text(told.out)
        again = await replay(system, str(saved))
        imported = client.session("replay", "saved")
        originals = [one async for one in imported.originals()]
        after = await imported.context(max_tokens=8_000, format="anthropic")

    assert (before.fresh, before.messages[-1]["content"][0]["is_error"]) == (True, True)
    assert after.messages == before.messages
    assert (again.status, told.rows[-1]["original_content"]) == (0, {"price": [1, 2]})
    assert originals[-1].message["content"] == {"price": [1, 2]}
    assert [one.is_error for one in originals] == [False, False, True]


def pages(url: str) -> Iterator[str]:
    """The pages of a history, each as its text."""
    after: int | None = 0
    while after is not None:
        page = httpx.get(url, params={"limit": 3, "after_position": after}, trust_env=False)
        yield page.text
        after = page.json()["next_position"]
